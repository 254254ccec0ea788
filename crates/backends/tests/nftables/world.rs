//! A small cluster to plan for, built by a few verbs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_model::*;
use ipnet::IpNet;

pub(crate) const NODE: &str = "node";

pub(crate) fn options() -> PlanOptions {
    PlanOptions {
        node_name: NODE.into(),
        policy: Policy::nftables().without_localhost_node_ports(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(nets(&["10.244.0.0/16", "fd00:244::/48"])),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    }
}

pub(crate) fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(crate) fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A planner that knows the node and the service networks.
pub(crate) fn planner(options: PlanOptions) -> Planner {
    let mut planner = Planner::new(options);
    planner.update([
        Event::Node(Some(Arc::new(Node {
            addresses: ips(&["192.0.2.10", "2001:db8::10"]),
            eligible: true,
            ..Node::default()
        }))),
        Event::ServiceCidr(
            "kubernetes".into(),
            Some(nets(&["10.96.0.0/16", "fd00:96::/108"])),
        ),
        Event::Host(Arc::new(Host {
            addresses: ips(&["127.0.0.1", "192.0.2.10", "::1", "2001:db8::10"])
                .into_iter()
                .collect(),
        })),
    ]);
    planner
}

/// A ClusterIP service with one TCP port `http`, 80.
pub(crate) fn service(name: &str, cluster_ip: &str) -> Service {
    Service {
        ports: vec![ServicePort::new("http", Protocol::Tcp, 80)],
        ..Service::new(ServiceName::new("ns", name), ips(&[cluster_ip]))
    }
}

pub(crate) fn set(service: Service) -> Event {
    Event::from(service)
}

pub(crate) fn remove(name: &str) -> Event {
    Event::Service(ServiceName::new("ns", name), None)
}

/// One endpoint of a slice: `10.244.1.2` is on this node if its third part is 1 (or the IPv6 group after the net is 1).
fn endpoint(address: IpAddr) -> SliceEndpoint {
    let here = match address {
        IpAddr::V4(address) => address.octets()[2] == 1,
        IpAddr::V6(address) => address.segments()[3] == 1,
    };
    let node = if here { NODE } else { "other" };
    SliceEndpoint::ready(address, Some(node.into()))
}

/// The endpoints of a service, all on port 8080, for every port of the service given by name and protocol.
pub(crate) fn endpoints_of(name: &str, ports: &[(&str, Protocol)], addresses: &[IpAddr]) -> Event {
    let family = addresses
        .first()
        .map_or(Family::V4, |address| Family::of(*address));
    let slice = EndpointSlice {
        name: SliceName::new("ns", &format!("{name}-{family}")),
        service: ServiceName::new("ns", name),
        family,
        ports: ports
            .iter()
            .map(|(port, protocol)| SlicePort {
                name: (*port).into(),
                protocol: *protocol,
                port: 8080,
            })
            .collect(),
        endpoints: addresses.iter().copied().map(endpoint).collect(),
    };
    Event::from(slice)
}

/// The endpoints of a service's port `http`.
pub(crate) fn endpoints(name: &str, addresses: &[&str]) -> Event {
    endpoints_of(name, &[("http", Protocol::Tcp)], &ips(addresses))
}

/// A world with every kind of service, in both families.
pub(crate) fn rich() -> Vec<Event> {
    [inside(), node_ports(), load_balancers(), policies(), ipv6()].concat()
}

fn node_port(service: Service, port: u16) -> Service {
    let ports = service.ports.iter().cloned().map(|p| ServicePort {
        node_port: Some(port),
        ..p
    });
    Service {
        kind: ServiceType::NodePort,
        ports: ports.collect(),
        ..service
    }
}

fn load_balancer(service: Service, address: &str) -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        load_balancer_ips: ips(&[address]),
        ..service
    }
}

fn ports(list: &[(&str, Protocol, u16)]) -> Vec<ServicePort> {
    list.iter()
        .map(|(name, protocol, port)| ServicePort::new(*name, *protocol, *port))
        .collect()
}

fn inside() -> Vec<Event> {
    vec![
        set(service("plain", "10.96.0.1")),
        endpoints("plain", &["10.244.1.2", "10.244.1.3", "10.244.2.2"]),
        set(Service {
            ports: ports(&[
                ("dns", Protocol::Udp, 53),
                ("dns-tcp", Protocol::Tcp, 53),
                ("sig", Protocol::Sctp, 99),
            ]),
            ..service("dns", "10.96.0.2")
        }),
        endpoints_of(
            "dns",
            &[
                ("dns", Protocol::Udp),
                ("dns-tcp", Protocol::Tcp),
                ("sig", Protocol::Sctp),
            ],
            &ips(&["10.244.1.2", "10.244.2.2"]),
        ),
    ]
}

fn node_ports() -> Vec<Event> {
    let local = TrafficPolicy::Local;
    vec![
        set(node_port(service("np", "10.96.0.3"), 30003)),
        endpoints("np", &["10.244.1.2", "10.244.2.2"]),
        set(node_port(
            Service {
                external_policy: local,
                ..service("np-local", "10.96.0.4")
            },
            30004,
        )),
        endpoints("np-local", &["10.244.1.2", "10.244.2.2"]),
        set(node_port(
            Service {
                external_policy: local,
                ..service("np-away", "10.96.0.5")
            },
            30005,
        )),
        endpoints("np-away", &["10.244.2.2"]),
    ]
}

fn load_balancers() -> Vec<Event> {
    let local = TrafficPolicy::Local;
    vec![
        set(load_balancer(
            Service {
                source_ranges: nets(&["192.0.2.0/24", "198.51.100.7/32", "192.0.2.128/25", "0.0.0.0/1"]),
                ..service("lb", "10.96.0.6")
            },
            "203.0.113.6",
        )),
        endpoints("lb", &["10.244.1.2"]),
        set(load_balancer(
            Service {
                source_ranges: nets(&["240.0.0.0/4"]),
                external_policy: local,
                affinity: Some(Duration::from_secs(600)),
                ..service("lb-sticky", "10.96.0.7")
            },
            "203.0.113.7",
        )),
        endpoints("lb-sticky", &["10.244.1.2", "10.244.2.2"]),
    ]
}

/// Policies, affinity, names of the greatest length, and no endpoint at all.
fn policies() -> Vec<Event> {
    let local = TrafficPolicy::Local;
    let long = "x".repeat(63);
    vec![
        set(Service {
            external_ips: ips(&["203.0.113.8"]),
            ..service("empty", "10.96.0.8")
        }),
        set(Service {
            internal_policy: local,
            ..service("inner", "10.96.0.9")
        }),
        endpoints("inner", &["10.244.1.2", "10.244.2.2"]),
        set(Service {
            internal_policy: local,
            ..service("inner-away", "10.96.0.10")
        }),
        endpoints("inner-away", &["10.244.2.2"]),
        set(Service {
            affinity: Some(Duration::from_secs(10800)),
            external_ips: ips(&["203.0.113.11"]),
            ..service("sticky", "10.96.0.11")
        }),
        endpoints("sticky", &["10.244.1.2", "10.244.1.3", "10.244.2.2"]),
        set(Service {
            ports: ports(&[(&long, Protocol::Tcp, 80)]),
            ..service(&long, "10.96.0.12")
        }),
        endpoints_of(&long, &[(&long, Protocol::Tcp)], &ips(&["10.244.2.2"])),
    ]
}

fn ipv6() -> Vec<Event> {
    let local = TrafficPolicy::Local;
    vec![
        set(Service {
            external_ips: ips(&["2001:db8:1::5"]),
            affinity: Some(Duration::from_secs(60)),
            ..service("six", "fd00:96::1")
        }),
        endpoints("six", &["fd00:244:0:1::2", "fd00:244:0:2::2"]),
        set(node_port(
            load_balancer(
                Service {
                    source_ranges: nets(&["2001:db8::/32", "ffff::/16"]),
                    external_policy: local,
                    ..service("six-lb", "fd00:96::2")
                },
                "2001:db8:1::6",
            ),
            30006,
        )),
        endpoints("six-lb", &["fd00:244:0:1::2", "fd00:244:0:2::2"]),
        set(service("six-empty", "fd00:96::3")),
    ]
}
