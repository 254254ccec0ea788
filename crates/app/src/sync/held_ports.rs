//! Ports kept from other processes (`--hold-node-ports`): those of node ports, and of external addresses that this node
//! has. Rules take their traffic before any socket sees it, so a process that listened there would silently get none.
//! Here it cannot bind in the first place; and where one is there already, an event says so before rules are written.
//!
//! Holding is a bound socket that does not listen. What could not be held is tried again with every sync.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use ferry_backends::hold_port;
use ferry_model::{
    Family, FrontendKey, FrontendKind, NodeFamily, NodePorts, Plan, PortPlan, Protocol, ServiceName,
};

use crate::events::{Event, Recorder};

type Place = (Protocol, SocketAddr);
type Owner = (Family, ServiceName);

/// Every port that is held.
#[derive(Debug)]
pub struct HeldPorts {
    recorder: Recorder,
    held: BTreeMap<Owner, BTreeMap<Place, OwnedFd>>,
    /// Services of which something could not be held, each told once.
    taken: BTreeMap<Owner, BTreeSet<Place>>,
}

impl HeldPorts {
    /// Nothing is held yet.
    pub fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            held: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// Holds what these services of a plan need now and lets go of the rest. Those that went without something are tried
    /// again.
    pub fn follow<'a>(
        &mut self,
        plan: &Plan,
        family: Family,
        changed: impl IntoIterator<Item = &'a ServiceName>,
    ) {
        let without = self.taken.keys().filter(|(of, _)| *of == family);
        let mut names: BTreeSet<ServiceName> = without.map(|(_, name)| name.clone()).collect();
        names.extend(changed.into_iter().cloned());
        for name in names {
            let node = plan.node().family(family);
            let ports = plan
                .service(&name)
                .into_iter()
                .flat_map(|service| service.ports(family));
            let wanted = ports.flat_map(|port| places(port, node)).collect();
            self.set((family, name), wanted);
        }
    }

    fn set(&mut self, owner: Owner, wanted: BTreeSet<Place>) {
        let mut held = self.held.remove(&owner).unwrap_or_default();
        held.retain(|place, _| wanted.contains(place));
        let mut taken = BTreeSet::new();
        for place in wanted {
            if held.contains_key(&place) {
                continue;
            }
            match hold_port(place.0, place.1) {
                Ok(socket) => drop(held.insert(place, socket)),
                Err(error) => {
                    self.tell(&owner, place, &error);
                    taken.insert(place);
                }
            }
        }
        keep(&mut self.held, &owner, held, BTreeMap::is_empty);
        keep(&mut self.taken, &owner, taken, BTreeSet::is_empty);
    }

    /// Each is told once, until it could be held.
    fn tell(&self, owner: &Owner, place: Place, error: &io::Error) {
        if self.taken.get(owner).is_some_and(|told| told.contains(&place)) {
            return;
        }
        let (protocol, address) = place;
        let service = &owner.1;
        let note = format!("{address}/{protocol} of {service} cannot be held: {error}");
        tracing::warn!(%service, %address, %protocol, %error, "cannot hold a port: a process on this node may have it");
        self.recorder.record(Event::port_taken(service, note));
    }
}

/// Puts a value back, unless there is nothing in it.
fn keep<T>(all: &mut BTreeMap<Owner, T>, owner: &Owner, value: T, is_empty: fn(&T) -> bool) {
    if is_empty(&value) {
        all.remove(owner);
    } else {
        all.insert(owner.clone(), value);
    }
}

/// Where a port is answered at addresses of this node.
fn places(port: &PortPlan, node: &NodeFamily) -> Vec<Place> {
    let protocol = port.protocol();
    // nobody needs to be kept from what no socket here can have
    let at = |frontend: &ferry_model::Frontend| match (frontend.kind, frontend.key) {
        _ if protocol == Protocol::Sctp => Vec::new(),
        (FrontendKind::NodePort, FrontendKey::NodePort(family, number, _)) => {
            node_port_addresses(node, family)
                .into_iter()
                .map(|ip| SocketAddr::new(ip, number))
                .collect()
        }
        (FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp, FrontendKey::Address(ip, number, _))
            if node.addresses.contains(&ip) =>
        {
            vec![SocketAddr::new(ip, number)]
        }
        _ => Vec::new(),
    };
    let all = port.frontends.iter().flat_map(at);
    all.map(|address| (protocol, address)).collect()
}

fn node_port_addresses(node: &NodeFamily, family: Family) -> Vec<IpAddr> {
    match &node.node_ports {
        NodePorts::All => vec![match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }],
        NodePorts::Only(addresses) => addresses.clone(),
    }
}
