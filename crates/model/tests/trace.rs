//! What happens to packets: the behaviour tables of kube-proxy's own tests.

#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use ferry_model::*;

const POD: &str = "10.0.0.2";
const NODE: &str = "192.168.0.2";
const OUTSIDE: &str = "203.0.113.2";
const BLOCKED: &str = "203.0.113.130";

/// `a b` for the endpoints reached (last bytes), ` m` behind them if masqueraded; or the verdict.
fn outcome(planner: &Planner, from: &str, to: &str) -> String {
    let (address, port) = to.rsplit_once(':').unwrap();
    let (port, protocol) = match port.split_once('/') {
        Some((port, "udp")) => (port, Protocol::Udp),
        _ => (port, Protocol::Tcp),
    };
    let local = [NODE, "127.0.0.1"].contains(&from);
    let packet = Packet {
        source: ip(from),
        origin: if local {
            Origin::Node
        } else {
            Origin::Network(None)
        },
        destination: ip(address),
        port: port.parse().unwrap(),
        protocol,
    };
    let outcome = trace(planner.plan(), &packet);
    assert!(!outcome.steps.is_empty(), "every decision has a reason");
    match outcome.action {
        Action::Forward { .. } => {
            let targets = outcome.targets;
            let masquerade = targets.iter().any(|target| target.masquerade);
            let reached: Vec<String> = targets
                .iter()
                .map(|target| target.address.ip().to_string())
                .collect();
            format!("{}{}", reached.join(" "), if masquerade { " m" } else { "" })
        }
        Action::Drop => "drop".into(),
        Action::Reject => "reject".into(),
        Action::NotOurs => "host".into(),
    }
}

fn check(planner: &Planner, table: &[(&str, &str, &str)]) {
    for (from, to, expected) in table {
        assert_eq!(outcome(planner, from, to), *expected, "{from} -> {to}");
    }
}

fn at_node() -> [Event; 2] {
    [
        set_node(node(None)),
        set_host(host(&["127.0.0.1", NODE, "192.168.99.11"])),
    ]
}

fn load_balancer(text: &str, cluster_ip: &str, lb_ip: &str, node_port: u16) -> Service {
    let mut service = service(text, cluster_ip);
    service.kind = ServiceType::LoadBalancer;
    service.load_balancer_ips = vec![ip(lb_ip)];
    service.ports[0].node_port = Some(node_port);
    service
}

fn both_modes(options_of: impl Fn(Policy) -> PlanOptions, events: &[Event], tests: impl Fn(&Planner)) {
    for policy in [Policy::iptables(), Policy::nftables()] {
        tests(&planned(
            options_of(policy),
            at_node().into_iter().chain(events.iter().cloned()),
        ));
    }
}

#[test]
fn without_endpoints_everything_is_rejected() {
    let mut svc = load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001);
    svc.external_ips = vec![ip("192.168.99.11")];
    both_modes(options, &[add(svc)], |planner| {
        check(
            planner,
            &[
                (POD, "172.30.0.41:80", "reject"),
                (OUTSIDE, "192.168.99.11:80", "reject"),
                (POD, "192.168.0.2:3001", "reject"),
                (OUTSIDE, "192.168.0.2:3001", "reject"),
                (POD, "1.2.3.4:80", "reject"),
                (OUTSIDE, "1.2.3.4:80", "reject"),
            ],
        );
    });
}

#[test]
fn the_node_s_own_traffic_to_an_empty_service_differs_by_mode() {
    let events = || {
        at_node()
            .into_iter()
            .chain([add(load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001))])
    };
    let iptables = planned(options(Policy::iptables()), events());
    let nftables = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        events(),
    );
    check(
        &iptables,
        &[
            (NODE, "1.2.3.4:80", "host"),
            (NODE, "192.168.0.2:3001", "reject"),
            (NODE, "172.30.0.41:80", "reject"),
        ],
    );
    check(
        &nftables,
        &[
            (NODE, "1.2.3.4:80", "reject"),
            (NODE, "192.168.0.2:3001", "reject"),
            (NODE, "172.30.0.41:80", "reject"),
        ],
    );
}

#[test]
fn source_ranges() {
    let mut svc = load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001);
    svc.load_balancer_ips.push(ip("5.6.7.8"));
    svc.source_ranges = vec![net("192.168.0.0/24"), net("203.0.113.0/25")];
    let pods = slice("ns/svc", "x", vec![endpoint("10.180.0.1", "r")]);
    both_modes(options, &[add(svc), add_slice(pods)], |planner| {
        check(
            planner,
            &[
                (POD, "172.30.0.41:80", "10.180.0.1"),
                (OUTSIDE, "192.168.0.2:3001", "10.180.0.1 m"),
                (BLOCKED, "192.168.0.2:3001", "10.180.0.1 m"),
                (OUTSIDE, "1.2.3.4:80", "10.180.0.1 m"),
                (BLOCKED, "1.2.3.4:80", "drop"),
                (POD, "5.6.7.8:80", "drop"),
                (NODE, "5.6.7.8:80", "10.180.0.1 m"),
                ("5.6.7.8", "5.6.7.8:80", "10.180.0.1 m"),
            ],
        );
    });
}

/// An endpoint here and one elsewhere.
fn pods(service: &str, byte: u8) -> Event {
    let endpoints = vec![
        endpoint(&format!("10.180.0.{byte}"), "r L"),
        endpoint(&format!("10.180.1.{byte}"), "r"),
    ];
    add_slice(slice(service, "x", endpoints))
}

#[test]
fn traffic_policies_and_masquerading() {
    let plain = load_balancer("ns/svc1", "172.30.0.41", "1.2.3.4", 3001);
    let mut external_local = load_balancer("ns/svc2", "172.30.0.42", "5.6.7.8", 3002);
    external_local.external_policy = TrafficPolicy::Local;
    let mut internal_local = load_balancer("ns/svc3", "172.30.0.43", "9.10.11.12", 3003);
    internal_local.internal_policy = TrafficPolicy::Local;
    let events = [
        add(plain),
        add(external_local),
        add(internal_local),
        pods("ns/svc1", 1),
        pods("ns/svc2", 2),
        pods("ns/svc3", 3),
    ];
    let (both1, both2, both3) = (
        "10.180.0.1 10.180.1.1",
        "10.180.0.2 10.180.1.2",
        "10.180.0.3 10.180.1.3",
    );
    let m = |endpoints: &str| format!("{endpoints} m");

    type Row<'a> = (&'a str, &'a str, String);
    let base: Vec<Row<'_>> = vec![
        (POD, "172.30.0.41:80", both1.into()),
        (POD, "172.30.0.42:80", both2.into()),
        (POD, "172.30.0.43:80", "10.180.0.3".into()),
        (POD, "192.168.0.2:3001", m(both1)),
        (POD, "192.168.0.2:3002", both2.into()),
        (POD, "192.168.0.2:3003", m(both3)),
        (POD, "1.2.3.4:80", m(both1)),
        (POD, "5.6.7.8:80", both2.into()),
        (POD, "9.10.11.12:80", m(both3)),
        (NODE, "172.30.0.41:80", m(both1)),
        (NODE, "172.30.0.42:80", m(both2)),
        (NODE, "172.30.0.43:80", m("10.180.0.3")),
        (NODE, "192.168.0.2:3001", m(both1)),
        (NODE, "192.168.0.2:3002", m(both2)),
        (NODE, "192.168.0.2:3003", m(both3)),
        ("127.0.0.1", "127.0.0.1:3001", m(both1)),
        ("127.0.0.1", "127.0.0.1:3002", m(both2)),
        ("127.0.0.1", "127.0.0.1:3003", m(both3)),
        (NODE, "1.2.3.4:80", m(both1)),
        (NODE, "5.6.7.8:80", m(both2)),
        (NODE, "9.10.11.12:80", m(both3)),
        (OUTSIDE, "172.30.0.41:80", m(both1)),
        (OUTSIDE, "172.30.0.42:80", m(both2)),
        (OUTSIDE, "172.30.0.43:80", m("10.180.0.3")),
        (OUTSIDE, "192.168.0.2:3001", m(both1)),
        (OUTSIDE, "192.168.0.2:3002", "10.180.0.2".into()),
        (OUTSIDE, "192.168.0.2:3003", m(both3)),
        (OUTSIDE, "1.2.3.4:80", m(both1)),
        (OUTSIDE, "5.6.7.8:80", "10.180.0.2".into()),
        (OUTSIDE, "9.10.11.12:80", m(both3)),
    ];
    let without_detector = |rows: &[Row<'static>]| -> Vec<Row<'static>> {
        let change = |(from, to, expected): &Row<'static>| match (*from, *to) {
            (NODE | OUTSIDE, to) if to.starts_with("172.30.") => {
                (*from, to, expected.trim_end_matches(" m").to_string())
            }
            (POD, "192.168.0.2:3002" | "5.6.7.8:80") => (*from, *to, "10.180.0.2".to_string()),
            _ => (*from, *to, expected.clone()),
        };
        rows.iter().map(change).collect()
    };
    let masquerade_all = |rows: &[Row<'static>]| -> Vec<Row<'static>> {
        let change = |(from, to, expected): &Row<'static>| {
            if to.starts_with("172.30.") {
                (*from, *to, format!("{} m", expected.trim_end_matches(" m")))
            } else {
                (*from, *to, expected.clone())
            }
        };
        rows.iter().map(change).collect()
    };
    let variant = |detector: bool, all: bool| {
        move |policy| PlanOptions {
            masquerade_all: all,
            detect_local: DetectLocal::ClusterCidrs(if detector { vec![net("10.0.0.0/8")] } else { vec![] }),
            ..options(policy)
        }
    };
    let run = |rows: &[Row<'_>], detector, all| {
        both_modes(variant(detector, all), &events, |planner| {
            for (from, to, expected) in rows {
                assert_eq!(
                    &outcome(planner, from, to),
                    expected,
                    "{from} -> {to} detector {detector} all {all}"
                );
            }
        });
    };
    run(&base, true, false);
    run(&without_detector(&base), false, false);
    run(&masquerade_all(&base), true, true);
    run(&masquerade_all(&without_detector(&base)), false, true);
}

#[test]
fn a_client_that_meets_itself_is_masqueraded() {
    let events = [
        add(service("ns/svc", "172.30.0.41")),
        add_slice(slice("ns/svc", "x", vec![endpoint("10.180.0.1", "r L")])),
    ];
    both_modes(options, &events, |planner| {
        check(
            planner,
            &[
                ("10.180.0.1", "172.30.0.41:80", "10.180.0.1 m"),
                ("10.180.0.9", "172.30.0.41:80", "10.180.0.1"),
            ],
        );
    });
}

#[test]
fn a_client_that_meets_itself_on_another_node_is_masqueraded_by_iptables_only() {
    let mut external = service("ns/external", "172.30.0.42");
    external.external_policy = TrafficPolicy::Local;
    external.external_ips = vec![ip("1.2.3.4")];
    let events = || {
        at_node().into_iter().chain([
            add(service("ns/svc", "172.30.0.41")),
            add_slice(slice("ns/svc", "x", vec![endpoint("10.180.1.1", "r")])),
            add(external.clone()),
            add_slice(slice("ns/external", "y", vec![endpoint("10.180.1.1", "r")])),
        ])
    };
    let modes = [
        (Policy::iptables(), "10.180.1.1 m"),
        (Policy::nftables().without_localhost_node_ports(), "10.180.1.1"),
        (Policy::ipvs(), "10.180.1.1"),
        // The relay comes between them anyway.
        (Policy::userspace(), "10.180.1.1 m"),
    ];
    for (policy, expected) in modes {
        let planner = planned(options(policy), events());
        for to in ["172.30.0.41:80", "1.2.3.4:80"] {
            assert_eq!(outcome(&planner, "10.180.1.1", to), expected, "{to} {policy:?}");
        }
    }
}

#[test]
fn behind_a_relay_nobody_sees_the_client() {
    let mut svc = load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001);
    svc.external_policy = TrafficPolicy::Local;
    let pods = slice("ns/svc", "x", vec![endpoint("10.180.0.1", "r L")]);
    let events = at_node().into_iter().chain([add(svc), add_slice(pods)]);
    let planner = planned(options(Policy::userspace()), events);
    for from in [POD, NODE, OUTSIDE] {
        for to in ["172.30.0.41:80", "1.2.3.4:80", "192.168.0.2:3001"] {
            assert_eq!(outcome(&planner, from, to), "10.180.0.1 m", "{from} -> {to}");
        }
    }
    let packet = Packet {
        source: ip(POD),
        origin: Origin::Network(None),
        destination: ip("172.30.0.41"),
        port: 80,
        protocol: Protocol::Tcp,
    };
    let steps = trace(planner.plan(), &packet).steps;
    assert_eq!(
        steps[1],
        "this node relays it: the endpoint sees the node's address"
    );
}

#[test]
fn the_node_s_own_address_is_refused_where_other_external_addresses_are_not() {
    let mut svc = service("ns/svc", "172.30.0.41");
    svc.external_ips = vec![ip("1.2.3.4"), ip("192.168.99.11")];
    let mut planner = planned(
        options(Policy::iptables()),
        at_node().into_iter().chain([add(svc)]),
    );
    let table = [(NODE, "1.2.3.4:80", "host"), (NODE, "192.168.99.11:80", "reject")];
    check(&planner, &table);
    // The host's addresses change: what they decide about changes with them.
    planner.update([set_host(host(&["127.0.0.1", NODE, "1.2.3.4"]))]);
    let table = [(NODE, "1.2.3.4:80", "reject"), (NODE, "192.168.99.11:80", "host")];
    check(&planner, &table);
}

#[test]
fn wrong_ports_and_unallocated_addresses() {
    let events = || {
        let cidr = Event::ServiceCidr("default".into(), Some(vec![net("172.30.0.0/16")]));
        at_node()
            .into_iter()
            .chain([cidr, add(service("ns/svc", "172.30.0.41"))])
    };
    let nftables = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        events(),
    );
    let iptables = planned(options(Policy::iptables()), events());
    check(
        &nftables,
        &[
            (POD, "172.30.0.41:443", "reject"),
            (POD, "172.30.0.41:80/udp", "reject"),
            (POD, "172.30.0.99:80", "drop"),
            (POD, "8.8.8.8:53", "host"),
        ],
    );
    check(
        &iptables,
        &[
            (POD, "172.30.0.41:443", "host"),
            (POD, "172.30.0.41:80/udp", "host"),
            (POD, "172.30.0.99:80", "host"),
        ],
    );
}

#[test]
fn local_policies_without_local_endpoints_drop() {
    let mut svc = load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001);
    svc.internal_policy = TrafficPolicy::Local;
    svc.external_policy = TrafficPolicy::Local;
    let pods = slice("ns/svc", "x", vec![endpoint("10.180.1.1", "r")]);
    both_modes(options, &[add(svc), add_slice(pods)], |planner| {
        check(
            planner,
            &[
                (POD, "172.30.0.41:80", "drop"),
                (OUTSIDE, "1.2.3.4:80", "drop"),
                (OUTSIDE, "192.168.0.2:3001", "drop"),
                (POD, "1.2.3.4:80", "10.180.1.1"),
                (NODE, "1.2.3.4:80", "10.180.1.1 m"),
            ],
        );
    });
}

#[test]
fn node_ports_answer_only_where_told() {
    let mut options = options(Policy::nftables().without_localhost_node_ports());
    options.node_port_addresses = vec![NodePortAddress::Primary];
    let events = [
        add(load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001)),
        add_slice(slice("ns/svc", "x", vec![endpoint("10.180.1.1", "r")])),
    ];
    let planner = planned(options, at_node().into_iter().chain(events));
    check(
        &planner,
        &[
            (OUTSIDE, "192.168.0.2:3001", "10.180.1.1 m"),
            (OUTSIDE, "192.168.99.11:3001", "host"),
            ("127.0.0.1", "127.0.0.1:3001", "host"),
        ],
    );
}

#[test]
fn node_ports_stay_where_they_were_when_the_node_s_addresses_vanish() {
    let mut options = options(Policy::nftables().without_localhost_node_ports());
    options.node_port_addresses = vec![NodePortAddress::Primary];
    options.detect_local = DetectLocal::NodeCidrs;
    let mut known = node(None);
    known.addresses = vec![ip(NODE), ip("2001:db8::1")];
    known.pod_cidrs = vec![net("10.0.0.0/8")];
    let hosts = host(&["127.0.0.1", NODE, "192.168.99.11", "2001:db8::1", "2001:db8::2"]);
    let mut planner = planned(options, [set_node(known.clone()), set_host(hosts)]);
    let before = planner.plan().node().clone();
    let mut one_family = known.clone();
    one_family.addresses.pop();
    let mut none = known.clone();
    none.addresses.clear();
    none.pod_cidrs.clear();
    for vanished in [one_family, none] {
        let update = planner.update([set_node(vanished)]);
        assert!(!update.node_changed);
        assert_eq!(*planner.plan().node(), before);
    }
    planner.update([set_host(host(&[])), Event::Node(None)]);
    assert_eq!(*planner.plan().node(), before, "nobody could look");
    // Another address is taken.
    known.addresses[0] = ip("192.168.99.11");
    planner.update([set_node(known)]);
    assert_eq!(
        planner.plan().node().family(Family::V4).node_ports,
        NodePorts::Only(vec![ip("192.168.99.11")])
    );
}

#[test]
fn an_external_ip_that_is_a_load_balancer_ip_too_is_guarded_by_nftables_only() {
    let mut svc = load_balancer("ns/svc", "172.30.0.41", "1.2.3.4", 3001);
    svc.external_ips = vec![ip("1.2.3.4")];
    svc.source_ranges = vec![net("203.0.113.0/25")];
    let pods = slice("ns/svc", "x", vec![endpoint("10.180.0.1", "r")]);
    let events = || {
        at_node()
            .into_iter()
            .chain([add(svc.clone()), add_slice(pods.clone())])
    };
    let nftables = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        events(),
    );
    let iptables = planned(options(Policy::iptables()), events());
    check(
        &nftables,
        &[
            (BLOCKED, "1.2.3.4:80", "drop"),
            (OUTSIDE, "1.2.3.4:80", "10.180.0.1 m"),
        ],
    );
    check(
        &iptables,
        &[
            (BLOCKED, "1.2.3.4:80", "10.180.0.1 m"),
            (OUTSIDE, "1.2.3.4:80", "10.180.0.1 m"),
        ],
    );
}
