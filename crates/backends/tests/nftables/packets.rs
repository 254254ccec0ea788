//! Real packets, for what only this mode does: node ports on loopback addresses, and affinity by maps. What all modes
//! do alike is tested for all of them at once elsewhere.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::Backend;
use ferry_backends::nftables::{Nftables, Options};
use ferry_lab::netns::{Network, Outcome, Probe, Proto};
use ferry_model::*;

use super::{silent, world};

const LOCAL_POD: [&str; 2] = ["10.244.1.2", "fd00:10:244:1::2"];
const REMOTE_POD: [&str; 2] = ["10.244.2.2", "fd00:10:244:2::2"];

/// A planner that knows the lab's network.
fn planner(policy: Policy) -> Planner {
    let mut planner = Planner::new(PlanOptions {
        policy,
        detect_local: DetectLocal::ClusterCidrs(world::nets(&["10.244.0.0/16", "fd00:10:244::/48"])),
        ..world::options()
    });
    let own = ["192.0.2.10", "2001:db8:2::10"];
    planner.update([
        Event::Node(Some(Arc::new(Node {
            addresses: world::ips(&own),
            eligible: true,
            ..Node::default()
        }))),
        Event::Host(Arc::new(Host {
            addresses: world::ips(&own).into_iter().collect(),
        })),
    ]);
    planner
}

fn apply(network: &Network, backend: &mut Nftables, planner: &Planner) {
    let run = || {
        for family in Family::BOTH {
            let applied = backend.apply(planner.plan(), family).unwrap();
            assert_eq!(applied.warnings, Vec::<String>::new());
        }
    };
    network.node().run(run).unwrap();
}

fn open(network: &Network) -> Nftables {
    network
        .node()
        .run(|| Nftables::open(Options::default(), silent()).unwrap())
        .unwrap()
}

fn probe(from: &str, to: &str, port: u16, proto: Proto) -> Probe {
    Probe::new(from, to.parse().unwrap(), port, proto)
}

/// A service in both families with a TCP and a UDP node port of the same number.
fn node_port_service() -> [Event; 3] {
    let ports = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    let mut service = world::service("np", "10.96.0.1");
    service.kind = ServiceType::NodePort;
    service.cluster_ips = world::ips(&["10.96.0.1", "fd00:96::1"]);
    service.ports = ports
        .map(|(name, protocol)| ServicePort {
            name: name.into(),
            protocol,
            port: 80,
            node_port: Some(30001),
        })
        .into();
    let pods =
        |index: usize| world::endpoints_of("np", &ports, &world::ips(&[LOCAL_POD[index], REMOTE_POD[index]]));
    [world::set(service), pods(0), pods(1)]
}

fn names(outcome: &Outcome) -> BTreeSet<String> {
    outcome.backends.clone()
}

#[test]
fn node_ports_answer_on_localhost_where_asked_for() {
    let mut network = Network::up().unwrap();
    network
        .listen("node", Proto::Udp, "127.0.0.1:7777".parse().unwrap())
        .unwrap();
    let mut planner = planner(Policy::nftables());
    planner.update(node_port_service());
    let mut backend = open(&network);
    apply(&network, &mut backend, &planner);

    let mut probes = Vec::new();
    for address in ["127.0.0.1", "::1", "192.0.2.10", "2001:db8:2::10"] {
        probes.extend([Proto::Tcp, Proto::Udp].map(|proto| probe("node", address, 30001, proto).times(12)));
    }
    for outcome in network.probe(&probes).unwrap() {
        let both = BTreeSet::from(["pod1:8080".to_owned(), "rpod1:8080".to_owned()]);
        assert_eq!(names(&outcome), both, "{outcome}");
    }

    // Without an endpoint nobody answers, in words that a client understands.
    planner.update([
        world::endpoints_of("np", &[], &[]),
        world::endpoints_of("np", &[], &world::ips(&[LOCAL_POD[1]])),
    ]);
    apply(&network, &mut backend, &planner);
    // On loopback a port may be used again a second after its connection ended, and the kernel still knows where that went.
    network.node().sh("conntrack -F").unwrap();
    let refused = ["127.0.0.1", "::1"].map(|address| probe("node", address, 30001, Proto::Tcp));
    for outcome in network.probe(&refused).unwrap() {
        assert!(outcome.to_string().contains("refused"), "{outcome}");
    }

    // The kernel routes 127.0.0.0/8 now, and still nobody from outside gets there.
    let pod = network.host("pod1").unwrap();
    pod.sh(
        "ip addr del 127.0.0.1/8 dev lo; ip route del local 127.0.0.0/8 dev lo table local 2>/dev/null; \
            ip route add 127.0.0.0/8 via 10.244.1.1 && for i in all default eth0; do \
            echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; done",
    )
    .unwrap();
    let intruder = || {
        network
            .probe(&[probe("pod1", "127.0.0.1", 7777, Proto::Udp)])
            .unwrap()
            .remove(0)
    };
    let outcome = intruder();
    assert!(outcome.to_string().contains("timeout"), "{outcome}");
    network
        .node()
        .sh("nft flush chain ip kube-proxy filter-prerouting-pre-dnat")
        .unwrap();
    let outcome = intruder();
    assert_eq!(
        names(&outcome),
        BTreeSet::from(["loopback:7777".to_owned()]),
        "only our rule stops it: {outcome}"
    );
    let own = network
        .probe(&[probe("node", "127.0.0.1", 7777, Proto::Udp)])
        .unwrap();
    assert_eq!(
        names(&own[0]),
        BTreeSet::from(["loopback:7777".to_owned()]),
        "{}",
        own[0]
    );
}

#[test]
fn node_ports_do_not_answer_on_localhost_by_themselves() {
    let network = Network::up().unwrap();
    let mut planner = planner(Policy::nftables().without_localhost_node_ports());
    planner.update(node_port_service());
    apply(&network, &mut open(&network), &planner);
    let probes = ["127.0.0.1", "::1"].map(|address| probe("node", address, 30001, Proto::Tcp));
    for outcome in network.probe(&probes).unwrap() {
        assert!(outcome.to_string().contains("refused"), "{outcome}");
    }
    let setting = network
        .node()
        .sh("cat /proc/sys/net/ipv4/conf/all/route_localnet")
        .unwrap();
    assert_eq!(setting.trim(), "0");
}

/// A client keeps its endpoint while it is there, also when the timeout changes, and gets another when it goes.
#[test]
fn clients_stick_to_their_endpoint_until_it_goes() {
    let network = Network::up().unwrap();
    let mut planner = planner(Policy::nftables().without_localhost_node_ports());
    let sticky = |seconds| {
        let mut service = world::service("sticky", "10.96.0.1");
        service.cluster_ips = world::ips(&["10.96.0.1", "fd00:96::1"]);
        service.affinity = Some(Duration::from_secs(seconds));
        world::set(service)
    };
    let pods = |index: usize, pods: &[[&str; 2]]| {
        let addresses: Vec<IpAddr> = pods.iter().map(|pod| pod[index].parse().unwrap()).collect();
        world::endpoints_of("sticky", &[("http", Protocol::Tcp)], &addresses)
    };
    let other_pod = ["10.244.1.3", "fd00:10:244:1::3"];
    let all = [LOCAL_POD, other_pod, REMOTE_POD];
    planner.update([sticky(600), pods(0, &all), pods(1, &all)]);
    let mut backend = open(&network);
    apply(&network, &mut backend, &planner);
    for (index, address) in ["10.96.0.1", "fd00:96::1"].into_iter().enumerate() {
        let ask = || {
            let outcome = network
                .probe(&[probe("client", address, 80, Proto::Tcp).times(10)])
                .unwrap();
            let [name] = &Vec::from_iter(names(&outcome[0]))[..] else {
                panic!("{}", outcome[0])
            };
            name.clone()
        };
        let first = ask();
        assert_eq!(ask(), first);
        planner.update([sticky(900)]);
        apply(&network, &mut backend, &planner);
        assert_eq!(ask(), first, "the timeout changed");
        let kept: Vec<[&str; 2]> = all
            .into_iter()
            .filter(|pod| {
                let lab_name = ferry_lab::netns::name_of(pod[index].parse().unwrap());
                !first.starts_with(&lab_name)
            })
            .collect();
        assert_eq!(kept.len(), 2);
        planner.update([pods(index, &kept)]);
        apply(&network, &mut backend, &planner);
        let second = ask();
        assert_ne!(second, first);
        assert_eq!(ask(), second);
        planner.update([sticky(600), pods(index, &all)]);
        apply(&network, &mut backend, &planner);
        assert_eq!(
            ask(),
            second,
            "an endpoint that comes back does not take clients away"
        );
    }
}
