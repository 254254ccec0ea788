//! What the kernel holds now: our sets, our interface, and the virtual servers that are ours by the record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferry_host::ipset::{Entry, Ipset};
use ferry_host::ipvs::{Ipvs, Service, Virtual};
use ferry_host::route::{Address, Route};
use ferry_model::{Family, NodePlan, NodePorts};
use ipnet::IpNet;

use super::diff::{Before, Have};
use super::drain::Drain;
use super::record::{NodePortAddresses, is_ours};
use super::render::View;
use super::ruleset::Ruleset;
use super::sets::Set;
use super::{DEVICE, Error, Kernel};

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
            if held.interface == DEVICE {
                sorted.ours.insert(held.address)
            } else {
                is_reachable(held.address) && sorted.elsewhere.insert(held.address)
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

/// Virtual servers whose real servers are listed in a comparison that is made only because it is time: the kernel tells
/// them of one virtual server at a time, which for thousands takes long. The others have their turn in the next ones.
pub(super) const LISTED_AT_A_TIME: usize = 500;

/// What is taken for granted about real servers.
#[derive(Default)]
pub(super) struct Trusted {
    servers: BTreeMap<Virtual, BTreeMap<SocketAddr, u32>>,
}

impl Trusted {
    /// What was written last and what drains, except of those whose turn it is: the next after `last`, all round. Also tells
    /// the last of these.
    pub(super) fn except_next(
        written: &Ruleset,
        drain: &Drain,
        last: Option<Virtual>,
    ) -> (Self, Option<Virtual>) {
        let after = |at: &Virtual| last.is_none_or(|last| *at > last);
        let all = || written.virtuals().map(|(at, _)| *at);
        let listed: Vec<Virtual> = all()
            .filter(after)
            .chain(all().filter(|at| !after(at)))
            .take(LISTED_AT_A_TIME)
            .collect();
        let turn: BTreeSet<Virtual> = listed.iter().copied().collect();
        let servers = written
            .virtuals()
            .filter(|(at, _)| !turn.contains(at))
            .map(|(at, server)| {
                let mut servers = Have::of(server).servers;
                servers.extend(drain.servers_of(*at).map(|server| (server, 0)));
                (*at, servers)
            });
        (
            Self {
                servers: servers.collect(),
            },
            listed.last().copied(),
        )
    }
}

/// How everything is that concerns us, and how it differs from what is wanted: all that is there, and all that should be.
pub(super) fn before(
    kernel: &mut Kernel,
    family: Family,
    addresses: &Addresses,
    excluded: &[IpNet],
    want: &Ruleset,
    trusted: &Trusted,
) -> Result<Before, Error> {
    let entries = entries(&mut kernel.ipset, family)?;
    let services = kernel.ipvs.services()?;
    let node_ports = kernel.record.read();
    let all: BTreeMap<Virtual, &Service> = services.iter().map(|service| (service.at, service)).collect();
    let mut before = Before::default();
    // What is wanted is ours from now on, whoever made it.
    let wanted = want.virtuals().map(|(at, _)| *at);
    let ours = ours(&services, family, &entries, &addresses.ours, &node_ports);
    let leftover = ours.filter(|at| !is_excluded(at, excluded));
    for at in wanted.chain(leftover) {
        let have = match all.get(&at) {
            Some(service) => Some(Have {
                service: (*service).clone(),
                servers: match trusted.servers.get(&at) {
                    Some(servers) => servers.clone(),
                    None => servers(&mut kernel.ipvs, at)?,
                },
            }),
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

fn servers(ipvs: &mut Ipvs, of: Virtual) -> Result<BTreeMap<SocketAddr, u32>, Error> {
    let states = ipvs.servers(of)?;
    Ok(states
        .iter()
        .map(|state| (state.server.at, state.server.weight))
        .collect())
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
    use crate::ipvs::ruleset::{Claim, Fragment, VirtualServer};
    use ferry_model::{PortName, Protocol, ServiceName};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Services 0 to `count`, one virtual server each.
    fn many(count: usize) -> Ruleset {
        let mut ruleset = Ruleset::default();
        for n in 0..count {
            let at = Virtual {
                address: IpAddr::from([10, 96, (n / 250) as u8, (n % 250) as u8]),
                port: 80,
                protocol: 6,
            };
            let name = ServiceName::new("ns", &format!("svc-{n}"));
            let server = VirtualServer {
                claim: Claim::Address,
                port: PortName {
                    service: name.clone(),
                    port: "p".into(),
                    protocol: Protocol::Tcp,
                },
                service: Service {
                    at,
                    scheduler: "rr".to_owned(),
                    flags: 0,
                    persistence: None,
                },
                servers: BTreeSet::from(["10.244.1.2:8080".parse().unwrap()]),
                drain: Duration::ZERO,
            };
            let mut fragment = Fragment::default();
            fragment.virtuals.insert(at, Arc::new(server));
            ruleset.replace(&name, Some(fragment), &mut Before::default());
        }
        ruleset
    }

    #[test]
    fn every_virtual_server_has_its_turn_and_no_turn_is_longer_than_allowed() {
        let count = 2 * LISTED_AT_A_TIME + 1;
        let (written, drain) = (many(count), Drain::default());
        let (mut last, mut seen) = (None, BTreeMap::<Virtual, u32>::new());
        for _ in 0..3 {
            let (trusted, next) = Trusted::except_next(&written, &drain, last);
            assert_eq!(trusted.servers.len(), count - LISTED_AT_A_TIME);
            for (at, _) in written
                .virtuals()
                .filter(|(at, _)| !trusted.servers.contains_key(at))
            {
                *seen.entry(*at).or_default() += 1;
            }
            last = next;
        }
        assert_eq!(seen.len(), count, "all were listed");
        assert!(seen.values().all(|times| *times <= 2), "some before others");
        let few = many(3);
        let (trusted, _) = Trusted::except_next(&few, &drain, last);
        assert!(trusted.servers.is_empty(), "few are listed every time");
    }

    #[test]
    fn what_drains_is_trusted_to_be_there() {
        let (written, mut drain) = (many(LISTED_AT_A_TIME + 1), Drain::default());
        let (at, server) = (
            written.virtuals().map(|(at, _)| *at).last().unwrap(),
            "10.244.1.3:8080".parse().unwrap(),
        );
        drain.begin(at, server, Instant::now(), Duration::from_secs(60));
        let (trusted, _) = Trusted::except_next(&written, &drain, None);
        let weights: Vec<u32> = trusted.servers[&at].values().copied().collect();
        assert_eq!(weights, [1, 0]);
    }

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
