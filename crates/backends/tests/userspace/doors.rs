//! Doors without rules: mapped ports, and virtual addresses on the loopback interface.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ferry_backends::Backend;
use ferry_backends::userspace::{Ingress, Options, Userspace};
use ferry_lab::netns::Namespace;
use ferry_model::Protocol::{Sctp, Tcp, Udp};
use ferry_model::{Event, Family, NodePortAddress, Planner, TrafficPolicy};

use crate::fixture::*;

fn inside(label: &str, body: impl FnOnce() + Send) {
    Namespace::new(label).unwrap().run(body).unwrap();
}

fn mapped() -> World {
    World::new(Ingress::Mapped, planner(&["127.0.0.1"], "10.244.0.0/16"))
}

#[test]
fn service_ports_are_mapped_and_node_ports_are_open() {
    inside("mapped", || {
        let mut world = mapped();
        let (one, two) = (endpoint("127.0.1.1:8080"), endpoint("127.0.1.2:8080"));
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]);
        world.set(&web.to(&[one, two]).node_port(30080));
        world.apply();
        for protocol in [Tcp, Udp] {
            let names: BTreeSet<String> = (0..4)
                .map(|_| ask(protocol, at("127.0.0.1:30080")).unwrap())
                .collect();
            assert_eq!(
                names,
                ["127.0.1.1:8080", "127.0.1.2:8080"].map(String::from).into()
            );
        }
        let mapped = world.mapping("10.96.0.1:80").unwrap();
        assert!(mapped.ip().is_loopback());
        assert!(tcp(mapped).unwrap().starts_with("127.0.1."));
        let traffic = world.backend.traffic().unwrap();
        let http = traffic
            .iter()
            .find(|line| line.port.port.as_ref() == "http")
            .unwrap();
        assert_eq!(http.connections, 5);
        until("bytes are counted", || {
            let traffic = world.backend.traffic().unwrap();
            let http = traffic
                .iter()
                .find(|line| line.port.port.as_ref() == "http")
                .unwrap();
            http.bytes == Some((5, 5 * "127.0.1.1:8080".len() as u64))
        });
    });
}

#[test]
fn doors_follow_the_plan() {
    inside("follow", || {
        let mut world = mapped();
        let one = endpoint("127.0.1.1:8080");
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80)])
            .to(&[one])
            .node_port(30080);
        world.set(&web);
        assert_eq!(world.apply().added, 2);
        // Nothing changed, nothing is done.
        let applied = world.apply();
        assert_eq!((applied.full, applied.added, applied.removed), (false, 0, 0));
        let node_port = at("127.0.0.1:30080");
        // Another node port: the old one is closed.
        world.set(&web.clone().node_port(30081));
        world.apply();
        assert_eq!(tcp(node_port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(tcp(at("127.0.0.1:30081")).is_ok());
        // Another endpoint, under the same doors.
        let two = endpoint("127.0.1.2:9090");
        let before = world.mapping("10.96.0.1:80").unwrap();
        world.set(&web.clone().to(&[two]));
        world.apply();
        assert_eq!(tcp(node_port).unwrap(), "127.0.1.2:9090");
        assert_eq!(world.mapping("10.96.0.1:80"), Some(before));
        // A cluster IP that changes, a service that goes and comes back.
        world.set(
            &web.clone()
                .with(|service| service.cluster_ips = vec![ip("10.96.0.9")]),
        );
        world.apply();
        assert!(world.mapping("10.96.0.1:80").is_none() && world.mapping("10.96.0.9:80").is_some());
        world.delete("web");
        world.apply();
        assert!(world.backend.notes().is_empty() && world.backend.traffic().unwrap().is_empty());
        assert_eq!(tcp(node_port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        world.set(&web);
        world.apply();
        assert_eq!(tcp(node_port).unwrap(), "127.0.1.1:8080");
    });
}

#[test]
fn open_connections_survive_every_change_of_their_service() {
    inside("survive", || {
        let mut world = mapped();
        let (one, two) = (endpoint("127.0.1.1:8080"), endpoint("127.0.1.2:8080"));
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80)]).node_port(30080);
        world.set(&web.clone().to(&[one]));
        world.apply();
        let mut stream = TcpStream::connect(at("127.0.0.1:30080")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut still_there = || {
            stream.write_all(b"?").unwrap();
            let mut name = [0; 14];
            stream.read_exact(&mut name).unwrap();
            assert_eq!(&name, b"127.0.1.1:8080");
        };
        still_there();
        let renamed = service("web", "10.96.0.1", &[("other", Tcp, 80)])
            .node_port(30080)
            .to(&[one]);
        for change in [
            web.clone().to(&[two]),
            web.clone().node_port(30099).to(&[two]),
            web.to(&[]),
            renamed,
        ] {
            world.set(&change);
            world.apply();
            still_there();
        }
        world.delete("web");
        world.apply();
        still_there();
    });
}

/// A process that is being started has a copy of every socket until it runs its program; a door that changes what it does
/// with its address meanwhile is not held up by that.
#[test]
fn processes_that_are_started_hold_up_no_door() {
    inside("started", || {
        let mut world = mapped();
        let one = endpoint("127.0.1.1:8080");
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).node_port(30080);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopping = OnDrop(|| stop.store(true, std::sync::atomic::Ordering::Relaxed));
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::process::Command::new("true").status().unwrap();
                    }
                });
            }
            for _ in 0..50 {
                world.set(&web.clone().to(&[one]));
                world.apply();
                world.set(&web);
                world.apply();
            }
            drop(stopping);
        });
    });
}

/// A renamed port has the same address: its door changes hands without a moment in which clients are refused.
#[test]
fn a_renamed_port_never_refuses() {
    inside("rename", || {
        let mut world = mapped();
        let one = endpoint("127.0.1.1:8080");
        let named = |name: &str| {
            service("web", "10.96.0.1", &[(name, Tcp, 80)])
                .to(&[one])
                .node_port(30080)
        };
        world.set(&named("a"));
        world.apply();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopping = OnDrop(|| stop.store(true, std::sync::atomic::Ordering::Relaxed));
            let hammer = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
                    count += 1;
                }
                count
            });
            for name in ["b", "c", "d", "e", "f", "g"] {
                std::thread::sleep(Duration::from_millis(20));
                world.set(&named(name));
                world.apply();
            }
            drop(stopping);
            assert!(hammer.join().unwrap() > 0);
        });
    });
}

#[test]
fn without_endpoints_clients_are_refused_and_without_local_ones_ignored() {
    inside("verdicts", || {
        let mut world = mapped();
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).node_port(30080);
        world.set(&web);
        world.apply();
        let node_port = at("127.0.0.1:30080");
        assert_eq!(tcp(node_port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(udp(node_port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mapped = world.mapping("10.96.0.1:80").unwrap();
        assert_eq!(tcp(mapped).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        // Endpoints elsewhere only: a Local policy stays silent.
        let far = endpoint("127.0.1.1:8080");
        let local = web
            .clone()
            .with(|service| service.internal_policy = TrafficPolicy::Local);
        world.set(&local.clone().to(&[far]));
        world.apply();
        let short = Duration::from_millis(300);
        assert_eq!(tcp_within(mapped, short).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(tcp(node_port).unwrap(), "127.0.1.1:8080");
        // With a local endpoint it answers, and uses no other.
        let near = endpoint("127.0.1.2:8080");
        let mut both = local.to(&[far, near]);
        both.endpoints[1].1 = State::LocalReady;
        world.set(&both);
        world.apply();
        for _ in 0..4 {
            assert_eq!(tcp(mapped).unwrap(), "127.0.1.2:8080");
        }
        // A terminating endpoint serves as long as there is no other.
        let mut ending = web.clone().to(&[far, near]);
        ending.endpoints[0].1 = State::Terminating;
        ending.endpoints[1].1 = State::Unready;
        world.set(&ending);
        world.apply();
        assert_eq!(tcp(mapped).unwrap(), "127.0.1.1:8080");
        world.set(&web);
        world.apply();
        assert_eq!(tcp(mapped).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(udp(node_port).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn source_ranges_and_the_external_policy_decide_by_client() {
    let namespace = Namespace::new("ranges").unwrap();
    namespace
        .ip("addr add 192.0.2.1/32 dev lo\naddr add 192.0.2.2/32 dev lo")
        .unwrap();
    let body = || {
        let mut world = World::new(
            Ingress::Loopback,
            planner(&["127.0.0.1", "192.0.2.1"], "10.244.0.0/16"),
        );
        let (far, near) = (endpoint("127.0.1.1:8080"), endpoint("127.0.1.2:8080"));
        let mut web = service("web", "10.96.0.1", &[("http", Tcp, 80)])
            .to(&[far, near])
            .with(|service| {
                service.load_balancer_ips = vec![ip("198.51.100.1")];
                service.source_ranges = vec!["192.0.2.2/32".parse().unwrap()];
                service.external_policy = TrafficPolicy::Local;
            });
        web.endpoints[1].1 = State::LocalReady;
        world.set(&web);
        world.apply();
        let from = |source: &str| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(ip(source), 0).into()).unwrap();
            let limit = Duration::from_millis(700);
            socket.connect_timeout(&at("198.51.100.1:80").into(), limit)?;
            let mut stream: TcpStream = socket.into();
            stream.write_all(b"?")?;
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut name = String::new();
            stream.read_to_string(&mut name)?;
            std::io::Result::Ok(name)
        };
        // Not in the ranges, though it is the node itself: no answer at all.
        assert_eq!(from("192.0.2.1").unwrap_err().kind(), ErrorKind::TimedOut);
        // In the ranges and from outside, as far as the plan knows: local endpoints only.
        for _ in 0..4 {
            assert_eq!(from("192.0.2.2").unwrap(), "127.0.1.2:8080");
        }
        // The node itself may use every endpoint.
        world.set(&web.clone().with(|service| service.source_ranges.clear()));
        world.apply();
        let names: BTreeSet<String> = (0..4).map(|_| from("192.0.2.1").unwrap()).collect();
        assert_eq!(names.len(), 2);
    };
    namespace.run(body).unwrap();
}

#[test]
fn loopback_addresses_come_and_go_with_their_services() {
    let namespace = Namespace::new("loopback").unwrap();
    let addresses = || {
        namespace
            .sh("ip -o addr show dev lo | awk '{print $4}' | sort")
            .unwrap()
    };
    let before = addresses();
    let mut planned: Option<Planner> = None;
    namespace
        .run(|| {
            let mut world = World::new(Ingress::Loopback, planner(&["127.0.0.1"], "10.244.0.0/16"));
            let one = endpoint("127.0.1.1:8080");
            let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).to(&[one]);
            let api = service("api", "10.96.0.2", &[("https", Tcp, 443)]).to(&[one]);
            world.set(&web);
            world.set(&api.with(|service| service.external_ips = vec![ip("203.0.113.7")]));
            world.apply();
            assert_eq!(tcp(at("10.96.0.1:80")).unwrap(), "127.0.1.1:8080");
            assert_eq!(udp(at("10.96.0.1:53")).unwrap(), "127.0.1.1:8080");
            assert_eq!(tcp(at("10.96.0.2:443")).unwrap(), "127.0.1.1:8080");
            assert_eq!(tcp(at("203.0.113.7:443")).unwrap(), "127.0.1.1:8080");
            // One of two ports goes: the address stays for the other.
            world.set(&service("web", "10.96.0.1", &[("dns", Udp, 53)]).to(&[one]));
            world.apply();
            assert_eq!(
                tcp(at("10.96.0.1:80")).unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
            assert_eq!(udp(at("10.96.0.1:53")).unwrap(), "127.0.1.1:8080");
            planned = Some(world.planner.clone());
            // The process ends without a word.
        })
        .unwrap();
    assert_eq!(addresses().lines().count(), before.lines().count() + 3);
    namespace
        .run(|| {
            let mut world = World::new(Ingress::Loopback, planned.take().unwrap());
            world.delete("api");
            world.apply();
            assert_eq!(udp(at("10.96.0.1:53")).unwrap(), "127.0.1.1:8080");
        })
        .unwrap();
    assert_eq!(
        addresses().lines().count(),
        before.lines().count() + 1,
        "leftovers are removed"
    );
    namespace
        .run(|| {
            World::new(Ingress::Loopback, planner(&[], "10.244.0.0/16"))
                .backend
                .cleanup()
                .unwrap()
        })
        .unwrap();
    assert_eq!(addresses(), before);
}

#[test]
fn what_others_hold_is_reported_and_tried_again() {
    inside("conflict", || {
        let mut world = mapped();
        let one = endpoint("127.0.1.1:8080");
        let theirs = TcpListener::bind("0.0.0.0:30080").unwrap();
        world.set(
            &service("web", "10.96.0.1", &[("http", Tcp, 80)])
                .to(&[one])
                .node_port(30080),
        );
        let applied = world.try_apply().unwrap();
        assert_eq!(applied.warnings.len(), 1);
        assert!(applied.warnings[0].starts_with("Service ns/web:http: cannot listen on 0.0.0.0:30080/tcp"));
        assert!(world.backend.next_due().unwrap() <= Duration::from_secs(5));
        assert!(
            tcp(world.mapping("10.96.0.1:80").unwrap()).is_ok(),
            "the rest of the service works"
        );
        drop(theirs);
        world.apply();
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
        assert_eq!(world.backend.next_due(), None);
    });
}

#[test]
fn sctp_is_declined_by_name() {
    inside("sctp", || {
        let mut world = mapped();
        let one = endpoint("127.0.1.1:8080");
        world.set(&service("web", "10.96.0.1", &[("http", Tcp, 80), ("sig", Sctp, 80)]).to(&[one]));
        let applied = world.try_apply().unwrap();
        assert_eq!(
            applied.warnings,
            ["Service ns/web:sig: SCTP is not supported in userspace mode"]
        );
        assert!(tcp(world.mapping("10.96.0.1:80").unwrap()).is_ok());
        world.delete("web");
        world.apply();
    });
}

#[test]
fn a_port_range_is_kept_to() {
    inside("range", || {
        let options = Options {
            ingress: Ingress::Mapped,
            ports: Some(20000..=20001),
            ..Options::default()
        };
        let mut world = World {
            planner: planner(&["127.0.0.1"], "10.244.0.0/16"),
            backend: Userspace::open(options, silent()).unwrap(),
        };
        let one = endpoint("127.0.1.1:8080");
        for name in ["a", "b"] {
            let address = format!("10.96.0.{}", name.as_bytes()[0]);
            world.set(&service(name, &address, &[("", Tcp, 80)]).to(&[one]));
        }
        world.apply();
        let used = ["10.96.0.97:80", "10.96.0.98:80"].map(|frontend| world.mapping(frontend).unwrap().port());
        assert_eq!(BTreeSet::from(used), [20000, 20001].into());
        world.set(&service("c", "10.96.0.99", &[("", Tcp, 80)]).to(&[one]));
        let applied = world.try_apply().unwrap();
        assert_eq!(
            applied.warnings,
            ["Service ns/c: no port is left in the proxy port range 20000-20001"]
        );
        world.delete("a");
        world.try_apply().unwrap();
        world.apply();
        assert_eq!(
            tcp(world.mapping("10.96.0.99:80").unwrap()).unwrap(),
            "127.0.1.1:8080"
        );
    });
}

#[test]
fn node_ports_answer_where_they_should() {
    let namespace = Namespace::new("nodeports").unwrap();
    namespace
        .ip("addr add 192.0.2.1/32 dev lo\naddr add 192.0.2.2/32 dev lo")
        .unwrap();
    let body = || {
        let mut options = options("10.244.0.0/16");
        options.node_port_addresses = vec![NodePortAddress::Cidr("192.0.2.1/32".parse().unwrap())];
        let mut planner = Planner::new(options);
        let host = ferry_model::Host {
            addresses: [ip("192.0.2.1"), ip("192.0.2.2")].into(),
        };
        planner.update([Event::Host(std::sync::Arc::new(host))]);
        let mut world = World::new(Ingress::Mapped, planner);
        let one = endpoint("127.0.1.1:8080");
        world.set(
            &service("web", "10.96.0.1", &[("http", Tcp, 80)])
                .to(&[one])
                .node_port(30080),
        );
        world.apply();
        assert_eq!(tcp(at("192.0.2.1:30080")).unwrap(), "127.0.1.1:8080");
        assert_eq!(
            tcp(at("192.0.2.2:30080")).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
    };
    namespace.run(body).unwrap();
}

#[test]
fn the_families_do_not_meet() {
    inside("families", || {
        let mut world = World::new(Ingress::Mapped, planner(&["127.0.0.1", "::1"], "10.244.0.0/16"));
        let (four, six) = (endpoint("127.0.1.1:8080"), endpoint("[::1]:8080"));
        world.set(
            &service("four", "10.96.0.1", &[("", Tcp, 80)])
                .to(&[four])
                .node_port(30080),
        );
        let six = service("six", "fd00::1", &[("", Tcp, 80), ("d", Udp, 80)])
            .to(&[six])
            .node_port(30080);
        world.set(&six);
        world.apply();
        world.backend.apply(world.planner.plan(), Family::V6).unwrap();
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
        assert_eq!(tcp(at("[::1]:30080")).unwrap(), "[::1]:8080");
        assert_eq!(udp(at("[::1]:30080")).unwrap(), "[::1]:8080");
    });
}

/// Without the right to change interfaces, asking for virtual addresses gives mapped ports.
#[test]
fn without_privileges_service_ports_are_mapped() {
    inside("unprivileged", || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut rights = capabilities(None).unwrap();
        rights.effective.remove(CapabilitySet::NET_ADMIN);
        rights.permitted.remove(CapabilitySet::NET_ADMIN);
        // Of this thread only, and of those that it starts.
        set_capabilities(None, rights).unwrap();
        let mut world = World::new(Ingress::Loopback, planner(&["127.0.0.1"], "10.244.0.0/16"));
        let one = endpoint("127.0.1.1:8080");
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]);
        world.set(&web.to(&[one]).node_port(30080));
        world.apply();
        let mapped = world.mapping("10.96.0.1:80").unwrap();
        assert!(mapped.ip().is_loopback());
        assert_eq!(tcp(mapped).unwrap(), "127.0.1.1:8080");
        assert_eq!(
            udp(world.door(Udp, "10.96.0.1:53").unwrap()).unwrap(),
            "127.0.1.1:8080"
        );
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
    });
}
