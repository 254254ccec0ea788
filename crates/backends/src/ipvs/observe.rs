//! What the kernel holds now: our sets, our interface, and the virtual servers that are ours by the record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferry_host::ipset::{Entry, Ipset};
use ferry_host::ipvs::{Ipvs, Service, Virtual};
use ferry_host::route::{Address, Route};
use ferry_model::{Family, NodePlan, NodePorts};
use ipnet::IpNet;

use super::diff::{Before, Have};
use super::record::{NodePortAddresses, is_ours};
use super::render::View;
use super::ruleset::Ruleset;
use super::sets::Set;
use super::{DEVICE, Error};

/// The node's addresses of a family, by whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// Bound to our interface.
    pub(super) ours: BTreeSet<IpAddr>,
    /// On all others, where services can be reached: neither loopback nor IPv6 link-local.
    pub(super) elsewhere: BTreeSet<IpAddr>,
}

impl Addresses {
    pub(super) fn observe(route: &mut Route, family: Family) -> Result<Self, Error> {
        Ok(Self::sort(&route.addresses()?, family))
    }

    /// The node's own addresses as the plan knows them.
    pub(super) fn from_plan(own: impl Iterator<Item = IpAddr>) -> Self {
        Self {
            ours: BTreeSet::new(),
            elsewhere: own.filter(|address| is_reachable(*address)).collect(),
        }
    }

    fn sort(all: &[Address], family: Family) -> Self {
        let mut sorted = Self::default();
        for held in all.iter().filter(|held| Family::of(held.address) == family) {
            match held.interface == DEVICE {
                true => sorted.ours.insert(held.address),
                false => is_reachable(held.address) && sorted.elsewhere.insert(held.address),
            };
        }
        sorted
    }
}

fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

/// What rendering sees of the node.
pub(super) fn view(node: &NodePlan, family: Family, addresses: &Addresses) -> View {
    let node_ports = match &node.family(family).node_ports {
        NodePorts::All => addresses.elsewhere.iter().copied().collect(),
        // Never at services' own addresses, even where a network that the operator named covers them.
        NodePorts::Only(only) => only
            .iter()
            .copied()
            .filter(|address| addresses.elsewhere.contains(address))
            .collect(),
    };
    View {
        family,
        node_ports,
        elsewhere: addresses.elsewhere.clone(),
    }
}

/// The entries of all our sets.
pub(super) fn entries(ipset: &mut Ipset, family: Family) -> Result<BTreeSet<(Set, Entry)>, Error> {
    let mut found = BTreeSet::new();
    for set in Set::ALL {
        let entries = ipset.entries(set.name(family))?.unwrap_or_default();
        found.extend(entries.into_iter().map(|entry| (set, entry)));
    }
    Ok(found)
}

/// Those of all virtual servers that are of a family and ours.
pub(super) fn ours(
    all: &[Service],
    family: Family,
    entries: &BTreeSet<(Set, Entry)>,
    on_our_device: &BTreeSet<IpAddr>,
    node_ports: &NodePortAddresses,
) -> impl Iterator<Item = Virtual> {
    let in_set = |entry: &(Set, Entry)| entries.contains(entry);
    all.iter()
        .map(|service| service.at)
        .filter(move |at| Family::of(at.address) == family && is_ours(at, &in_set, on_our_device, node_ports))
}

/// How everything is that concerns us, and how it differs from what is wanted: all that is there, and all that should be.
pub(super) fn before(
    ipvs: &mut Ipvs,
    ipset: &mut Ipset,
    family: Family,
    addresses: &Addresses,
    node_ports: &NodePortAddresses,
    excluded: &[IpNet],
    want: &Ruleset,
) -> Result<Before, Error> {
    let entries = entries(ipset, family)?;
    let services = ipvs.services()?;
    let all: BTreeMap<Virtual, &Service> = services.iter().map(|service| (service.at, service)).collect();
    let mut before = Before::default();
    // What is wanted is ours from now on, whoever made it.
    let wanted = want.virtuals().map(|(at, _)| *at);
    let ours = ours(&services, family, &entries, &addresses.ours, node_ports);
    let leftover = ours.filter(|at| !is_excluded(at, excluded));
    for at in wanted.chain(leftover) {
        let have = match all.get(&at) {
            Some(service) => {
                let servers = ipvs.servers(at)?;
                let servers = servers
                    .iter()
                    .map(|state| (state.server.at, state.server.weight))
                    .collect();
                Some(Have {
                    service: (*service).clone(),
                    servers,
                })
            }
            None => None,
        };
        before.note_virtual(&at, || have);
    }
    for entry in &entries {
        before.note_entry(entry, true);
    }
    for entry in want.entries() {
        before.note_entry(entry, false);
    }
    for address in &addresses.ours {
        before.note_address(*address, !is_link_local(*address));
    }
    for address in want.addresses() {
        before.note_address(address, false);
    }
    Ok(before)
}

fn is_excluded(at: &Virtual, excluded: &[IpNet]) -> bool {
    excluded.iter().any(|cidr| cidr.contains(&at.address))
}

/// The kernel's own address on an interface, should somebody have set ours up.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart_by_interface_and_use() {
        let held = |interface: &str, address: &str| Address {
            index: 1,
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            prefix: 32,
        };
        let all = [
            held("lo", "127.0.0.1"),
            held("lo", "::1"),
            held("eth0", "192.0.2.10"),
            held("eth0", "169.254.1.1"),
            held("eth0", "fe80::1"),
            held("eth0", "2001:db8::1"),
            held(DEVICE, "10.96.0.1"),
            held(DEVICE, "fd00::1"),
        ];
        let text = |set: &BTreeSet<IpAddr>| set.iter().map(ToString::to_string).collect::<Vec<_>>();
        let four = Addresses::sort(&all, Family::V4);
        assert_eq!(text(&four.ours), ["10.96.0.1"]);
        assert_eq!(text(&four.elsewhere), ["169.254.1.1", "192.0.2.10"]);
        let six = Addresses::sort(&all, Family::V6);
        assert_eq!(text(&six.ours), ["fd00::1"]);
        assert_eq!(text(&six.elsewhere), ["2001:db8::1"]);
    }
}
