//! A big cluster as facts, without objects and a server.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::Result;
use ferry_model::{
    DetectLocal, EndpointSlice, Event, Family, Node, PlanOptions, Planner, Policy, Protocol, Service,
    ServiceName, ServicePort, SliceEndpoint, SliceName, SlicePort,
};

pub(crate) fn planner(policy: Policy) -> Result<Planner> {
    let cidr = "10.244.0.0/16".parse()?;
    Ok(Planner::new(PlanOptions {
        node_name: "node-a".into(),
        policy,
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![cidr]),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    }))
}

/// Strings that a reader of objects would share between them.
pub(crate) struct Words {
    http: Arc<str>,
    nodes: Vec<Arc<str>>,
}

impl Default for Words {
    fn default() -> Self {
        Words {
            http: "http".into(),
            nodes: (0..500).map(|n| format!("node-{n}").into()).collect(),
        }
    }
}

impl Words {
    /// The node, and all services with their slices.
    pub(crate) fn cluster(&self, services: u32, endpoints: u32) -> Vec<Event> {
        let node = Node {
            addresses: vec![IpAddr::from([192, 0, 2, 10])],
            eligible: true,
            ..Node::default()
        };
        let mut events = vec![Event::Node(Some(Arc::new(node)))];
        for i in 0..services {
            events.push(self.service(i));
            events.push(self.slice(i, endpoints, 0));
        }
        events
    }

    pub(crate) fn service(&self, i: u32) -> Event {
        let service = Service {
            ports: vec![ServicePort::new(self.http.clone(), Protocol::Tcp, 80)],
            ..Service::new(service_name(i), vec![IpAddr::V4(Ipv4Addr::from(0x0a60_0100 + i))])
        };
        Event::from(service)
    }

    /// The slice of a service whose last endpoint is another in every generation.
    pub(crate) fn slice(&self, i: u32, endpoints: u32, generation: u32) -> Event {
        let endpoint = |k: u32| {
            let moved = if k + 1 == endpoints {
                1 + generation % 97
            } else {
                0
            };
            SliceEndpoint::ready(
                IpAddr::V4(Ipv4Addr::from(0x0b00_0001 + i * 64 + k + moved * 0x0100_0000)),
                Some(Arc::clone(&self.nodes[((i + k) % 500) as usize])),
            )
        };
        let slice = EndpointSlice {
            name: SliceName::new("bench", &format!("service-{i:05}-slice")),
            service: service_name(i),
            family: Family::V4,
            ports: vec![SlicePort {
                name: self.http.clone(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: (0..endpoints).map(endpoint).collect(),
        };
        Event::from(slice)
    }
}

fn service_name(i: u32) -> ServiceName {
    ServiceName::new("bench", &format!("service-{i:05}"))
}
