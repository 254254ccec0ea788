//! Stale UDP flows in the kernel's connection-tracking table.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use ferry_host::conntrack::{self, Conntrack, Filter, Flow};
use ferry_model::{Family, FrontendKey, Protocol, StaleFlows, UdpFlow, UdpFrontends, Which};

use crate::sync::Flows;

/// Up to these are looked for one by one, the kernel filtering; for more, the table is read once.
const FEW: usize = 16;

/// The kernel's table; opened when first needed, so that a kernel without connection tracking does no harm.
#[derive(Debug, Default)]
pub(super) struct Table {
    socket: Option<Conntrack>,
    /// Whether somebody else removes the flows of an endpoint that is gone.
    endpoints_are_cared_for: bool,
}

impl Table {
    /// Leaves flows to endpoints that are gone to the kernel.
    pub(super) fn without_endpoints() -> Self {
        Self {
            socket: None,
            endpoints_are_cared_for: true,
        }
    }
}

impl Flows for Table {
    fn remove(&mut self, family: Family, local: &[IpAddr], stale: &[StaleFlows]) -> Result<u64, String> {
        let is_cared_for =
            |flows: &StaleFlows| self.endpoints_are_cared_for && matches!(flows.which, Which::To(_));
        let stale: Vec<StaleFlows> = stale
            .iter()
            .filter(|flows| !is_cared_for(flows))
            .cloned()
            .collect();
        if stale.len() <= FEW {
            let mut deleted = 0;
            for flows in &stale {
                let doomed = Doomed::of(std::slice::from_ref(flows), local);
                deleted += self.sweep_by(filter(flows), |flow| doomed.includes(flow))?;
            }
            return Ok(deleted);
        }
        let doomed = Doomed::of(&stale, local);
        self.sweep_by(all_udp(family), |flow| doomed.includes(flow))
    }

    fn sweep(&mut self, family: Family, frontends: &UdpFrontends) -> Result<u64, String> {
        self.sweep_by(all_udp(family), |flow| {
            frontends.is_stale(&UdpFlow {
                destination: flow.destination,
                responder: flow.responder,
            })
        })
    }
}

impl Table {
    fn sweep_by(&mut self, filter: Filter, doomed: impl FnMut(&Flow) -> bool) -> Result<u64, String> {
        if self.socket.is_none() {
            self.socket = Some(Conntrack::open().map_err(|error| error.to_string())?);
        }
        let swept = self.socket.as_mut().map(|table| table.sweep(&filter, doomed));
        match swept {
            Some(Ok(swept)) => Ok(swept.deleted),
            Some(Err(error)) => {
                // A socket that failed once is not to be trusted.
                self.socket = None;
                Err(error.to_string())
            }
            None => Ok(0),
        }
    }
}

fn all_udp(family: Family) -> Filter {
    Filter::all(kernel_family(family), Protocol::Udp.number())
}

fn kernel_family(family: Family) -> conntrack::Family {
    match family {
        Family::V4 => conntrack::Family::Ip,
        Family::V6 => conntrack::Family::Ip6,
    }
}

fn filter(flows: &StaleFlows) -> Filter {
    let filter = match flows.frontend {
        FrontendKey::Address(address, port, protocol) => {
            Filter::to(protocol.number(), SocketAddr::new(address, port))
        }
        FrontendKey::NodePort(family, port, protocol) => {
            Filter::to_port(kernel_family(family), protocol.number(), port)
        }
    };
    match flows.which {
        Which::To(endpoint) => filter.answered_by(endpoint),
        Which::All | Which::NotTo(_) => filter,
    }
}

/// Many stale flows, arranged so that each flow of the table is judged by its destination at once.
struct Doomed<'a> {
    by_address: HashMap<SocketAddr, Vec<&'a Which>>,
    by_node_port: HashMap<u16, Vec<&'a Which>>,
    local: HashSet<IpAddr>,
}

impl<'a> Doomed<'a> {
    fn of(stale: &'a [StaleFlows], local: &[IpAddr]) -> Self {
        let mut doomed = Self {
            by_address: HashMap::new(),
            by_node_port: HashMap::new(),
            local: local.iter().copied().collect(),
        };
        for StaleFlows { frontend, which } in stale {
            match *frontend {
                FrontendKey::Address(address, port, _) => {
                    doomed
                        .by_address
                        .entry(SocketAddr::new(address, port))
                        .or_default()
                        .push(which);
                }
                FrontendKey::NodePort(_, port, _) => {
                    doomed.by_node_port.entry(port).or_default().push(which);
                }
            }
        }
        doomed
    }

    fn includes(&self, flow: &Flow) -> bool {
        // A node port exists on this host's addresses only; the same port elsewhere is none of our business.
        let on_node = self.local.contains(&flow.destination.ip());
        let node_port = || {
            self.by_node_port
                .get(&flow.destination.port())
                .filter(|_| on_node)
        };
        let reasons = self.by_address.get(&flow.destination).or_else(node_port);
        reasons.is_some_and(|reasons| {
            reasons.iter().any(|which| match which {
                Which::All => true,
                Which::To(endpoint) => flow.responder == *endpoint,
                Which::NotTo(serving) => !serving.contains(&flow.responder),
            })
        })
    }
}
