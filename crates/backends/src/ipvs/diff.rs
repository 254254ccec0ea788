//! From what is (or was) to what should be: the steps between, in an order that never leaves traffic half served.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferry_host::ipset::Entry;
use ferry_host::ipvs::{Change, Server, Service, Virtual};

use super::drain::Drain;
use super::ruleset::{Ruleset, VirtualServer};
use super::sets::{PerSet, Set};

/// A virtual server as it is in the kernel: its attributes, its real servers and their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Have {
    pub(super) service: Service,
    pub(super) servers: BTreeMap<SocketAddr, u32>,
}

impl Have {
    /// What the kernel has after a virtual server was written as wanted.
    pub(super) fn of(server: &VirtualServer) -> Self {
        let servers = server.servers.iter().map(|at| (*at, WEIGHT)).collect();
        Self {
            service: server.service.clone(),
            servers,
        }
    }
}

/// All real servers weigh the same, as in kube-proxy.
pub(super) const WEIGHT: u32 = 1;

/// How the things were that may have to change; what is not in here is as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) virtuals: BTreeMap<Virtual, Option<Have>>,
    pub(super) entries: BTreeMap<(Set, Entry), bool>,
    pub(super) addresses: BTreeMap<IpAddr, bool>,
}

impl Before {
    /// The first note of a thing counts: later ones would tell of steps in between.
    pub(super) fn note_virtual(&mut self, at: &Virtual, have: impl FnOnce() -> Option<Have>) {
        self.virtuals.entry(*at).or_insert_with(have);
    }

    pub(super) fn note_entry(&mut self, entry: &(Set, Entry), present: bool) {
        self.entries.entry(*entry).or_insert(present);
    }

    pub(super) fn note_address(&mut self, address: IpAddr, present: bool) {
        self.addresses.entry(address).or_insert(present);
    }
}

/// The steps, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ops {
    pub(super) fill: PerSet<Vec<Entry>>,
    /// New and changed virtual servers, each followed by its new real servers.
    pub(super) serve: Vec<Change>,
    pub(super) bind: Vec<IpAddr>,
    pub(super) unbind: Vec<IpAddr>,
    pub(super) retire: Vec<Retire>,
    pub(super) remove: Vec<Virtual>,
    pub(super) empty: PerSet<Vec<Entry>>,
}

/// A real server that gets no new connections any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retire {
    pub(super) from: Virtual,
    pub(super) server: SocketAddr,
    pub(super) drain: Duration,
}

impl Ops {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How much is added (or changed) and how much removed.
    pub(super) fn tally(&self) -> (usize, usize) {
        let entries = |sets: &PerSet<Vec<Entry>>| Set::ALL.iter().map(|set| sets[*set].len()).sum::<usize>();
        let added = entries(&self.fill) + self.serve.len() + self.bind.len();
        let removed = entries(&self.empty) + self.unbind.len() + self.retire.len() + self.remove.len();
        (added, removed)
    }
}

pub(super) fn diff(before: &Before, want: &Ruleset) -> Ops {
    let mut ops = Ops::default();
    for (at, have) in &before.virtuals {
        match (have, want.virtual_server(at)) {
            (None, Some(wanted)) => {
                ops.serve.push(Change::AddService(wanted.service.clone()));
                add_servers(&mut ops, at, &BTreeMap::new(), wanted);
            }
            (Some(have), Some(wanted)) => {
                if have.service != wanted.service {
                    ops.serve.push(Change::EditService(wanted.service.clone()));
                }
                add_servers(&mut ops, at, &have.servers, wanted);
                let gone = have
                    .servers
                    .keys()
                    .filter(|server| !wanted.servers.contains(server));
                ops.retire.extend(gone.map(|server| Retire {
                    from: *at,
                    server: *server,
                    drain: wanted.drain,
                }));
            }
            (Some(_), None) => ops.remove.push(*at),
            (None, None) => {}
        }
    }
    for (key, present) in &before.entries {
        match (present, want.has_entry(key)) {
            (false, true) => ops.fill[key.0].push(key.1),
            (true, false) => ops.empty[key.0].push(key.1),
            (true, true) | (false, false) => {}
        }
    }
    for (address, present) in &before.addresses {
        match (present, want.has_address(address)) {
            (false, true) => ops.bind.push(*address),
            (true, false) => ops.unbind.push(*address),
            (true, true) | (false, false) => {}
        }
    }
    ops
}

fn add_servers(ops: &mut Ops, at: &Virtual, have: &BTreeMap<SocketAddr, u32>, wanted: &VirtualServer) {
    for server in &wanted.servers {
        let server = Server {
            at: *server,
            weight: WEIGHT,
        };
        match have.get(&server.at) {
            None => ops.serve.push(Change::AddServer(*at, server)),
            Some(weight) if *weight != WEIGHT => ops.serve.push(Change::EditServer(*at, server)),
            Some(_) => {}
        }
    }
}

impl Ops {
    /// Lines for people. Servers that drain are no surprise.
    pub(super) fn describe(&self, drain: &Drain) -> Vec<String> {
        let mut lines = Vec::new();
        for change in &self.serve {
            lines.push(match change {
                Change::AddService(service) | Change::EditService(service) => {
                    format!("virtual server {}", service.at)
                }
                Change::AddServer(at, server) | Change::EditServer(at, server) => {
                    format!("real server {} of {at}", server.at)
                }
                Change::RemoveService(at) | Change::RemoveServer(at, _) => format!("virtual server {at}"),
            });
        }
        let drains = |retire: &&Retire| {
            drain
                .servers_of(retire.from)
                .any(|server| server == retire.server)
        };
        for retire in self.retire.iter().filter(|retire| !drains(retire)) {
            lines.push(format!(
                "unknown real server {} of {}",
                retire.server, retire.from
            ));
        }
        lines.extend(
            self.remove
                .iter()
                .map(|at| format!("virtual server {at} of a service that is gone")),
        );
        lines.extend(self.bind.iter().map(|address| format!("address {address}")));
        lines.extend(
            self.unbind
                .iter()
                .map(|address| format!("unknown address {address}")),
        );
        for set in Set::ALL {
            lines.extend(
                self.fill[set]
                    .iter()
                    .map(|entry| format!("entry {entry} of set {set:?}")),
            );
            lines.extend(
                self.empty[set]
                    .iter()
                    .map(|entry| format!("unknown entry {entry} of set {set:?}")),
            );
        }
        lines
    }
}
