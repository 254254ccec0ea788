//! Who answers where: each address and port belongs to one service port, the one with the lowest name.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::{PortPlan, ServicePlan};
use crate::facts::Skipped;
use crate::names::{Family, PortName, Protocol, ServiceName};

/// A place where traffic arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKey {
    Address(IpAddr, u16, Protocol),
    NodePort(Family, u16, Protocol),
}

impl FrontendKey {
    pub fn family(&self) -> Family {
        match self {
            FrontendKey::Address(address, ..) => Family::of(*address),
            FrontendKey::NodePort(family, ..) => *family,
        }
    }
}

/// A frontend that a service asks for and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) key: FrontendKey,
    pub(super) port: PortName,
}

impl Lost {
    pub(super) fn skipped(&self, owner: Option<&PortName>) -> Skipped {
        let place = match self.key {
            FrontendKey::Address(address, port, protocol) => format!("{address} port {port}/{protocol}"),
            FrontendKey::NodePort(family, port, protocol) => format!("{family} node port {port}/{protocol}"),
        };
        let reason = match owner.filter(|owner| **owner != self.port) {
            Some(owner) => format!("{owner} has it already"),
            None => "another service has the cluster IP of this port".into(),
        };
        Skipped {
            object: format!("Service {}: {place}", self.port),
            reason,
        }
    }
}

/// Nearly always one service port asks for a frontend; a set for each would be most of the plan's memory.
#[derive(Clone, Debug)]
enum Claimants {
    One(PortName),
    Several(BTreeSet<PortName>),
}

/// How many service ports are served at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses {
    as_cluster_ip: usize,
    as_external: usize,
}

/// Every frontend that is asked for, and by whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    by_key: HashMap<FrontendKey, Claimants>,
    addresses: HashMap<IpAddr, Uses>,
    contested: BTreeSet<ServiceName>,
}

impl Claims {
    pub(super) fn owner(&self, key: &FrontendKey) -> Option<&PortName> {
        match self.by_key.get(key)? {
            Claimants::One(port) => Some(port),
            Claimants::Several(ports) => ports.first(),
        }
    }

    pub(super) fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.addresses
            .get(&address)
            .is_some_and(|uses| uses.as_cluster_ip > 0)
    }

    pub(super) fn is_service_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// The services that lost a frontend to another.
    pub(super) fn contested(&self) -> impl Iterator<Item = &ServiceName> {
        self.contested.iter()
    }

    /// Puts the claims of a service's new plan in place of those of its old one, and takes from the new plan what
    /// others hold. The services whose frontends are won or lost by that are added to `disturbed`.
    pub(super) fn settle(
        &mut self,
        old: Option<&ServicePlan>,
        new: Option<&mut ServicePlan>,
        disturbed: &mut BTreeSet<ServiceName>,
    ) {
        let old_keys = old.map(claimed).unwrap_or_default();
        let new_keys = new.as_deref().map(claimed).unwrap_or_default();
        if old_keys != new_keys {
            for claim in new_keys.iter().filter(|claim| !old_keys.contains(claim)) {
                self.claim(claim, disturbed);
            }
            for claim in old_keys.iter().filter(|claim| !new_keys.contains(claim)) {
                self.release(claim, disturbed);
            }
        }
        match new {
            Some(new) => {
                self.strip(new, &new_keys);
                self.count_addresses(old, Some(new));
            }
            None => {
                self.count_addresses(old, None);
                if let Some(old) = old {
                    self.contested.remove(&old.name);
                }
            }
        }
    }

    fn claim(&mut self, (key, port): &(FrontendKey, PortName), disturbed: &mut BTreeSet<ServiceName>) {
        match self.by_key.entry(*key) {
            Entry::Vacant(entry) => {
                entry.insert(Claimants::One(port.clone()));
            }
            Entry::Occupied(mut entry) => {
                let mut ports = match entry.get() {
                    Claimants::One(other) => BTreeSet::from([other.clone()]),
                    Claimants::Several(ports) => ports.clone(),
                };
                if let Some(loser) = ports.first().filter(|owner| port < *owner) {
                    disturbed.insert(loser.service.clone());
                }
                ports.insert(port.clone());
                entry.insert(Claimants::Several(ports));
            }
        }
    }

    fn release(&mut self, (key, port): &(FrontendKey, PortName), disturbed: &mut BTreeSet<ServiceName>) {
        let Entry::Occupied(mut entry) = self.by_key.entry(*key) else {
            return;
        };
        match entry.get_mut() {
            Claimants::One(_) => {
                entry.remove();
            }
            Claimants::Several(ports) => {
                let was_owner = ports.first() == Some(port);
                ports.remove(port);
                let heir = ports.first().cloned();
                if let Some(heir) = heir {
                    if was_owner {
                        disturbed.insert(heir.service.clone());
                    }
                    if ports.len() == 1 {
                        entry.insert(Claimants::One(heir));
                    }
                }
            }
        }
    }

    fn count_addresses(&mut self, old: Option<&ServicePlan>, new: Option<&ServicePlan>) {
        let (old, new) = (addresses(old), addresses(new));
        if old == new {
            return;
        }
        for (address, is_cluster_ip) in new {
            let uses = self.addresses.entry(address).or_default();
            *uses.kind(is_cluster_ip) += 1;
        }
        for (address, is_cluster_ip) in old {
            if let Entry::Occupied(mut entry) = self.addresses.entry(address) {
                *entry.get_mut().kind(is_cluster_ip) -= 1;
                if *entry.get() == Uses::default() {
                    entry.remove();
                }
            }
        }
    }

    /// Takes from a plan the frontends that others hold. A port whose cluster IP is taken goes as a whole, and what
    /// else it asked for stays unserved: its objects contradict each other, and guessing would hide that.
    fn strip(&mut self, plan: &mut ServicePlan, keys: &[(FrontendKey, PortName)]) {
        let is_lost = |key: &FrontendKey, port: &PortName| self.owner(key).is_some_and(|owner| owner != port);
        let homeless: Vec<(Family, PortName)> = plan
            .ports
            .iter()
            .filter(|port| {
                is_lost(
                    &FrontendKey::Address(port.cluster_ip, port.port, port.protocol()),
                    &port.name,
                )
            })
            .map(|port| (port.family, port.name.clone()))
            .collect();
        let is_homeless = |family, name: &PortName| homeless.iter().any(|(f, n)| *f == family && n == name);
        for (key, port) in keys {
            if is_lost(key, port) || is_homeless(key.family(), port) {
                plan.lost.push(Lost {
                    key: *key,
                    port: port.clone(),
                });
                remove_frontend(plan, key, port);
            }
        }
        plan.ports.retain(|port| !is_homeless(port.family, &port.name));
        match plan.lost.is_empty() {
            true => self.contested.remove(&plan.name),
            false => self.contested.insert(plan.name.clone()),
        };
    }
}

impl Uses {
    fn kind(&mut self, is_cluster_ip: bool) -> &mut usize {
        match is_cluster_ip {
            true => &mut self.as_cluster_ip,
            false => &mut self.as_external,
        }
    }
}

/// Every address that a service's ports are served at, and whether as a cluster IP.
fn addresses(plan: Option<&ServicePlan>) -> Vec<(IpAddr, bool)> {
    let ports = plan.into_iter().flat_map(|plan| &plan.ports);
    ports
        .flat_map(|port| {
            std::iter::once((port.cluster_ip, true)).chain(port.external_addresses().map(|ip| (ip, false)))
        })
        .collect()
}

fn remove_frontend(plan: &mut ServicePlan, key: &FrontendKey, name: &PortName) {
    let concerned = |port: &PortPlan| port.name == *name && port.family == key.family();
    match key {
        FrontendKey::Address(address, ..) => {
            plan.ports
                .retain(|port| !(concerned(port) && port.cluster_ip == *address));
            for port in plan.ports.iter_mut().filter(|port| concerned(port)) {
                port.external_ips.retain(|ip| ip != address);
                port.load_balancer_ips.retain(|ip| ip != address);
            }
        }
        FrontendKey::NodePort(..) => {
            for port in plan.ports.iter_mut().filter(|port| concerned(port)) {
                port.node_port = None;
            }
        }
    }
}

/// What a service asks for, whether it got it or not; sorted, each once.
fn claimed(plan: &ServicePlan) -> Vec<(FrontendKey, PortName)> {
    let mut keys: Vec<(FrontendKey, PortName)> = Vec::with_capacity(plan.ports.len() + plan.lost.len());
    for port in &plan.ports {
        keys.extend(port.frontends().map(|key| (key, port.name.clone())));
    }
    keys.extend(plan.lost.iter().map(|lost| (lost.key, lost.port.clone())));
    keys.sort();
    keys.dedup();
    keys
}

impl PortPlan {
    /// Every place where this port is answered.
    pub fn frontends(&self) -> impl Iterator<Item = FrontendKey> {
        let protocol = self.protocol();
        std::iter::once(self.cluster_ip)
            .chain(self.external_addresses())
            .map(move |address| FrontendKey::Address(address, self.port, protocol))
            .chain(
                self.node_port
                    .map(move |port| FrontendKey::NodePort(self.family, port, protocol)),
            )
    }
}
