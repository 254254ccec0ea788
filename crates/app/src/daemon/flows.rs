//! Stale UDP flows in the kernel's connection-tracking table.

use std::net::{IpAddr, SocketAddr};

use ferry_host::conntrack::{self, Conntrack, Filter, Flow};
use ferry_model::{Doomed, Family, FrontendKey, Protocol, StaleFlows, UdpFlow, UdpFrontends, Which};

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
                deleted += self.sweep_by(filter(flows), |flow| doomed.includes(&udp(flow)))?;
            }
            return Ok(deleted);
        }
        let doomed = Doomed::of(&stale, local);
        self.sweep_by(all_udp(family), |flow| doomed.includes(&udp(flow)))
    }

    fn sweep(&mut self, family: Family, frontends: &UdpFrontends) -> Result<u64, String> {
        self.sweep_by(all_udp(family), |flow| frontends.is_stale(&udp(flow)))
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

fn udp(flow: &Flow) -> UdpFlow {
    UdpFlow {
        destination: flow.destination,
        responder: flow.responder,
    }
}
