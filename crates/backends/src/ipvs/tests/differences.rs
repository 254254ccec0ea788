//! Properties: nothing to do where nothing differs, and single steps add up to what is rendered in one go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_host::ipset::Entry;
use ferry_host::ipvs::{Change, Service, Virtual};
use ferry_model::{Masqueraded, PortName, Protocol, ServiceName};
use proptest::prelude::*;

use super::super::diff::{Before, Have, Ops, diff};
use super::super::rules::{self, Rules};
use super::super::ruleset::{Claim, Fragment, Ruleset, VirtualServer};
use super::super::sets::Set;
use crate::Likeness;

/// A kernel that does as it is told, strictly: adding what is there or touching what is not is a mistake.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kernel {
    virtuals: BTreeMap<Virtual, Have>,
    entries: BTreeSet<(Set, Entry)>,
    addresses: BTreeSet<IpAddr>,
}

impl Kernel {
    fn run(&mut self, ops: &Ops) {
        for set in Set::ALL {
            for entry in &ops.fill[set] {
                assert!(self.entries.insert((set, *entry)), "{entry} is there");
            }
        }
        for change in &ops.serve {
            self.change(change);
        }
        for address in &ops.bind {
            assert!(self.addresses.insert(*address), "{address} is bound");
        }
        for address in &ops.unbind {
            assert!(self.addresses.remove(address), "{address} is not bound");
        }
        for retire in &ops.retire {
            let have = self.virtuals.get_mut(&retire.from).unwrap();
            assert!(have.servers.remove(&retire.server).is_some());
        }
        for at in &ops.remove {
            assert!(self.virtuals.remove(at).is_some());
        }
        for set in Set::ALL {
            for entry in &ops.empty[set] {
                assert!(self.entries.remove(&(set, *entry)), "{entry} is not there");
            }
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::AddService(service) => {
                let have = Have {
                    service: service.clone(),
                    servers: BTreeMap::new(),
                };
                assert!(self.virtuals.insert(service.at, have).is_none());
            }
            Change::EditService(service) => {
                self.virtuals.get_mut(&service.at).unwrap().service = service.clone();
            }
            Change::AddServer(at, server) => {
                let servers = &mut self.virtuals.get_mut(at).unwrap().servers;
                assert!(servers.insert(server.at, server.weight).is_none());
            }
            Change::EditServer(at, server) => {
                let servers = &mut self.virtuals.get_mut(at).unwrap().servers;
                assert!(servers.insert(server.at, server.weight).is_some());
            }
            Change::RemoveService(_) | Change::RemoveServer(..) => panic!("not a way to serve: {change:?}"),
        }
    }

    fn before(&self, want: &Ruleset) -> Before {
        let mut before = Before::default();
        for (at, have) in &self.virtuals {
            before.note_virtual(at, || Some(have.clone()));
        }
        for (at, _) in want.virtuals() {
            before.note_virtual(at, || None);
        }
        for entry in &self.entries {
            before.note_entry(entry, true);
        }
        for entry in want.entries() {
            before.note_entry(entry, false);
        }
        for address in &self.addresses {
            before.note_address(*address, true);
        }
        for address in want.addresses() {
            before.note_address(address, false);
        }
        before
    }

    fn of(want: &Ruleset) -> Self {
        Self {
            virtuals: want
                .virtuals()
                .map(|(at, server)| (*at, Have::of(server)))
                .collect(),
            entries: want.entries().copied().collect(),
            addresses: want.addresses().collect(),
        }
    }
}

fn address(number: u8) -> IpAddr {
    [10, 96, 0, number].into()
}

/// Few addresses and ports, so that services get in each other's way.
fn fragment() -> impl Strategy<Value = Fragment> {
    let frontend = (
        0..4u8,
        0..3u16,
        any::<bool>(),
        prop::collection::btree_set(0..4u8, 0..4),
        0..2u8,
    );
    prop::collection::vec(frontend, 0..4).prop_map(|frontends| {
        let mut fragment = Fragment::default();
        for (number, port, is_node_port, servers, scheduler) in frontends {
            let at = Virtual {
                address: address(number),
                port,
                protocol: 6,
            };
            let claim = if is_node_port {
                Claim::NodePort
            } else {
                Claim::Address
            };
            let scheduler = ["rr", "mh"][usize::from(scheduler)].to_owned();
            let server = VirtualServer {
                claim,
                port: PortName {
                    service: ServiceName::new("ns", "any"),
                    port: "".into(),
                    protocol: Protocol::Tcp,
                },
                service: Service {
                    at,
                    scheduler,
                    flags: 0,
                    persistence: None,
                },
                servers: servers
                    .iter()
                    .map(|n| SocketAddr::new([10, 244, 0, *n].into(), 80))
                    .collect(),
                drain: Duration::ZERO,
            };
            fragment.virtuals.insert(at, Arc::new(server));
            fragment
                .entries
                .insert((Set::ClusterIp, Entry::IpPort(at.address, 6, port)));
            fragment.entries.insert((Set::IpvsIps, Entry::Ip(at.address)));
            fragment.addresses.insert(at.address);
        }
        fragment
    })
}

proptest! {
    #[test]
    fn changes_of_single_services_add_up(steps in prop::collection::vec((0..4u8, prop::option::of(fragment())), 1..20)) {
        let (mut ruleset, mut kernel, mut last) = (Ruleset::default(), Kernel::default(), BTreeMap::new());
        for (service, fragment) in steps {
            let name = ServiceName::new("ns", &service.to_string());
            last.insert(name.clone(), fragment.clone());
            let mut before = Before::default();
            ruleset.replace(&name, fragment, &mut before);
            kernel.run(&diff(&before, &ruleset));
            prop_assert_eq!(&kernel, &Kernel::of(&ruleset));
            prop_assert!(diff(&kernel.before(&ruleset), &ruleset).is_empty());
        }
        let mut at_once = Ruleset::default();
        for (name, fragment) in last {
            at_once.replace(&name, fragment, &mut Before::default());
        }
        prop_assert_eq!(&kernel, &Kernel::of(&at_once));
    }

    #[test]
    fn any_state_of_the_kernel_becomes_what_is_wanted(have in fragment(), want in fragment()) {
        let (mut old, mut new) = (Ruleset::default(), Ruleset::default());
        old.replace(&ServiceName::new("ns", "old"), Some(have), &mut Before::default());
        new.replace(&ServiceName::new("ns", "new"), Some(want), &mut Before::default());
        let mut kernel = Kernel::of(&old);
        // Somebody was draining when we were restarted.
        for have in kernel.virtuals.values_mut() {
            if let Some(weight) = have.servers.values_mut().next() {
                *weight = 0;
            }
        }
        kernel.run(&diff(&kernel.before(&new), &new));
        prop_assert_eq!(kernel, Kernel::of(&new));
    }
}

fn rules_for(closed: &[&str], used: bool) -> Rules {
    let at = |text: &&str| Virtual {
        address: text.parse().unwrap(),
        port: 80,
        protocol: 6,
    };
    rules::render(&rules::Input {
        family: ferry_model::Family::V4,
        mark: 0x4000,
        masqueraded: Masqueraded::Node,
        detector: &ferry_model::Detector::None,
        random_fully: true,
        likeness: Likeness::Rules,
        used: &|_| used,
        closed_to_node: closed.iter().map(at).collect(),
    })
}

#[test]
fn only_chains_that_differ_are_written() {
    let none = rules_for(&[], true);
    assert!(rules::document(&none, Some(&none), &[]).is_empty());
    let whole = rules::document(&none, None, &rules::JUMPS).text();
    assert_eq!(whole.lines().filter(|line| line.starts_with(':')).count(), 11);
    assert_eq!(whole.lines().filter(|line| line.starts_with("-I ")).count(), 9);
    let unused = rules_for(&[], false);
    let document = rules::document(&unused, Some(&none), &[]).text();
    assert!(
        !document.contains(":KUBE-MARK-MASQ") && document.contains(":KUBE-SERVICES"),
        "{document}"
    );
}

#[test]
fn a_closed_frontend_costs_one_line() {
    let (two, other) = (
        rules_for(&["1.1.1.1", "2.2.2.2"], true),
        rules_for(&["2.2.2.2", "3.3.3.3"], true),
    );
    assert_eq!(
        rules::document(&other, Some(&two), &[]).text(),
        "*filter\n\
         -D KUBE-IPVS-OUT-FILTER -s 1.1.1.1 -m ipvs --vaddr 1.1.1.1 --vproto tcp --vport 80 -j DROP\n\
         -A KUBE-IPVS-OUT-FILTER -s 3.3.3.3 -m ipvs --vaddr 3.3.3.3 --vproto tcp --vport 80 -j DROP\n\
         COMMIT\n"
    );
}
