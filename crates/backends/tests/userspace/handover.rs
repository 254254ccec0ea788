//! Restarts that nobody notices.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ferry_backends::Backend;
use ferry_backends::userspace::{Ingress, Options, Userspace};
use ferry_lab::netns::Namespace;
use ferry_model::Protocol::{Tcp, Udp};

use crate::fixture::*;

fn start(ingress: Ingress, path: &Path, world: Option<&World>) -> World {
    let options = Options {
        ingress,
        handover: Some(path.join("handover")),
        ..Options::default()
    };
    let planner = world.map_or_else(
        || planner(&["127.0.0.1"], "10.244.0.0/16"),
        |world| world.planner.clone(),
    );
    World {
        planner,
        backend: Userspace::open(options, silent()).unwrap(),
    }
}

fn inside(label: &str, body: impl FnOnce(&Path) + Send) {
    let directory = tempfile::tempdir().unwrap();
    Namespace::new(label)
        .unwrap()
        .run(|| body(directory.path()))
        .unwrap();
}

/// Clients connect without a pause while the backend is replaced again and again, by one that starts while the other
/// runs. None is refused, reset or left without an answer.
#[test]
fn no_client_is_refused_while_backends_replace_each_other() {
    inside("hammer", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        let endpoints = [endpoint("127.0.1.1:8080"), endpoint("127.0.1.2:8080")];
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80)])
            .to(&endpoints)
            .node_port(30080);
        world.set(&web);
        world.apply();
        let mapped = world.mapping("10.96.0.1:80").unwrap();
        let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let stopping = OnDrop(|| stop.store(true, Relaxed));
            for to in [at("127.0.0.1:30080"), mapped, mapped, at("127.0.0.1:30080")] {
                let (stop, served) = (&stop, &served);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        let name = tcp(to).unwrap_or_else(|error| panic!("{to}: {error}"));
                        assert!(name.starts_with("127.0.1."), "{name}");
                        served.fetch_add(1, Relaxed);
                    }
                });
            }
            for _ in 0..6 {
                let before = served.load(Relaxed);
                until("clients are served", || served.load(Relaxed) > before + 50);
                let mut next = start(Ingress::Mapped, path, Some(&world));
                next.apply();
                assert!(world.backend.is_retired() && !next.backend.is_retired());
                assert_eq!(next.mapping("10.96.0.1:80"), Some(mapped), "the proxy port stays");
                // The predecessor goes when what it accepted has ended.
                until("what it accepted has ended", || {
                    world.backend.open_connections() == 0
                });
                world = next;
            }
            drop(stopping);
        });
    });
}

/// A successor that has the sockets but no plan yet changes nothing: the predecessor serves until then.
#[test]
fn a_backend_serves_until_its_successor_does() {
    inside("until", |path| {
        let mut world = start(Ingress::Loopback, path, None);
        let one = endpoint("127.0.1.1:8080");
        world.set(&service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).to(&[one]));
        world.apply();
        let mut next = start(Ingress::Loopback, path, Some(&world));
        assert_eq!(tcp(at("10.96.0.1:80")).unwrap(), "127.0.1.1:8080");
        assert!(!world.backend.is_retired());
        next.apply();
        assert!(world.backend.is_retired());
        drop(world);
        assert_eq!(tcp(at("10.96.0.1:80")).unwrap(), "127.0.1.1:8080");
        assert_eq!(udp(at("10.96.0.1:53")).unwrap(), "127.0.1.1:8080");
    });
}

#[test]
fn connections_associations_and_affinity_go_on() {
    inside("goon", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        let endpoints: Vec<_> = (1..=4).map(|n| endpoint(&format!("127.0.1.{n}:8080"))).collect();
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).node_port(30080);
        world.set(
            &web.to(&endpoints)
                .with(|service| service.affinity = Some(Duration::from_secs(3600))),
        );
        world.apply();
        let node_port = at("127.0.0.1:30080");
        let mut stream = TcpStream::connect(node_port).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = |stream: &mut TcpStream| {
            stream.write_all(b"?").unwrap();
            let mut name = [0; 14];
            stream.read_exact(&mut name).unwrap();
            String::from_utf8_lossy(&name).into_owned()
        };
        let tcp_endpoint = ask(&mut stream);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp_endpoint = udp_from(&client, node_port, PATIENCE).unwrap();
        for _ in 0..3 {
            let mut next = start(Ingress::Mapped, path, Some(&world));
            next.apply();
            // The open connection is still with the one that accepted it.
            assert_eq!(ask(&mut stream), tcp_endpoint);
            assert_eq!(tcp(node_port).unwrap(), tcp_endpoint, "affinity");
            for _ in 0..3 {
                assert_eq!(
                    udp_from(&client, node_port, PATIENCE).unwrap(),
                    udp_endpoint,
                    "association"
                );
            }
            drop(stream);
            drop(world);
            world = next;
            stream = TcpStream::connect(node_port).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(ask(&mut stream), tcp_endpoint, "affinity");
        }
    });
}

#[test]
fn doors_that_refuse_or_ignore_are_handed_over_too() {
    inside("mute", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        let one = endpoint("127.0.1.1:8080");
        let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 53)]).node_port(30080);
        world.set(&web);
        let local = service("local", "10.96.0.2", &[("http", Tcp, 80)]).to(&[one]);
        world.set(&local.with(|service| service.internal_policy = ferry_model::TrafficPolicy::Local));
        world.apply();
        let silent = world.mapping("10.96.0.2:80").unwrap();
        let mut next = start(Ingress::Mapped, path, Some(&world));
        next.apply();
        until("the predecessor has let go", || world.backend.is_retired());
        drop(world);
        let refused =
            |result: std::io::Result<String>| result.unwrap_err().kind() == ErrorKind::ConnectionRefused;
        assert!(refused(tcp(at("127.0.0.1:30080"))) && refused(udp(at("127.0.0.1:30080"))));
        assert_eq!(next.mapping("10.96.0.2:80"), Some(silent));
        let error = tcp_within(silent, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        next.set(&web.to(&[one]));
        next.apply();
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
        assert_eq!(udp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
    });
}

/// A successor that gives up before it has applied anything leaves the predecessor as it was.
#[test]
fn a_successor_that_dies_changes_nothing() {
    inside("dies", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        let one = endpoint("127.0.1.1:8080");
        world.set(
            &service("web", "10.96.0.1", &[("http", Tcp, 80)])
                .to(&[one])
                .node_port(30080),
        );
        world.apply();
        drop(start(Ingress::Mapped, path, Some(&world)));
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
        let mut next = start(Ingress::Mapped, path, Some(&world));
        next.apply();
        assert!(world.backend.is_retired());
        // Applying to a retired backend does no harm.
        let applied = world.try_apply().unwrap();
        assert_eq!((applied.added, applied.removed), (0, 0));
        assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
    });
}

/// A predecessor that ends the moment it has retired does not take the offer of its successor with it.
#[test]
fn a_predecessor_that_leaves_at_once_leaves_the_offer_of_its_successor() {
    inside("leaves", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        world.set(&service("web", "10.96.0.1", &[("http", Tcp, 80)]).node_port(30080));
        world.apply();
        for _ in 0..100 {
            let mut next = start(Ingress::Mapped, path, Some(&world));
            next.apply();
            world = next;
        }
    });
}

/// The successor was told of all associations but those that began since: their answers come by the predecessor.
#[test]
fn answers_to_the_last_datagrams_arrive() {
    inside("last", |path| {
        let mut world = start(Ingress::Mapped, path, None);
        let slow = UdpSocket::bind("127.0.1.9:8080").unwrap();
        slow.set_read_timeout(Some(PATIENCE)).unwrap();
        let dns = service("dns", "10.96.0.1", &[("dns", Udp, 53)]).node_port(30053);
        world.set(&dns.to(&[slow.local_addr().unwrap()]));
        world.apply();
        let mut next = start(Ingress::Mapped, path, Some(&world));
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"?", at("127.0.0.1:30053")).unwrap();
        let mut buffer = [0; 8];
        let (_, relay) = slow.recv_from(&mut buffer).unwrap();
        next.apply();
        assert!(world.backend.is_retired());
        slow.send_to(b"late", relay).unwrap();
        let (count, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..count], from), (&b"late"[..], at("127.0.0.1:30053")));
    });
}

/// What an older or newer program, or something else, says there is refused; the process starts without a hand-over.
#[test]
fn a_hand_over_in_another_form_is_left_alone() {
    use std::os::unix::net::UnixListener;
    let record = |text: &[u8]| [&(text.len() as u32).to_be_bytes()[..], text].concat();
    let known = record(b"ferry userspace sockets 2");
    let cases: [Vec<u8>; 7] = [
        [record(b"ferry userspace sockets 1"), record(b"end")].concat(),
        [record(b"ferry userspace sockets 99"), record(b"end")].concat(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        Vec::new(),
        [known.clone(), record(b"\xff\xfe")].concat(),
        [known.clone(), vec![0xff; 64]].concat(),
        [known, record(b"listener\tIPv4"), vec![0, 0]].concat(),
    ];
    inside("foreign", |path| {
        let pod = endpoint("127.0.1.1:8080");
        for said in cases {
            let listener = UnixListener::bind(path.join("handover")).unwrap();
            let answered = std::thread::scope(|scope| {
                let predecessor = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.write_all(&said).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let mut answer = Vec::new();
                    let _ = stream.read_to_end(&mut answer);
                    answer
                });
                let mut world = start(Ingress::Mapped, path, None);
                let web = service("web", "10.96.0.1", &[("http", Tcp, 80)]).node_port(30080);
                world.set(&web.to(&[pod]));
                world.apply();
                assert_eq!(tcp(at("127.0.0.1:30080")).unwrap(), "127.0.1.1:8080");
                predecessor.join().unwrap()
            });
            assert_eq!(answered, b"", "nothing was taken");
        }
    });
}
