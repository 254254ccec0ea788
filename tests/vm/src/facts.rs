//! Small clusters, as facts.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::*;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A planner for the lab's node.
pub(crate) fn planner() -> Planner {
    let mut planner = Planner::new(PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::ipvs(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:10:244::/48".parse().unwrap(),
        ]),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    });
    let node = Node {
        addresses: vec![ip("192.0.2.10"), ip("2001:db8:2::10")],
        ..Node::default()
    };
    planner.update([Event::Node(Some(Arc::new(node)))]);
    planner
}

pub(crate) fn service(name: &str, cluster_ip: &str, protocol: Protocol) -> Service {
    Service {
        ports: vec![ServicePort::new("p", protocol, 80)],
        ..Service::new(ServiceName::new("ns", name), vec![ip(cluster_ip)])
    }
}

pub(crate) fn put(service: &Service) -> Event {
    Event::from(service.clone())
}

pub(crate) fn gone(service: &Service) -> Event {
    Event::Service(service.name.clone(), None)
}

/// The service's endpoints, all ready, at port 8080.
pub(crate) fn endpoints(service: &Service, addresses: &[&str]) -> Event {
    let endpoint = |address: &&str| {
        let here = address.contains("10.244.1.");
        let node = if here { "node-a" } else { "node-b" };
        SliceEndpoint::ready(ip(address), Some(node.into()))
    };
    let slice = EndpointSlice {
        name: SliceName::new("ns", service.name.name()),
        service: service.name.clone(),
        family: Family::of(service.cluster_ips[0]),
        ports: vec![SlicePort {
            name: "p".into(),
            protocol: service.ports[0].protocol,
            port: 8080,
        }],
        endpoints: addresses.iter().map(endpoint).collect(),
    };
    Event::from(slice)
}
