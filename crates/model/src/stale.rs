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

/// Every UDP frontend of a plan, to judge all flows at once: after a start, or when much has changed.
#[derive(Clone, Debug, Default)]
pub struct UdpFrontends {
    by_address: HashMap<SocketAddr, HashSet<SocketAddr>>,
    by_node_port: HashMap<u16, HashSet<SocketAddr>>,
    node_addresses: HashSet<IpAddr>,
}

impl UdpFrontends {
    pub fn of(plan: &Plan, family: Family) -> Self {
        let mut all = UdpFrontends {
            node_addresses: plan.node().family(family).addresses.iter().copied().collect(),
            ..Default::default()
        };
        for port in plan.ports(family).filter(|port| port.protocol() == Protocol::Udp) {
            let serving: HashSet<SocketAddr> = port.serving().map(|endpoint| endpoint.address()).collect();
            for frontend in port.keys() {
                match frontend {
                    FrontendKey::Address(address, port, _) => {
                        all.by_address
                            .insert(SocketAddr::new(address, port), serving.clone());
                    }
                    FrontendKey::NodePort(_, port, _) => {
                        all.by_node_port.insert(port, serving.clone());
                    }
                }
            }
        }
        all
    }

    /// Whether the flow belongs to one of the frontends and is answered by none of its endpoints.
    pub fn is_stale(&self, flow: &UdpFlow) -> bool {
        let node_port = || {
            let ours = self.node_addresses.contains(&flow.destination.ip());
            ours.then(|| self.by_node_port.get(&flow.destination.port()))?
        };
        let serving = self.by_address.get(&flow.destination).or_else(node_port);
        serving.is_some_and(|serving| !serving.contains(&flow.responder))
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty() && self.by_node_port.is_empty()
    }
}
