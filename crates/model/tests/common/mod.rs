//! Small facts for tests.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::*;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

pub(crate) fn name(text: &str) -> ServiceName {
    let (namespace, name) = text.split_once('/').unwrap();
    ServiceName::new(namespace, name)
}

pub(crate) fn options(policy: Policy) -> PlanOptions {
    PlanOptions {
        node_name: "node-1".into(),
        policy,
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![net("10.0.0.0/8"), net("fd00:10::/32")]),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    }
}

pub(crate) fn service(text: &str, cluster_ip: &str) -> Service {
    Service {
        ports: vec![port("http", 80)],
        ..Service::new(name(text), vec![ip(cluster_ip)])
    }
}

pub(crate) fn port(name: &str, port: u16) -> ServicePort {
    ServicePort::new(name, Protocol::Tcp, port)
}

pub(crate) fn slice(service: &str, suffix: &str, endpoints: Vec<SliceEndpoint>) -> EndpointSlice {
    let service = name(service);
    let family = endpoints
        .first()
        .map_or(Family::V4, |endpoint| Family::of(endpoint.address));
    EndpointSlice {
        name: SliceName::new(service.namespace(), &format!("{}-{suffix}", service.name())),
        service,
        family,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints,
    }
}

/// An endpoint from a few words: `r` ready, `st` serving and terminating, `x` none of both, `L` on our node,
/// `z(a,b)` zone hints, `n(1,2)` node hints.
pub(crate) fn endpoint(address: &str, words: &str) -> SliceEndpoint {
    let hints = |prefix: &str| -> Box<[Arc<str>]> {
        let word = words
            .split(' ')
            .find_map(|word| word.strip_prefix(prefix)?.strip_suffix(')'));
        word.into_iter()
            .flat_map(|list| list.split(','))
            .map(Arc::from)
            .collect()
    };
    let has = |word: &str| words.split(' ').any(|w| w == word);
    SliceEndpoint {
        address: ip(address),
        node: Some(if has("L") {
            "node-1".into()
        } else {
            "elsewhere".into()
        }),
        ready: has("r"),
        serving: has("r") || has("st"),
        terminating: has("st"),
        hints: Some(Arc::new(Hints {
            zones: hints("z("),
            nodes: hints("n("),
        })),
    }
}

pub(crate) fn node(zone: Option<&str>) -> Node {
    Node {
        addresses: vec![ip("192.168.0.2")],
        pod_cidrs: vec![],
        zone: zone.map(Arc::from),
        eligible: true,
    }
}

pub(crate) fn host(addresses: &[&str]) -> Host {
    Host {
        addresses: addresses.iter().map(|address| ip(address)).collect(),
    }
}

pub(crate) fn add(service: Service) -> Event {
    Event::from(service)
}

pub(crate) fn add_slice(slice: EndpointSlice) -> Event {
    Event::from(slice)
}

pub(crate) fn set_node(node: Node) -> Event {
    Event::Node(Some(Arc::new(node)))
}

pub(crate) fn set_host(host: Host) -> Event {
    Event::Host(Arc::new(host))
}

pub(crate) fn planned(options: PlanOptions, events: impl IntoIterator<Item = Event>) -> Planner {
    let mut planner = Planner::new(options);
    planner.update(events);
    planner
}

/// `ip:port` of each endpoint, for short expectations.
pub(crate) fn addresses<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<String> {
    endpoints.map(|endpoint| endpoint.address().to_string()).collect()
}
