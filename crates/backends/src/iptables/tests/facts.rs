//! Small facts.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::*;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn options() -> PlanOptions {
    PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::iptables(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![
            "10.0.0.0/8".parse().unwrap(),
            "fd00:10::/32".parse().unwrap(),
        ]),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    }
}

pub(super) fn planner() -> Planner {
    let mut planner = Planner::new(options());
    let node = Node {
        addresses: vec![ip("192.168.0.2"), ip("2001:db8::1")],
        pod_cidrs: vec![],
        zone: None,
        eligible: true,
    };
    let addresses = ["127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1"]
        .map(ip)
        .into();
    planner.update([
        Event::Node(Some(Arc::new(node))),
        Event::Host(Arc::new(Host { addresses })),
    ]);
    planner
}

/// A ClusterIP service with one port.
pub(super) fn service(namespace: &str, name: &str, cluster_ip: &str, port: &str, number: u16) -> Service {
    Service {
        ports: vec![ServicePort::new(port, Protocol::Tcp, number)],
        ..Service::new(ServiceName::new(namespace, name), vec![ip(cluster_ip)])
    }
}

/// Ready endpoints for the first port of a service; those after `local` are elsewhere.
pub(super) fn slice(of: &Service, addresses: &[&str], port: u16, local: usize) -> EndpointSlice {
    let endpoint = |(at, address): (usize, &&str)| {
        let node = if at < local { "node-a" } else { "node-b" };
        SliceEndpoint::ready(ip(address), Some(node.into()))
    };
    EndpointSlice {
        name: SliceName::new(of.name.namespace(), of.name.name()),
        service: of.name.clone(),
        family: Family::of(of.cluster_ips[0]),
        ports: vec![SlicePort {
            name: of.ports[0].name.clone(),
            protocol: of.ports[0].protocol,
            port,
        }],
        endpoints: addresses.iter().enumerate().map(endpoint).collect(),
    }
}

pub(super) fn add(service: Service) -> Event {
    Event::from(service)
}

pub(super) fn add_slice(slice: EndpointSlice) -> Event {
    Event::from(slice)
}
