//! Which tracked UDP flows must go. A UDP flow that keeps talking never expires, so it would stick to an endpoint
//! that is gone, or to no endpoint at all, for ever. TCP notices by itself, and SCTP too.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::names::{Family, Protocol};
use crate::plan::{FrontendKey, Plan, PortPlan, ServicePlan};

/// Flows of one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleFlows {
    pub frontend: FrontendKey,
    pub which: Which,
}

/// Flows by the endpoint that answers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    To(SocketAddr),
    NotTo(Vec<SocketAddr>),
}

/// What must go because a service's plan was replaced: flows of frontends and endpoints that are gone, and flows
/// that found no endpoint where there is one now. Flows to endpoints that still serve stay, terminating or not.
pub fn stale_flows(old: Option<&ServicePlan>, new: Option<&ServicePlan>) -> Vec<StaleFlows> {
    let mut stale = Vec::new();
    for port in udp_ports(old) {
        let successor = udp_ports(new).find(|new| new.name == port.name && new.family == port.family);
        for frontend in port.keys() {
            match successor.filter(|new| new.keys().any(|key| key == frontend)) {
                Some(new) => stale.extend(flows_of_gone_endpoints(port, new, frontend)),
                None => stale.push(StaleFlows {
                    frontend,
                    which: Which::All,
                }),
            }
        }
    }
    for port in udp_ports(new).filter(|port| port.serving().next().is_some()) {
        let predecessor = udp_ports(old).find(|old| old.name == port.name && old.family == port.family);
        for frontend in port.keys() {
            let had_it =
                |old: &&PortPlan| old.serving().next().is_some() && old.keys().any(|key| key == frontend);
            if predecessor.filter(had_it).is_none() {
                stale.push(StaleFlows {
                    frontend,
                    which: Which::NotTo(serving(port)),
                });
            }
        }
    }
    stale
}

fn flows_of_gone_endpoints(old: &PortPlan, new: &PortPlan, frontend: FrontendKey) -> Vec<StaleFlows> {
    let left: BTreeSet<SocketAddr> = new.serving().map(|endpoint| endpoint.address()).collect();
    if left.is_empty() && old.serving().next().is_some() {
        return vec![StaleFlows {
            frontend,
            which: Which::All,
        }];
    }
    let gone = old
        .serving()
        .map(|endpoint| endpoint.address())
        .filter(|address| !left.contains(address));
    gone.map(|address| StaleFlows {
        frontend,
        which: Which::To(address),
    })
    .collect()
}

fn udp_ports(service: Option<&ServicePlan>) -> impl Iterator<Item = &PortPlan> {
    service
        .into_iter()
        .flat_map(|service| &service.ports)
        .filter(|port| port.protocol() == Protocol::Udp)
}

fn serving(port: &PortPlan) -> Vec<SocketAddr> {
    port.serving().map(|endpoint| endpoint.address()).collect()
}

/// A tracked UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// Who answers.
    pub responder: SocketAddr,
}

impl Which {
    fn includes(&self, flow: &UdpFlow) -> bool {
        match self {
            Which::All => true,
            Which::To(endpoint) => flow.responder == *endpoint,
            Which::NotTo(serving) => !serving.contains(&flow.responder),
        }
    }
}

/// Something for each frontend, found by a flow's destination. A node port exists on this host's addresses only; the
/// same port elsewhere is none of our business.
#[derive(Clone, Debug)]
struct ByFrontend<T> {
    addresses: HashMap<SocketAddr, T>,
    node_ports: HashMap<u16, T>,
    own: HashSet<IpAddr>,
}

impl<T> Default for ByFrontend<T> {
    fn default() -> Self {
        ByFrontend {
            addresses: HashMap::new(),
            node_ports: HashMap::new(),
            own: HashSet::new(),
        }
    }
}

impl<T: Default> ByFrontend<T> {
    fn at(&mut self, frontend: FrontendKey) -> &mut T {
        match frontend {
            FrontendKey::Address(address, port, _) => {
                self.addresses.entry(SocketAddr::new(address, port)).or_default()
            }
            FrontendKey::NodePort(_, port, _) => self.node_ports.entry(port).or_default(),
        }
    }

    fn of(&self, flow: &UdpFlow) -> Option<&T> {
        let node_port = || {
            let ours = self.own.contains(&flow.destination.ip());
            self.node_ports.get(&flow.destination.port()).filter(|_| ours)
        };
        self.addresses.get(&flow.destination).or_else(node_port)
    }
}

/// Many stale flows, arranged so that each flow of the table is judged by its destination at once.
#[derive(Clone, Debug)]
pub struct Doomed<'a>(ByFrontend<Vec<&'a Which>>);

impl<'a> Doomed<'a> {
    pub fn of(stale: &'a [StaleFlows], node_addresses: &[IpAddr]) -> Self {
        let mut all = ByFrontend::<Vec<&Which>>::default();
        all.own.extend(node_addresses);
        for StaleFlows { frontend, which } in stale {
            all.at(*frontend).push(which);
        }
        Doomed(all)
    }

    pub fn includes(&self, flow: &UdpFlow) -> bool {
        let reasons = self.0.of(flow);
        reasons.is_some_and(|reasons| reasons.iter().any(|which| which.includes(flow)))
    }
}

/// Every UDP frontend of a plan, to judge all flows at once: after a start, or when much has changed.
#[derive(Clone, Debug, Default)]
pub struct UdpFrontends(ByFrontend<HashSet<SocketAddr>>);

impl UdpFrontends {
    pub fn of(plan: &Plan, family: Family) -> Self {
        let mut all = ByFrontend::<HashSet<SocketAddr>>::default();
        all.own.extend(&plan.node().family(family).addresses);
        for port in plan.ports(family).filter(|port| port.protocol() == Protocol::Udp) {
            let serving: HashSet<SocketAddr> = port.serving().map(|endpoint| endpoint.address()).collect();
            for frontend in port.keys() {
                all.at(frontend).clone_from(&serving);
            }
        }
        UdpFrontends(all)
    }

    /// Whether the flow belongs to one of the frontends and is answered by none of its endpoints.
    pub fn is_stale(&self, flow: &UdpFlow) -> bool {
        let serving = self.0.of(flow);
        serving.is_some_and(|serving| !serving.contains(&flow.responder))
    }

    pub fn is_empty(&self) -> bool {
        self.0.addresses.is_empty() && self.0.node_ports.is_empty()
    }
}
