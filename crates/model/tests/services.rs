//! Which frontends a service has, and what the node's part of the plan says.

#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use ferry_model::*;

fn port_of<'a>(planner: &'a Planner, service: &str) -> &'a PortPlan {
    &planner.plan().service(&name(service)).unwrap().ports[0]
}

fn external_ips(planner: &Planner, service: &str) -> Vec<std::net::IpAddr> {
    port_of(planner, service)
        .addresses(FrontendKind::ExternalIp)
        .collect()
}

/// `kind address` of each frontend of a port, with the ranges that may use it.
fn frontends(port: &PortPlan) -> Vec<String> {
    let show = |frontend: &Frontend| match &frontend.allowed {
        Some(allowed) => format!("{} {} for {:?}", frontend.kind, frontend.key, allowed.ranges),
        None => format!("{} {}", frontend.kind, frontend.key),
    };
    port.frontends.iter().map(show).collect()
}

#[test]
fn each_family_gets_its_own_addresses() {
    let mut svc = service("ns/dual", "172.30.0.1");
    svc.cluster_ips.push(ip("fd00:172::1"));
    svc.external_ips = vec![ip("1.2.3.4"), ip("2001:db8::4")];
    svc.load_balancer_ips = vec![ip("5.6.7.8"), ip("2001:db8::8")];
    svc.source_ranges = vec![net("203.0.113.0/24"), net("2001:db8:1::/48")];
    let planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(svc)],
    );
    let ports = &planner.plan().service(&name("ns/dual")).unwrap().ports;
    let v6 = ports.iter().find(|port| port.family == Family::V6).unwrap();
    assert_eq!(ports.len(), 2);
    assert_eq!(
        frontends(v6),
        [
            "cluster IP [fd00:172::1]:80",
            "external IP [2001:db8::4]:80",
            "load-balancer IP [2001:db8::8]:80 for [2001:db8:1::/48]",
        ]
    );
}

#[test]
fn a_range_of_everyone_lifts_the_restriction_of_its_family_only() {
    let mut svc = service("ns/lb", "172.30.0.1");
    svc.cluster_ips.push(ip("fd00:172::1"));
    svc.load_balancer_ips = vec![ip("5.6.7.8"), ip("2001:db8::8")];
    svc.source_ranges = vec![net("203.0.113.0/24"), net("0.0.0.0/0"), net("2001:db8:1::/48")];
    let planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(svc)],
    );
    let ports = &planner.plan().service(&name("ns/lb")).unwrap().ports;
    let guarded = |port: &PortPlan| port.frontends.iter().any(|frontend| frontend.allowed.is_some());
    assert_eq!(ports.iter().map(guarded).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn the_gate_hides_external_ips_but_the_service_stays_external() {
    let mut svc = service("ns/ext", "172.30.0.1");
    svc.external_ips = vec![ip("1.2.3.4")];
    let mut options = options(Policy::iptables());
    options.allow_external_ips = false;
    let planner = planned(options, [add(svc)]);
    let port = port_of(&planner, "ns/ext");
    assert_eq!(frontends(port), ["cluster IP 172.30.0.1:80"]);
    assert!(port.external.is_some());
}

#[test]
fn the_last_of_two_ports_with_one_name_counts() {
    let mut svc = service("ns/svc", "172.30.0.1");
    svc.ports.push(port("http", 8080));
    let planner = planned(options(Policy::iptables()), [add(svc)]);
    let ports = &planner.plan().service(&name("ns/svc")).unwrap().ports;
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [8080]);
}

#[test]
fn a_contested_address_goes_to_the_lowest_name_and_back() {
    let claim = |text: &str, cluster_ip: &str| {
        let mut svc = service(text, cluster_ip);
        svc.external_ips = vec![ip("1.2.3.4")];
        svc
    };
    let mut planner = planned(options(Policy::iptables()), [add(claim("ns/b", "172.30.0.2"))]);
    assert_eq!(external_ips(&planner, "ns/b"), [ip("1.2.3.4")]);

    let update = planner.update([add(claim("ns/a", "172.30.0.1"))]);
    assert_eq!(
        update.replaced.len(),
        2,
        "the loser is planned again with the winner"
    );
    assert_eq!(external_ips(&planner, "ns/a"), [ip("1.2.3.4")]);
    assert!(external_ips(&planner, "ns/b").is_empty());
    let skipped: Vec<String> = planner.plan().skipped().iter().map(Skipped::to_string).collect();
    assert_eq!(
        skipped,
        ["Service ns/b: 1.2.3.4 port 80/tcp: ns/a:http has it already"]
    );

    planner.update([Event::Service(name("ns/a"), None)]);
    assert_eq!(external_ips(&planner, "ns/b"), [ip("1.2.3.4")]);
    assert!(planner.plan().skipped().is_empty());
}

fn told(planner: &Planner) -> Vec<String> {
    planner.plan().skipped().iter().map(Skipped::to_string).collect()
}

#[test]
fn nobody_takes_a_cluster_ip_by_an_external_ip() {
    let dns = service("kube-system/kube-dns", "172.30.0.10");
    let mut thief = service("aaa/x", "172.30.0.99");
    thief.created = Some(1);
    thief.external_ips = vec![ip("172.30.0.10"), ip("1.2.3.4")];
    thief.load_balancer_ips = vec![ip("172.30.0.10")];
    for events in [[dns.clone(), thief.clone()], [thief, dns]] {
        let planner = planned(
            options(Policy::nftables().without_localhost_node_ports()),
            events.map(add),
        );
        assert_eq!(
            frontends(port_of(&planner, "kube-system/kube-dns")),
            ["cluster IP 172.30.0.10:80"]
        );
        assert_eq!(
            frontends(port_of(&planner, "aaa/x")),
            ["cluster IP 172.30.0.99:80", "external IP 1.2.3.4:80"]
        );
        assert_eq!(
            told(&planner),
            ["Service aaa/x: 172.30.0.10 port 80/tcp: kube-system/kube-dns:http has it already"]
        );
    }
}

#[test]
fn the_kind_of_claim_decides_then_age_then_name() {
    let claim = |text: &str, kind: FrontendKind, created: Option<i64>| {
        let byte = text.as_bytes()[3];
        let mut svc = service(text, &format!("172.30.0.{byte}"));
        svc.created = created;
        match kind {
            FrontendKind::ClusterIp => svc.cluster_ips = vec![ip("1.2.3.4")],
            FrontendKind::LoadBalancerIp => svc.load_balancer_ips = vec![ip("1.2.3.4")],
            _ => svc.external_ips = vec![ip("1.2.3.4")],
        }
        svc
    };
    use FrontendKind::{ClusterIp, ExternalIp, LoadBalancerIp};
    // From the strongest to the weakest, though each has the higher name.
    let claims = [
        claim("ns/f", ClusterIp, None),
        claim("ns/e", LoadBalancerIp, Some(50)),
        claim("ns/d", LoadBalancerIp, Some(60)),
        claim("ns/c", ExternalIp, Some(70)),
        claim("ns/a", ExternalIp, None),
        claim("ns/b", ExternalIp, None),
    ];
    let key = FrontendKey::Address(ip("1.2.3.4"), 80, Protocol::Tcp);
    let mut planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        claims.iter().rev().cloned().map(add),
    );
    for (place, winner) in claims.iter().enumerate() {
        let owner = &planner.plan().port_at(&key).unwrap().name.service;
        assert_eq!(*owner, winner.name);
        let contests: Vec<Contest> = planner.plan().contests().collect();
        assert_eq!(contests.len(), claims.len() - place - 1);
        assert!(
            contests
                .iter()
                .all(|contest| contest.winner.service == winner.name)
        );
        planner.update([Event::Service(winner.name.clone(), None)]);
    }
    assert!(!planner.plan().is_service_address(ip("1.2.3.4")));
}

#[test]
fn only_the_contested_frontend_is_lost() {
    let rich = |text: &str, node_port: u16| {
        let mut svc = service(text, "172.30.0.1");
        svc.ports[0].node_port = Some(node_port);
        svc.external_ips = vec![ip(&format!("1.2.3.{}", node_port - 30000))];
        svc
    };
    let events = [add(rich("ns/a", 30001)), add(rich("ns/b", 30002))];
    let mut planner = planned(options(Policy::iptables().without_localhost_node_ports()), events);
    assert_eq!(
        frontends(port_of(&planner, "ns/b")),
        ["external IP 1.2.3.2:80", "node port node port 30002"]
    );
    // Now the node port too, and nothing else.
    planner.update([add(rich("ns/b", 30001))]);
    assert!(planner.plan().service(&name("ns/b")).unwrap().ports.is_empty());
    planner.update([Event::Service(name("ns/a"), None)]);
    assert_eq!(frontends(port_of(&planner, "ns/b")).len(), 3);
    planner.update([Event::Service(name("ns/b"), None)]);
    assert!(!planner.plan().is_cluster_ip(ip("172.30.0.1")));
}

#[test]
fn two_ports_of_a_service_with_one_number_are_told_apart_by_name() {
    let mut svc = service("ns/svc", "172.30.0.1");
    svc.ports = vec![port("b", 80), port("a", 80)];
    svc.ports[0].node_port = Some(30001);
    let planner = planned(
        options(Policy::iptables().without_localhost_node_ports()),
        [add(svc)],
    );
    let ports = &planner.plan().service(&name("ns/svc")).unwrap().ports;
    assert_eq!(frontends(&ports[0]), ["cluster IP 172.30.0.1:80"]);
    assert_eq!(frontends(&ports[1]), ["node port node port 30001"]);
    assert_eq!(
        told(&planner),
        ["Service ns/svc: 172.30.0.1 port 80/tcp: ns/svc:a has it already"]
    );
}

fn vast(ports: u16, addresses: u32, first: u32) -> Service {
    let mut svc = service("ns/vast", "172.30.0.1");
    svc.ports = (1..=ports)
        .map(|number| port(&format!("p{number}"), number))
        .collect();
    svc.external_ips = (first..first + addresses)
        .map(|n| std::net::IpAddr::from((0x0100_0000 + n).to_be_bytes()))
        .collect();
    svc
}

#[test]
fn a_service_cannot_ask_for_any_number_of_frontends() {
    let planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(vast(11, 10_000, 0))],
    );
    let ports = &planner.plan().service(&name("ns/vast")).unwrap().ports;
    let all: usize = ports.iter().map(|port| port.frontends.len()).sum();
    assert_eq!((ports.len(), all), (11, 100_011), "every port has its cluster IP");
    let told = told(&planner);
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("10000 more of its frontends are not served"),
        "{told:?}"
    );
}

/// A settlement that compares all claims with all others takes minutes.
#[test]
#[expect(clippy::disallowed_methods, reason = "the time it takes is what is tested")]
fn settling_is_not_quadratic() {
    let mut planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(vast(300, 300, 0))],
    );
    let begin = std::time::Instant::now();
    let update = planner.update([add(vast(300, 300, 1))]);
    let took = begin.elapsed();
    assert_eq!(update.replaced.len(), 1);
    assert!(took < std::time::Duration::from_secs(3), "{took:?}");
}

#[test]
fn an_event_plans_its_own_service_and_no_other() {
    let services = (1..=100).map(|n| add(service(&format!("ns/s{n}"), &format!("172.30.0.{n}"))));
    let mut planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        services,
    );
    let before = planner.plan().revision();
    let others: Vec<_> = planner.plan().services().cloned().collect();
    let update = planner.update([add_slice(slice("ns/s7", "x", vec![endpoint("10.0.0.1", "r")]))]);
    assert_eq!(update.replaced.len(), 1);
    assert_eq!(
        planner.plan().changed_since(before),
        Changed::Services(vec![&name("ns/s7")])
    );
    let kept = planner
        .plan()
        .services()
        .zip(&others)
        .filter(|(a, b)| std::sync::Arc::ptr_eq(a, b))
        .count();
    assert_eq!(kept, 99, "the plans of the others are the same values");
    assert_eq!(
        planner.update([add_slice(slice("ns/s7", "x", vec![endpoint("10.0.0.1", "r")]))]),
        Update::default()
    );
}

#[test]
fn a_relabelled_slice_moves_to_its_new_service() {
    let events = [
        add(service("ns/a", "172.30.0.1")),
        add(service("ns/b", "172.30.0.2")),
        add_slice(slice("ns/a", "x", vec![endpoint("10.0.0.1", "r")])),
    ];
    let mut planner = planned(options(Policy::nftables().without_localhost_node_ports()), events);
    let mut moved = slice("ns/a", "x", vec![endpoint("10.0.0.1", "r")]);
    moved.service = name("ns/b");
    planner.update([add_slice(moved)]);
    assert!(!port_of(&planner, "ns/a").has_endpoints);
    assert!(port_of(&planner, "ns/b").has_endpoints);
}

#[test]
fn node_port_addresses() {
    let all = NodePorts::All;
    let only = |list: &[&str]| NodePorts::Only(list.iter().map(|address| ip(address)).collect());
    let cases: &[(&[&str], NodePorts, NodePorts, bool)] = &[
        (&[], all.clone(), all.clone(), true),
        (&["10.20.30.0/24"], only(&["10.20.30.5"]), all.clone(), false),
        (&["0.0.0.0/0"], all.clone(), all.clone(), true),
        (
            &["2001:db8::/64", "::1/128"],
            all.clone(),
            only(&["2001:db8::1"]),
            true,
        ),
        (&["1.2.3.0/24", "0.0.0.0/0"], all.clone(), all.clone(), true),
        (
            &["::/0", "1.2.3.0/24", "2001:db8::1/128"],
            only(&["1.2.3.4"]),
            all.clone(),
            false,
        ),
        (&["9.9.9.0/24"], only(&[]), all.clone(), false),
        (&["127.0.2.0/28"], only(&[]), all.clone(), true),
        (&["64.0.0.0/2"], only(&["127.0.0.1"]), all.clone(), true),
        (&["primary"], only(&["192.168.0.2"]), all.clone(), false),
    ];
    let host = host(&[
        "127.0.0.1",
        "10.20.30.5",
        "1.2.3.4",
        "192.168.0.2",
        "::1",
        "2001:db8::1",
    ]);
    for (addresses, v4, v6, localhost) in cases {
        let mut options = options(Policy::iptables());
        options.node_port_addresses = addresses
            .iter()
            .map(|text| {
                if *text == "primary" {
                    NodePortAddress::Primary
                } else {
                    NodePortAddress::Cidr(net(text))
                }
            })
            .collect();
        let planner = planned(options, [set_node(node(None)), set_host(host.clone())]);
        let node = planner.plan().node();
        assert_eq!(&node.families.v4.node_ports, v4, "{addresses:?}");
        assert_eq!(&node.families.v6.node_ports, v6, "{addresses:?}");
        assert_eq!(node.families.v4.localhost_node_ports, *localhost, "{addresses:?}");
        assert!(!node.families.v6.localhost_node_ports);
    }
}

#[test]
fn the_local_detectors() {
    let with = |detect_local| {
        let mut options = options(Policy::nftables().without_localhost_node_ports());
        options.detect_local = detect_local;
        let mut node = node(None);
        node.pod_cidrs = vec![net("10.1.0.0/24"), net("10.2.0.0/24")];
        planned(options, [set_node(node)]).plan().node().families.clone()
    };
    let cidrs = with(DetectLocal::ClusterCidrs(vec![
        net("fd00::/64"),
        net("10.0.0.0/8"),
        net("11.0.0.0/8"),
    ]));
    assert_eq!(
        (cidrs.v4.detector, cidrs.v6.detector),
        (
            Detector::Cidr(net("10.0.0.0/8")),
            Detector::Cidr(net("fd00::/64"))
        )
    );
    let node = with(DetectLocal::NodeCidrs);
    assert_eq!(
        (node.v4.detector, node.v6.detector),
        (Detector::Cidr(net("10.1.0.0/24")), Detector::None)
    );
    assert_eq!(
        with(DetectLocal::Bridge("br0".into())).v6.detector,
        Detector::Bridge("br0".into())
    );
    assert_eq!(
        with(DetectLocal::InterfacePrefix("veth".into())).v4.detector,
        Detector::InterfacePrefix("veth".into())
    );
}

#[test]
fn the_tally_follows_the_changes() {
    let mut local = service("ns/local", "172.30.0.1");
    local.internal_policy = TrafficPolicy::Local;
    let mut planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [
            add(local),
            add_slice(slice("ns/local", "x", vec![endpoint("10.0.0.1", "r")])),
        ],
    );
    let v4 = |planner: &Planner| planner.plan().tally().families.v4;
    assert_eq!(
        (
            v4(&planner).ports,
            v4(&planner).endpoints,
            v4(&planner).no_local_internal
        ),
        (1, 1, 1)
    );
    planner.update([add_slice(slice(
        "ns/local",
        "x",
        vec![endpoint("10.0.0.1", "r L")],
    ))]);
    assert_eq!(v4(&planner).no_local_internal, 0);
    planner.update([Event::Service(name("ns/local"), None)]);
    assert_eq!(*planner.plan().tally(), Tally::default());
}

#[test]
fn service_networks_count_once_whoever_names_them() {
    let cidr = |name: &str, cidrs: Option<&[&str]>| {
        Event::ServiceCidr(
            name.into(),
            cidrs.map(|cidrs| cidrs.iter().map(|cidr| net(cidr)).collect()),
        )
    };
    let mut planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [
            cidr("a", Some(&["10.96.0.0/12", "fd00::/112"])),
            cidr("b", Some(&["10.96.0.0/12"])),
        ],
    );
    let v4 = |planner: &Planner| planner.plan().node().families.v4.service_cidrs.clone();
    assert_eq!(v4(&planner), [net("10.96.0.0/12")]);
    planner.update([cidr("b", None)]);
    assert_eq!(
        v4(&planner),
        [net("10.96.0.0/12")],
        "another object still names it"
    );
    planner.update([cidr("a", Some(&["192.0.0.0/8", "10.96.0.0/12"]))]);
    let node = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| ip(address)).collect();
        Event::Node(Some(std::sync::Arc::new(Node {
            addresses,
            ..Node::default()
        })))
    };
    planner.update([node(&["192.0.2.10"])]);
    assert_eq!(
        v4(&planner),
        [net("10.96.0.0/12")],
        "not only services live where the node does"
    );
    planner.update([cidr("a", None)]);
    assert!(v4(&planner).is_empty());
}
