//! Which UDP flows go when a service changes.

#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use ferry_model::*;

fn dns() -> Service {
    let mut service = service("ns/dns", "172.30.0.10");
    service.ports = vec![ServicePort {
        name: "dns".into(),
        protocol: Protocol::Udp,
        port: 53,
        node_port: Some(30053),
    }];
    service
}

fn pods(endpoints: Vec<SliceEndpoint>) -> Event {
    let mut slice = slice("ns/dns", "x", endpoints);
    slice.ports = vec![SlicePort {
        name: "dns".into(),
        protocol: Protocol::Udp,
        port: 5353,
    }];
    add_slice(slice)
}

const VIP: (&str, u16) = ("172.30.0.10", 53);

fn vip() -> FrontendKey {
    FrontendKey::Address(ip(VIP.0), VIP.1, Protocol::Udp)
}

fn node_port() -> FrontendKey {
    FrontendKey::NodePort(Family::V4, 30053, Protocol::Udp)
}

/// The flows that go when `change` happens after `before`.
fn after(before: Vec<Event>, change: Event) -> Vec<StaleFlows> {
    let mut planner = planned(options(Policy::nftables().without_localhost_node_ports()), before);
    let update = planner.update([change]);
    update
        .replaced
        .iter()
        .flat_map(|r| stale_flows(r.old.as_deref(), r.new.as_deref()))
        .collect()
}

fn both(which: Which) -> Vec<StaleFlows> {
    [vip(), node_port()]
        .map(|frontend| StaleFlows {
            frontend,
            which: which.clone(),
        })
        .into()
}

fn at(address: &str) -> std::net::SocketAddr {
    format!("{address}:5353").parse().unwrap()
}

#[test]
fn an_endpoint_that_went_takes_its_flows() {
    let before = vec![
        add(dns()),
        pods(vec![endpoint("10.0.0.1", "r"), endpoint("10.0.0.2", "r")]),
    ];
    assert_eq!(
        after(before, pods(vec![endpoint("10.0.0.2", "r")])),
        both(Which::To(at("10.0.0.1")))
    );
}

#[test]
fn a_terminating_endpoint_keeps_its_flows() {
    let before = vec![
        add(dns()),
        pods(vec![endpoint("10.0.0.1", "r"), endpoint("10.0.0.2", "r")]),
    ];
    assert_eq!(
        after(
            before,
            pods(vec![endpoint("10.0.0.1", "st"), endpoint("10.0.0.2", "r")])
        ),
        []
    );
}

#[test]
fn the_first_endpoint_ends_the_flows_that_found_none() {
    let gained = after(vec![add(dns())], pods(vec![endpoint("10.0.0.1", "r")]));
    assert_eq!(gained, both(Which::NotTo(vec![at("10.0.0.1")])));
}

#[test]
fn the_last_endpoint_and_a_deleted_service_take_all_flows() {
    let before = || vec![add(dns()), pods(vec![endpoint("10.0.0.1", "r")])];
    assert_eq!(after(before(), pods(vec![])), both(Which::All));
    assert_eq!(
        after(before(), Event::Service(name("ns/dns"), None)),
        both(Which::All)
    );
}

#[test]
fn a_frontend_that_went_takes_its_flows_only() {
    let mut without = dns();
    without.ports[0].node_port = None;
    let before = vec![add(dns()), pods(vec![endpoint("10.0.0.1", "r")])];
    assert_eq!(
        after(before, add(without)),
        [StaleFlows {
            frontend: node_port(),
            which: Which::All
        }]
    );
}

#[test]
fn tcp_is_never_touched() {
    let before = vec![
        add(service("ns/web", "172.30.0.1")),
        add_slice(slice("ns/web", "x", vec![endpoint("10.0.0.1", "r")])),
    ];
    assert_eq!(after(before, add_slice(slice("ns/web", "x", vec![]))), []);
}

#[test]
fn all_flows_judged_at_once() {
    let events = [
        set_host(host(&["192.168.0.2"])),
        add(dns()),
        pods(vec![
            endpoint("10.0.0.1", "r"),
            endpoint("10.0.0.2", "st"),
            endpoint("10.0.0.3", "x"),
        ]),
    ];
    let planner = planned(options(Policy::nftables().without_localhost_node_ports()), events);
    let frontends = UdpFrontends::of(planner.plan(), Family::V4);
    let stale = |destination: &str, responder: &str| {
        frontends.is_stale(&UdpFlow {
            destination: destination.parse().unwrap(),
            responder: responder.parse().unwrap(),
        })
    };
    assert!(!stale("172.30.0.10:53", "10.0.0.1:5353"));
    assert!(
        !stale("172.30.0.10:53", "10.0.0.2:5353"),
        "terminating but serving"
    );
    assert!(
        stale("172.30.0.10:53", "10.0.0.3:5353"),
        "neither ready nor serving"
    );
    assert!(
        stale("172.30.0.10:53", "10.0.0.1:53"),
        "an old port of the endpoint"
    );
    assert!(stale("172.30.0.10:53", "172.30.0.10:53"), "never translated");
    assert!(!stale("172.30.0.10:54", "10.0.0.9:5353"), "another port");
    assert!(stale("192.168.0.2:30053", "10.0.0.9:5353"));
    assert!(
        !stale("8.8.8.8:30053", "8.8.8.8:30053"),
        "not one of our addresses"
    );
}

/// kube-proxy leaves these alone; a client that is refused is better off than one that talks to a dead pod.
#[test]
fn a_service_without_endpoints_has_no_flows_to_keep() {
    let flow = |responder: &str| UdpFlow {
        destination: "172.30.0.10:53".parse().unwrap(),
        responder: responder.parse().unwrap(),
    };
    let planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(dns())],
    );
    let frontends = UdpFrontends::of(planner.plan(), Family::V4);
    assert!(frontends.is_stale(&flow("10.0.0.1:5353")), "judged at the start");

    let before = vec![add(dns()), pods(vec![endpoint("10.0.0.1", "r")])];
    let stale = after(before, pods(vec![]));
    assert!(
        Doomed::of(&stale, &[]).includes(&flow("10.0.0.1:5353")),
        "judged by the change"
    );
}

#[test]
fn many_stale_flows_are_found_by_their_destination() {
    let to = |frontend, which| StaleFlows { frontend, which };
    let stale = [
        to(vip(), Which::To(at("10.0.0.1"))),
        to(node_port(), Which::NotTo(vec![at("10.0.0.2")])),
    ];
    let doomed = Doomed::of(&stale, &[ip("192.168.0.2")]);
    let includes = |destination: &str, responder: &str| {
        doomed.includes(&UdpFlow {
            destination: destination.parse().unwrap(),
            responder: at(responder),
        })
    };
    assert!(includes("172.30.0.10:53", "10.0.0.1"));
    assert!(!includes("172.30.0.10:53", "10.0.0.2"));
    assert!(includes("192.168.0.2:30053", "10.0.0.1"));
    assert!(!includes("192.168.0.2:30053", "10.0.0.2"));
    assert!(
        !includes("192.168.0.3:30053", "10.0.0.1"),
        "not one of our addresses"
    );
}
