//! Flows summed up by who talks to whom: bounded, whatever the kernel remembers.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use ferry_host::conntrack::{Counted, Flow};
use ferry_model::{Family, FrontendKey, Plan, Protocol};

use super::report::{FlowRate, FlowRow};

/// Pairs of client and endpoint that are told apart; flows between others are only counted.
pub(super) const ROWS: usize = 10_000;

/// Which flows are looked at.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Those whose destination was translated: others are no service's.
    Translated,
    /// Those to these.
    Frontends(HashSet<FrontendKey>),
}

impl Wanted {
    pub(super) fn new(frontends: Option<&[FrontendKey]>) -> Self {
        match frontends {
            None => Self::Translated,
            Some(frontends) => Self::Frontends(frontends.iter().copied().collect()),
        }
    }

    fn includes(&self, flow: &Flow) -> bool {
        match self {
            Self::Translated => flow.destination != flow.responder,
            Self::Frontends(keys) => {
                keys_of(flow).is_some_and(|both| both.iter().any(|key| keys.contains(key)))
            }
        }
    }
}

/// As what a flow's destination can be known: an address and port, or a node port.
fn keys_of(flow: &Flow) -> Option<[FrontendKey; 2]> {
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.number() == flow.protocol)?;
    let (ip, port) = (flow.destination.ip(), flow.destination.port());
    Some([
        FrontendKey::Address(ip, port, protocol),
        FrontendKey::NodePort(Family::of(ip), port, protocol),
    ])
}

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair {
    protocol: u8,
    client: IpAddr,
    destination: SocketAddr,
    endpoint: SocketAddr,
}

impl Pair {
    fn of(flow: &Flow) -> Self {
        Self {
            protocol: flow.protocol,
            client: flow.client.ip(),
            destination: flow.destination,
            endpoint: flow.responder,
        }
    }
}

/// What is known of the flows of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    flows: u64,
    began: u64,
    bytes_to: u64,
    bytes_back: u64,
    /// Of flows that ended.
    ended_to: u64,
    ended_back: u64,
}

/// The table at a moment, and what happened up to it.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pairs: HashMap<Pair, Sum>,
    left_out: u64,
}

impl Sample {
    fn sum(&mut self, wanted: &Wanted, flow: &Flow) -> Option<&mut Sum> {
        if !wanted.includes(flow) {
            return None;
        }
        let pair = Pair::of(flow);
        if self.pairs.len() >= ROWS && !self.pairs.contains_key(&pair) {
            self.left_out += 1;
            return None;
        }
        Some(self.pairs.entry(pair).or_default())
    }

    pub(super) fn add(&mut self, wanted: &Wanted, flow: &Flow, counted: Option<Counted>) {
        if let Some(sum) = self.sum(wanted, flow) {
            let counted = counted.unwrap_or_default();
            sum.flows += 1;
            sum.bytes_to += counted.bytes_to;
            sum.bytes_back += counted.bytes_back;
        }
    }

    pub(super) fn began(&mut self, wanted: &Wanted, flow: &Flow) {
        if let Some(sum) = self.sum(wanted, flow) {
            sum.began += 1;
        }
    }

    pub(super) fn ended(&mut self, wanted: &Wanted, flow: &Flow, counted: Option<Counted>) {
        if let Some(sum) = self.sum(wanted, flow) {
            let counted = counted.unwrap_or_default();
            sum.ended_to += counted.bytes_to;
            sum.ended_back += counted.bytes_back;
        }
    }
}

/// Rows with names, the busiest first; the flows that belong to no service; and those that were left out.
pub(super) fn rows(
    first: &Sample,
    last: Option<&Sample>,
    seconds: f64,
    is_accounted: bool,
    plan: &Plan,
) -> (Vec<FlowRow>, u64, u64) {
    let now = last.unwrap_or(first);
    let (mut rows, mut others) = (Vec::new(), 0);
    for (pair, sum) in &now.pairs {
        let Some((service, frontend)) = frontend(pair, plan) else {
            others += sum.flows;
            continue;
        };
        let was = first.pairs.get(pair).copied().unwrap_or_default();
        let rate = last.map(|_| FlowRate {
            new: sum.began as f64 / seconds,
            bytes_to: (sum.bytes_to + sum.ended_to).saturating_sub(was.bytes_to) as f64 / seconds,
            bytes_back: (sum.bytes_back + sum.ended_back).saturating_sub(was.bytes_back) as f64 / seconds,
        });
        rows.push(FlowRow {
            service,
            frontend,
            client: client(pair.client, plan),
            endpoint: pair.endpoint,
            flows: sum.flows,
            bytes: is_accounted.then_some((sum.bytes_to, sum.bytes_back)),
            rate,
        });
    }
    let weight = |row: &FlowRow| match (&row.rate, row.bytes) {
        (Some(rate), _) => rate.bytes_to + rate.bytes_back + rate.new,
        (None, Some((to, back))) => (to + back) as f64,
        (None, None) => row.flows as f64,
    };
    rows.sort_by(|a, b| {
        weight(b)
            .total_cmp(&weight(a))
            .then_with(|| (&a.service, &a.client, a.endpoint).cmp(&(&b.service, &b.client, b.endpoint)))
    });
    (rows, others, now.left_out)
}

/// The service port that a destination belongs to, and what it is to it.
fn frontend(pair: &Pair, plan: &Plan) -> Option<(String, String)> {
    let flow_keys = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.number() == pair.protocol)
        .map(|protocol| {
            let (ip, port) = (pair.destination.ip(), pair.destination.port());
            let node_port = FrontendKey::NodePort(Family::of(ip), port, protocol);
            [FrontendKey::Address(ip, port, protocol), node_port]
        })?;
    let is_own = |ip: IpAddr| plan.node().family(Family::of(ip)).has(ip);
    let (port, key) = flow_keys.iter().find_map(|key| {
        let port = plan.port_at(key)?;
        (key.address().is_some() || is_own(pair.destination.ip())).then_some((port, key))
    })?;
    let at = match key {
        FrontendKey::Address(..) => key.to_string(),
        FrontendKey::NodePort(..) => format!("{key} at {}", pair.destination.ip()),
    };
    Some((port.name.to_string(), format!("{at}/{}", port.protocol())))
}

fn client(address: IpAddr, plan: &Plan) -> String {
    if plan.node().family(Family::of(address)).has(address) {
        format!("this node ({address})")
    } else {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::{
        DetectLocal, EndpointSlice, PlanOptions, Planner, Policy, Service, ServiceName, ServicePort,
        SliceEndpoint, SliceName, SlicePort,
    };

    use super::*;

    fn planner() -> Planner {
        let mut planner = Planner::new(PlanOptions {
            node_name: "n".into(),
            policy: Policy::nftables(),
            masquerade_all: false,
            detect_local: DetectLocal::ClusterCidrs(Vec::new()),
            node_port_addresses: Vec::new(),
            bind_address: None,
            allow_external_ips: true,
        });
        let name = ServiceName::new("shop", "web");
        let service = Service {
            ports: vec![ServicePort::new("http", Protocol::Tcp, 80)],
            ..Service::new(name.clone(), vec!["10.96.0.1".parse().unwrap()])
        };
        let slice = EndpointSlice {
            name: SliceName::new("shop", "web-1"),
            service: name,
            family: Family::V4,
            ports: vec![SlicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: vec![SliceEndpoint::ready("10.244.0.1".parse().unwrap(), None)],
        };
        planner.update([service.into(), slice.into()]);
        planner
    }

    fn flow(client: &str, destination: &str, endpoint: &str) -> Flow {
        let client: SocketAddr = client.parse().unwrap();
        Flow::observed(6, client, destination.parse().unwrap(), endpoint.parse().unwrap())
    }

    fn carried(bytes_to: u64, bytes_back: u64) -> Option<Counted> {
        Some(Counted {
            bytes_to,
            bytes_back,
            ..Counted::default()
        })
    }

    #[test]
    fn a_flow_that_ends_between_two_looks_counts_with_all_that_it_carried() {
        let (wanted, planner) = (Wanted::new(None), planner());
        let web = |port: u16| flow(&format!("10.9.0.1:{port}"), "10.96.0.1:80", "10.244.0.1:8080");
        let (mut first, mut last) = (Sample::default(), Sample::default());
        first.add(&wanted, &web(1), carried(100, 1000));
        first.add(&wanted, &web(2), carried(10, 10));
        last.ended(&wanted, &web(2), carried(30, 50));
        last.began(&wanted, &web(3));
        last.ended(&wanted, &web(3), carried(5, 5));
        last.add(&wanted, &web(1), carried(300, 1000));
        last.add(
            &wanted,
            &flow("10.9.0.1:9", "192.0.2.1:443", "198.51.100.1:443"),
            None,
        );
        last.add(
            &wanted,
            &flow("10.9.0.1:9", "192.0.2.1:443", "192.0.2.1:443"),
            None,
        );
        let (rows, others, left_out) = rows(&first, Some(&last), 2.0, true, planner.plan());
        assert_eq!((rows.len(), others, left_out), (1, 1, 0));
        let row = &rows[0];
        assert_eq!(
            (row.service.as_str(), row.frontend.as_str()),
            ("shop/web:http", "10.96.0.1:80/tcp")
        );
        assert_eq!(
            (row.client.as_str(), row.flows, row.bytes),
            ("10.9.0.1", 1, Some((300, 1000)))
        );
        let rate = row.rate.as_ref().unwrap();
        // 200 of the first, 20 of the second, 5 of the third; in two seconds.
        assert_eq!((rate.new, rate.bytes_to, rate.bytes_back), (0.5, 112.5, 22.5));
    }

    #[test]
    fn a_million_flows_take_no_more_room_than_ten_thousand() {
        let (wanted, mut sample) = (Wanted::new(None), Sample::default());
        for n in 0..30_000_u32 {
            let client = SocketAddr::new(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), 1);
            let flow = Flow::observed(
                6,
                client,
                ([10, 96, 0, 1], 80).into(),
                ([10, 244, 0, 1], 80).into(),
            );
            sample.add(&wanted, &flow, None);
        }
        assert_eq!((sample.pairs.len(), sample.left_out), (ROWS, 20_000));
        let keys = [FrontendKey::NodePort(Family::V4, 30080, Protocol::Tcp)];
        let wanted = Wanted::new(Some(&keys));
        assert!(wanted.includes(&flow("10.9.0.1:1", "192.0.2.1:30080", "10.244.0.1:8080")));
        assert!(!wanted.includes(&flow("10.9.0.1:1", "192.0.2.1:30081", "10.244.0.1:8080")));
    }
}
