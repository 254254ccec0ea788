//! Planning alone: facts in, plan out, no IO.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use ferry_model::{
    DetectLocal, EndpointSlice, Event, Family, Node, PlanOptions, Planner, Policy, Protocol, Service,
    ServiceName, ServiceOptions, ServicePort, ServiceType, SliceEndpoint, SliceName, SlicePort,
    TrafficPolicy,
};
use stats_alloc::Region;

use crate::table::{Table, median, quantile, seconds};

const CHANGES: u32 = 5000;

pub(crate) fn bench(services: u32, endpoints: u32) -> Result<Table> {
    let head = [
        "services",
        "plan all",
        "live memory",
        "re-plan one: median",
        "99 %",
        "allocations",
        "bytes",
    ];
    let mut table = Table::new(&head);
    for services in [services / 10, services, services * 5] {
        table.row(one(services, endpoints)?);
    }
    Ok(table)
}

fn one(services: u32, endpoints: u32) -> Result<Vec<String>> {
    let cidr = "10.244.0.0/16".parse()?;
    let mut planner = Planner::new(PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::nftables(false),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![cidr]),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    });
    let memory = Region::new(crate::ALLOCATOR);
    let words = Words::default();
    let node = Node {
        addresses: vec![IpAddr::from([192, 0, 2, 10])],
        eligible: true,
        ..Node::default()
    };
    let mut events = vec![Event::Node(Some(Arc::new(node)))];
    for i in 0..services {
        events.push(words.service(i));
        events.push(words.slice(i, endpoints, 0));
    }
    let begin = Instant::now();
    planner.update(events);
    let whole = begin.elapsed().as_secs_f64();
    let live = memory.change();
    let live = live.bytes_allocated as f64 + live.bytes_reallocated as f64 - live.bytes_deallocated as f64;

    let mut times = Vec::new();
    let (mut allocations, mut bytes) = (Vec::new(), Vec::new());
    for n in 0..CHANGES {
        // a stride that visits services far apart: no cache is warm
        let event = words.slice((n.wrapping_mul(7919)) % services, endpoints, n + 1);
        let region = Region::new(crate::ALLOCATOR);
        let begin = Instant::now();
        let update = planner.update([event]);
        times.push(begin.elapsed().as_secs_f64());
        let change = region.change();
        drop(update);
        allocations.push((change.allocations + change.reallocations) as f64);
        bytes.push(change.bytes_allocated as f64);
    }
    Ok(vec![
        services.to_string(),
        seconds(whole),
        format!("{:.1} MB", live / 1e6),
        seconds(median(&mut times)),
        seconds(quantile(&mut times, 0.99)),
        format!("{:.0}", median(&mut allocations)),
        format!("{:.0}", median(&mut bytes)),
    ])
}

/// Strings that a reader of objects would share between them.
struct Words {
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
    fn service(&self, i: u32) -> Event {
        let name = service_name(i);
        let service = Service {
            name: name.clone(),
            kind: ServiceType::ClusterIp,
            cluster_ips: vec![IpAddr::V4(Ipv4Addr::from(0x0a60_0100 + i))],
            ports: vec![ServicePort {
                name: self.http.clone(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity: None,
            health_check_node_port: None,
            options: ServiceOptions::default(),
        };
        Event::Service(name, Some(Arc::new(service)))
    }

    /// The slice of a service whose last endpoint is another in every generation.
    fn slice(&self, i: u32, endpoints: u32, generation: u32) -> Event {
        let name = SliceName::new("bench", &format!("service-{i:05}-slice"));
        let endpoint = |k: u32| {
            let moved = if k + 1 == endpoints {
                1 + generation % 97
            } else {
                0
            };
            SliceEndpoint {
                address: IpAddr::V4(Ipv4Addr::from(0x0b00_0001 + i * 64 + k + moved * 0x0100_0000)),
                node: Some(Arc::clone(&self.nodes[((i + k) % 500) as usize])),
                ready: true,
                serving: true,
                terminating: false,
                zone_hints: Box::default(),
                node_hints: Box::default(),
            }
        };
        let slice = EndpointSlice {
            name: name.clone(),
            service: service_name(i),
            family: Family::V4,
            ports: vec![SlicePort {
                name: self.http.clone(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: (0..endpoints).map(endpoint).collect(),
        };
        Event::Slice(name, Some(Arc::new(slice)))
    }
}

fn service_name(i: u32) -> ServiceName {
    ServiceName::new("bench", &format!("service-{i:05}"))
}
