//! What the kernel holds for one service port: virtual and real servers, entries of sets, addresses, and the rules that
//! all services share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferry_host::ipset::Entry;
use ferry_host::iptables::Saved;
use ferry_host::ipvs::Virtual;
use ferry_model::{Plan, PortPlan};

use super::cleanup::own_rules;
use super::family::FamilyState;
use super::observe::{self, Addresses};
use super::render;
use super::ruleset::VirtualServer;
use super::sets::Set;
use super::{DEVICE, Kernel, Options};
use crate::{Error, Inspection, Presence};

impl FamilyState {
    pub(super) fn inspect(
        &mut self,
        kernel: &mut Kernel,
        options: &Options,
        plan: &Plan,
        port: &PortPlan,
    ) -> Result<Inspection, Error> {
        let mut found = Inspection::default();
        let Some(service) = plan.service(&port.name.service) else {
            return Ok(found);
        };
        let addresses = Addresses::observe(&mut kernel.route, port.family)?;
        let view = observe::view(plan.node(), port.family, &addresses);
        let fragment = render::service(service, &view, options);
        for (at, server) in fragment
            .virtuals
            .iter()
            .filter(|(_, server)| server.port == port.name)
        {
            virtual_server(kernel, *at, server, &mut found)?;
        }
        sets(kernel, port, &fragment.entries, &mut found)?;
        bound(kernel, &fragment.addresses, &mut found)?;
        let text = self
            .tool(kernel)?
            .save()
            .map_err(Error::reading("read iptables rules"))?;
        let what = "the iptables rules of ipvs mode";
        let presence = match self.saved_rules() {
            Some(known) if known == own_rules(&Saved::parse(&text)) => Presence::Present,
            Some(_) => Presence::Different,
            None => Presence::Missing,
        };
        found.add(what, presence);
        Ok(found)
    }
}

fn virtual_server(
    kernel: &mut Kernel,
    at: Virtual,
    wanted: &VirtualServer,
    found: &mut Inspection,
) -> Result<(), Error> {
    let stats = kernel.ipvs.stats(at)?;
    let presence = match &stats {
        Some(_) => Presence::Present,
        None => Presence::Missing,
    };
    let connections = stats.map(|stats| stats.connections);
    found.add_counted(format!("virtual server {at}"), presence, connections);
    let servers = kernel.ipvs.servers(at)?;
    let there: BTreeMap<SocketAddr, (u32, u64)> = servers
        .iter()
        .map(|state| (state.server.at, (state.server.weight, state.stats.connections)))
        .collect();
    for server in &wanted.servers {
        let presence = match there.get(server) {
            None => Presence::Missing,
            // It drains: no new connection goes there.
            Some((0, _)) => Presence::Different,
            Some(_) => Presence::Present,
        };
        let connections = there.get(server).map(|(_, connections)| *connections);
        found.add_counted(format!("real server {server} of {at}"), presence, connections);
    }
    Ok(())
}

fn sets(
    kernel: &mut Kernel,
    port: &PortPlan,
    wanted: &BTreeSet<(Set, Entry)>,
    found: &mut Inspection,
) -> Result<(), Error> {
    let mut read: BTreeMap<Set, Option<Vec<Entry>>> = BTreeMap::new();
    for (set, entry) in wanted {
        let name = set.name(port.family);
        if !read.contains_key(set) {
            read.insert(*set, kernel.ipset.entries(name)?);
        }
        let entries = read.get(set).and_then(Option::as_ref);
        let presence = if entries.is_some_and(|entries| entries.contains(entry)) {
            Presence::Present
        } else {
            Presence::Missing
        };
        found.add(format!("entry {entry} of set {name}"), presence);
    }
    Ok(())
}

fn bound(kernel: &mut Kernel, wanted: &BTreeSet<IpAddr>, found: &mut Inspection) -> Result<(), Error> {
    let there = kernel.route.addresses()?;
    for address in wanted {
        let is_there = there
            .iter()
            .any(|one| one.address == *address && one.interface == DEVICE);
        let presence = if is_there {
            Presence::Present
        } else {
            Presence::Missing
        };
        found.add(format!("address {address} on {DEVICE}"), presence);
    }
    Ok(())
}
