//! A small cluster with everything that a service can have, chosen at random.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ferry_lab::netns::Proto;
use ferry_model::{
    DetectLocal, EndpointSlice, Event, Family, Host, Node, PlanOptions, Policy, Protocol, Service,
    ServiceName, ServiceOptions, ServicePort, ServiceType, SliceEndpoint, SliceName, SlicePort,
    TrafficPolicy,
};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

/// name, IPv4, IPv6: as the lab's routes choose them. The last two are pods of another node, and endpoints at times:
/// they may meet themselves here, from far away.
pub(super) const SENDERS: [(&str, &str, &str); 7] = [
    ("pod1", "10.244.1.2", "fd00:10:244:1::2"),
    ("pod2", "10.244.1.3", "fd00:10:244:1::3"),
    ("client", "192.0.2.100", "2001:db8:2::100"),
    ("outsider", "203.0.113.9", "2001:db8:113::9"),
    ("node", "192.0.2.10", "2001:db8:2::10"),
    ("rpod1", "10.244.2.2", "fd00:10:244:2::2"),
    ("rpod2", "10.244.2.3", "fd00:10:244:2::3"),
];

/// The host that a sender's packets leave from.
pub(super) fn host_of(sender: &str) -> &str {
    if is_remote_pod(sender) { "remote" } else { sender }
}

pub(super) fn is_remote_pod(sender: &str) -> bool {
    ["rpod1", "rpod2"].contains(&sender)
}

/// IPv4, IPv6, node
const ENDPOINTS: [(&str, &str, &str); 4] = [
    ("10.244.1.2", "fd00:10:244:1::2", "node-a"),
    ("10.244.1.3", "fd00:10:244:1::3", "node-a"),
    ("10.244.2.2", "fd00:10:244:2::2", "node-b"),
    ("10.244.2.3", "fd00:10:244:2::3", "node-b"),
];

const NODE: [&str; 8] = [
    "127.0.0.1",
    "::1",
    "192.0.2.10",
    "2001:db8:2::10",
    "198.51.100.10",
    "2001:db8:51::10",
    "10.244.1.1",
    "fd00:10:244:1::1",
];

const SERVICES: u8 = 4;
const PORTS: [u16; 2] = [80, 81];
/// Shared by all services, so that two may claim the same.
const OPEN_ADDRESSES: [&str; 4] = ["198.18.0.1", "198.18.0.2", "fd00:18::1", "fd00:18::2"];

pub(super) fn options(policy: Policy) -> Result<PlanOptions> {
    Ok(PlanOptions {
        node_name: "node-a".into(),
        policy,
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec!["10.244.0.0/16".parse()?, "fd00:10:244::/48".parse()?]),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    })
}

pub(super) fn node_events() -> Result<Vec<Event>> {
    let node = Node {
        addresses: vec!["192.0.2.10".parse()?, "2001:db8:2::10".parse()?],
        eligible: true,
        ..Node::default()
    };
    let addresses: BTreeSet<IpAddr> = NODE.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
    let cidrs = vec!["10.96.0.0/12".parse()?, "fd00:10:96::/112".parse()?];
    Ok(vec![
        Event::Node(Some(Arc::new(node))),
        Event::Host(Arc::new(Host { addresses })),
        Event::ServiceCidr("kubernetes".into(), Some(cidrs)),
    ])
}

pub(super) fn is_node_address(address: IpAddr) -> bool {
    NODE.contains(&address.to_string().as_str())
}

/// Whether that is an endpoint on another node.
pub(super) fn is_elsewhere(endpoint: IpAddr) -> bool {
    let text = endpoint.to_string();
    ENDPOINTS
        .iter()
        .any(|(v4, v6, node)| (text == *v4 || text == *v6) && *node != "node-a")
}

/// Whom an endpoint sees in place of a masqueraded client: the node's address on the way to it.
pub(super) fn masqueraded_for(endpoint: IpAddr) -> Option<IpAddr> {
    let text = endpoint.to_string();
    let (_, _, node) = ENDPOINTS.iter().find(|(v4, v6, _)| text == *v4 || text == *v6)?;
    let address = match (*node, endpoint.is_ipv6()) {
        ("node-a", false) => "10.244.1.1",
        ("node-a", true) => "fd00:10:244:1::1",
        (_, false) => "192.0.2.10",
        (_, true) => "2001:db8:2::10",
    };
    address.parse().ok()
}

/// What stands now, as far as packets can be aimed at it.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    node_ports: BTreeSet<u16>,
}

impl Cluster {
    /// Some services and slices appear, change or go.
    pub(super) fn change(&mut self, rng: &mut StdRng) -> Vec<Event> {
        let count = rng.random_range(1..=5);
        (0..count)
            .map(|_| {
                let i = rng.random_range(0..SERVICES);
                let gone = rng.random_bool(0.15);
                if rng.random_bool(0.4) {
                    let name = service_name(i);
                    Event::Service(name, (!gone).then(|| Arc::new(self.service(rng, i))))
                } else {
                    let family = if rng.random_bool(0.7) {
                        Family::V4
                    } else {
                        Family::V6
                    };
                    let name = slice_name(i, family, rng.random_range(0..2));
                    Event::Slice(
                        name.clone(),
                        (!gone).then(|| Arc::new(slice(rng, i, family, name))),
                    )
                }
            })
            .collect()
    }

    fn service(&mut self, rng: &mut StdRng, i: u8) -> Service {
        let kind = *[
            ServiceType::ClusterIp,
            ServiceType::NodePort,
            ServiceType::LoadBalancer,
        ]
        .choose(rng)
        .unwrap_or(&ServiceType::ClusterIp);
        let policy = |rng: &mut StdRng| {
            if rng.random_bool(0.3) {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            }
        };
        let ports = (0..rng.random_range(1..=2_usize)).map(|k| {
            let protocol = if rng.random_bool(0.3) {
                Protocol::Udp
            } else {
                Protocol::Tcp
            };
            let number = 30_000 + u16::from(i) * 10 + k as u16;
            let node_port = (kind != ServiceType::ClusterIp).then_some(number);
            self.node_ports.extend(node_port);
            ServicePort {
                name: format!("p{k}").into(),
                protocol,
                port: PORTS[k],
                node_port,
            }
        });
        let ports = ports.collect();
        let open = |rng: &mut StdRng| -> Vec<IpAddr> {
            let count = rng.random_range(0..=2);
            OPEN_ADDRESSES
                .choose_multiple(rng, count)
                .filter_map(|a| a.parse().ok())
                .collect()
        };
        let load_balancer_ips = if kind == ServiceType::LoadBalancer {
            open(rng)
        } else {
            Vec::new()
        };
        let mut external_ips = if rng.random_bool(0.4) {
            open(rng)
        } else {
            Vec::new()
        };
        // kube-proxy's modes do not agree on an address that is both
        external_ips.retain(|address| !load_balancer_ips.contains(address));
        let ranges = [
            "192.0.2.0/24",
            "203.0.113.0/24",
            "10.244.0.0/16",
            "2001:db8:2::/64",
        ];
        let ranges = if rng.random_bool(0.3) {
            ranges.choose_multiple(rng, 2).collect()
        } else {
            Vec::new()
        };
        let mut cluster_ips = vec![cluster_ip(i, Family::V4)];
        if rng.random_bool(0.6) {
            cluster_ips.push(cluster_ip(i, Family::V6));
        }
        Service {
            created: None,
            name: service_name(i),
            kind,
            cluster_ips,
            ports,
            external_ips,
            load_balancer_ips,
            source_ranges: ranges.into_iter().filter_map(|r| r.parse().ok()).collect(),
            internal_policy: policy(rng),
            external_policy: policy(rng),
            affinity: rng.random_bool(0.2).then_some(Duration::from_secs(60)),
            health_check_node_port: None,
            options: ServiceOptions::default(),
        }
    }

    /// Somewhere to aim at: mostly where a service is or was, sometimes just beside it.
    pub(super) fn destination(&self, rng: &mut StdRng) -> (IpAddr, u16, Proto) {
        let proto = if rng.random_bool(0.3) {
            Proto::Udp
        } else {
            Proto::Tcp
        };
        let family = if rng.random_bool(0.7) {
            Family::V4
        } else {
            Family::V6
        };
        let port = if rng.random_bool(0.05) {
            99
        } else {
            PORTS[rng.random_range(0..2)]
        };
        let node_ports: Vec<u16> = self.node_ports.iter().copied().collect();
        match rng.random_range(0..10) {
            0..=5 => (cluster_ip(rng.random_range(0..=SERVICES), family), port, proto),
            6..=7 => {
                let open = OPEN_ADDRESSES.choose(rng).and_then(|a| a.parse().ok());
                (open.unwrap_or_else(|| cluster_ip(0, family)), port, proto)
            }
            _ => {
                let node = if family == Family::V4 { NODE[2] } else { NODE[3] };
                let port = node_ports.choose(rng).copied().unwrap_or(30_000);
                (
                    node.parse().unwrap_or_else(|_| cluster_ip(0, family)),
                    port,
                    proto,
                )
            }
        }
    }
}

fn service_name(i: u8) -> ServiceName {
    ServiceName::new("random", &format!("service-{i}"))
}

fn slice_name(i: u8, family: Family, part: u8) -> SliceName {
    SliceName::new(
        "random",
        &format!("service-{i}-{}-{part}", family.as_str().to_lowercase()),
    )
}

fn cluster_ip(i: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 96, 7, i + 1]),
        Family::V6 => IpAddr::from([0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0x700 + u16::from(i) + 1]),
    }
}

fn slice(rng: &mut StdRng, i: u8, family: Family, name: SliceName) -> EndpointSlice {
    let port = |rng: &mut StdRng| *[8080, 8081, 9090].choose(rng).unwrap_or(&8080);
    let mut ports = Vec::new();
    for k in 0..2 {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            ports.push(SlicePort {
                name: format!("p{k}").into(),
                protocol,
                port: port(rng),
            });
        }
    }
    let count = *[0, 1, 1, 2, 3, 4].choose(rng).unwrap_or(&1);
    let endpoints = ENDPOINTS.choose_multiple(rng, count).copied().collect::<Vec<_>>();
    let endpoint = |(v4, v6, node): (&str, &str, &str)| {
        let text = if family == Family::V4 { v4 } else { v6 };
        let (ready, serving, terminating) = *[
            (true, true, false),
            (true, true, false),
            (false, true, true),
            (false, false, false),
        ]
        .choose(rng)
        .unwrap_or(&(true, true, false));
        let address = text.parse().ok()?;
        Some(SliceEndpoint {
            address,
            node: Some(node.into()),
            ready,
            serving,
            terminating,
            hints: None,
        })
    };
    let endpoints = endpoints.into_iter().filter_map(endpoint).collect();
    EndpointSlice {
        name,
        service: service_name(i),
        family,
        ports,
        endpoints,
    }
}
