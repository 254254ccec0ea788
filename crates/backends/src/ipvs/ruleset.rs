//! What the kernel should hold, as a value: virtual servers, set entries, addresses. Built up from one fragment per
//! service, with counts where several services ask for the same thing, so that replacing one service's fragment costs
//! what that fragment costs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_host::ipset::Entry;
use ferry_host::ipvs::{Service, Virtual};
use ferry_model::{PortName, ServiceName};

use super::diff::{Before, Have};
use super::sets::{PerSet, Set};

/// What an address stands for. An address that a service asks for by name goes before a node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Address,
    NodePort,
}

/// A virtual server and the real servers that may get new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VirtualServer {
    pub(super) claim: Claim,
    pub(super) port: PortName,
    pub(super) service: Service,
    pub(super) servers: BTreeSet<SocketAddr>,
    /// How long connections to a server that went may go on; zero breaks them at once.
    pub(super) drain: Duration,
}

/// What one service asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) virtuals: BTreeMap<Virtual, Arc<VirtualServer>>,
    pub(super) entries: BTreeSet<(Set, Entry)>,
    /// To be bound to the dummy interface.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Load-balancer frontends that the node itself must not use.
    pub(super) closed_to_node: BTreeSet<Virtual>,
}

impl Fragment {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// All of a family.
#[derive(Clone, Debug, Default)]
pub(super) struct Ruleset {
    fragments: HashMap<ServiceName, Arc<Fragment>>,
    /// Nearly always one claimant; the first one is served.
    virtuals: BTreeMap<Virtual, Vec<(Claim, ServiceName, Arc<VirtualServer>)>>,
    entries: BTreeMap<(Set, Entry), u32>,
    sizes: PerSet<usize>,
    addresses: BTreeMap<IpAddr, u32>,
    closed_to_node: BTreeMap<Virtual, u32>,
}

impl Ruleset {
    pub(super) fn virtual_server(&self, at: &Virtual) -> Option<&Arc<VirtualServer>> {
        self.virtuals.get(at)?.first().map(|(_, _, server)| server)
    }

    pub(super) fn virtuals(&self) -> impl Iterator<Item = (&Virtual, &Arc<VirtualServer>)> {
        self.virtuals
            .iter()
            .filter_map(|(at, claims)| Some((at, &claims.first()?.2)))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &(Set, Entry)> {
        self.entries.keys()
    }

    pub(super) fn has_entry(&self, entry: &(Set, Entry)) -> bool {
        self.entries.contains_key(entry)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    pub(super) fn has_address(&self, address: &IpAddr) -> bool {
        self.addresses.contains_key(address)
    }

    pub(super) fn closed_to_node(&self) -> impl Iterator<Item = &Virtual> {
        self.closed_to_node.keys()
    }

    pub(super) fn is_used(&self, set: Set) -> bool {
        self.sizes[set] > 0
    }

    /// The services that it was built from.
    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.fragments.keys()
    }

    /// Puts a service's new fragment in place of its old one; `before` remembers how everything was that this touches.
    pub(super) fn replace(&mut self, name: &ServiceName, new: Option<Fragment>, before: &mut Before) {
        let new = new.filter(|fragment| !fragment.is_empty()).unwrap_or_default();
        let old = self.fragments.get(name).map(Arc::clone).unwrap_or_default();
        if *old == new {
            return;
        }
        for (at, server) in &old.virtuals {
            if new.virtuals.get(at) != Some(server) {
                before.note_virtual(at, || self.virtual_server(at).map(|server| Have::of(server)));
                self.release_virtual(at, name);
            }
        }
        for (at, server) in &new.virtuals {
            if old.virtuals.get(at) != Some(server) {
                before.note_virtual(at, || self.virtual_server(at).map(|server| Have::of(server)));
                self.claim_virtual(at, name, server);
            }
        }
        for gone in old.entries.difference(&new.entries) {
            before.note_entry(gone, self.has_entry(gone));
            if release(&mut self.entries, gone) {
                self.sizes[gone.0] -= 1;
            }
        }
        for come in new.entries.difference(&old.entries) {
            before.note_entry(come, self.has_entry(come));
            if claim(&mut self.entries, come) {
                self.sizes[come.0] += 1;
            }
        }
        for gone in old.addresses.difference(&new.addresses) {
            before.note_address(*gone, self.has_address(gone));
            release(&mut self.addresses, gone);
        }
        for come in new.addresses.difference(&old.addresses) {
            before.note_address(*come, self.has_address(come));
            claim(&mut self.addresses, come);
        }
        for gone in old.closed_to_node.difference(&new.closed_to_node) {
            release(&mut self.closed_to_node, gone);
        }
        for come in new.closed_to_node.difference(&old.closed_to_node) {
            claim(&mut self.closed_to_node, come);
        }
        if new.is_empty() {
            self.fragments.remove(name);
        } else {
            self.fragments.insert(name.clone(), Arc::new(new));
        }
    }

    fn claim_virtual(&mut self, at: &Virtual, name: &ServiceName, server: &Arc<VirtualServer>) {
        let claims = self.virtuals.entry(*at).or_default();
        let claim = (server.claim, name.clone(), Arc::clone(server));
        let place = claims.partition_point(|other| (other.0, &other.1) < (claim.0, &claim.1));
        claims.insert(place, claim);
    }

    fn release_virtual(&mut self, at: &Virtual, name: &ServiceName) {
        if let Some(claims) = self.virtuals.get_mut(at) {
            claims.retain(|(_, claimant, _)| claimant != name);
            if claims.is_empty() {
                self.virtuals.remove(at);
            }
        }
    }
}

/// One claimant more; tells whether it is the first.
fn claim<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K) -> bool {
    let count = counts.entry(key.clone()).or_default();
    *count += 1;
    *count == 1
}

/// One claimant less; tells whether it was the last.
fn release<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) -> bool {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => counts.remove(key).is_some(),
        None => false,
    }
}
