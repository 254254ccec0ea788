//! Everything that is open, for both families, and the path from one plan to the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ferry_host::conntrack::{self, Conntrack, Filter};
use ferry_model::{
    Changed, Family, FrontendKey, NodePlan, PerFamily, Plan, PortName, PortPlan, Protocol, Revision,
    ServiceName, ServicePlan,
};

use super::port::{Leaving, LivePort, Means};
use super::rules::Rules;
use super::{Options, RETRY_INTERVAL};
use crate::RelayedFlows;
use crate::relay::Relay;
use crate::userspace::handover::Transfer;
use crate::userspace::loopback::Loopback;
use crate::userspace::portals::{self, Listen, Rule};
use crate::userspace::ports::Ports;
use crate::userspace::render;
use crate::userspace::ruleset::{Ingress, PortRule};
use crate::userspace::wire::SocketName;
use crate::{Applied, Error, Inspection, Presence, Relayed, Traffic};

/// How long a change may wait for addresses that sockets of ours have left, all of them together.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);

const LOOPBACK: &str = "put virtual addresses on the loopback interface";

type LivePorts = BTreeMap<PortName, LivePort>;

#[derive(Debug, Default)]
struct FamilyState {
    applied: Option<(Revision, Arc<NodePlan>)>,
    services: BTreeMap<ServiceName, LivePorts>,
    /// Services of which something did not work, and what.
    unsettled: BTreeMap<ServiceName, Vec<String>>,
    /// Services of which something cannot work here, and what.
    unsupported: BTreeMap<ServiceName, Vec<String>>,
    leaving: Leaving,
    rules: Rules,
}

#[derive(Debug)]
pub(super) struct State {
    relay: Relay,
    ingress: Ingress,
    bind_address: Option<IpAddr>,
    ports: Ports,
    check: Duration,
    loopback: Option<Loopback>,
    families: PerFamily<FamilyState>,
    transfer: Transfer,
    retired: bool,
}

impl State {
    pub(super) fn new(options: &Options, relay: Relay) -> Self {
        State {
            relay,
            ingress: options.ingress,
            bind_address: options.bind_address.filter(|ip| !ip.is_unspecified()),
            ports: Ports::new(options.ports.clone()),
            check: options.check,
            loopback: None,
            families: PerFamily::default(),
            transfer: Transfer::default(),
            retired: false,
        }
    }

    pub(super) fn inherit(&mut self, transfer: Transfer) {
        self.transfer = transfer;
    }

    /// Whether all that was inherited has found its use, or belongs to families that have been applied and is of none.
    pub(super) fn has_settled_in(&self) -> bool {
        let mut families = self.transfer.sockets.keys().map(SocketName::family);
        families.all(|family| self.families.get(family).applied.is_some())
    }

    pub(super) fn forget_transfer(&mut self) {
        self.transfer = Transfer::default();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    pub(super) fn open_connections(&self) -> usize {
        self.relay.connections() + self.relay.sessions()
    }

    pub(super) fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        if self.retired {
            return Ok(applied);
        }
        self.settle_ingress();
        let names = self.affected(plan, family, &mut applied);
        self.change(plan, family, &names, &mut applied);
        if self.ingress == Ingress::Portals {
            self.write_rules(plan, family, names, &mut applied)
                .inspect_err(|_| {
                    self.families.get_mut(family).applied = None;
                })?;
            applied.warnings.extend(self.forget_flows(family));
        }
        applied.removed += self.close_leaving(family, &mut applied.warnings);
        if applied.full
            && let Some(loopback) = &mut self.loopback
        {
            loopback.sweep(family).map_err(Error::writing(LOOPBACK))?;
        }
        let state = self.families.get_mut(family);
        state.applied = Some((plan.revision(), plan.node().clone()));
        let problems = state.unsettled.values().chain(state.unsupported.values());
        applied.warnings.extend(problems.flatten().cloned());
        Ok(applied)
    }

    /// Where doors, addresses and rules differ from the plan. Reads only.
    pub(super) fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error> {
        let state = self.families.get_mut(family);
        let mut found: Vec<String> = state.unsettled.values().flatten().cloned().collect();
        let waiting = match &state.applied {
            Some((revision, _)) => plan.changed_since(*revision),
            None => Changed::Everything,
        };
        match waiting {
            Changed::Everything => found.push("everything waits for the next sync".into()),
            Changed::Services(names) => {
                found.extend(
                    names
                        .iter()
                        .map(|name| format!("service {name} waits for the next sync")),
                );
            }
        }
        if self.ingress == Ingress::Portals {
            found.extend(state.rules.differences(family)?);
        }
        if let Some(loopback) = &mut self.loopback {
            let missing = loopback.missing(family);
            let missing = missing.map_err(Error::reading("list the addresses of the loopback interface"))?;
            let tell = |address: IpAddr| format!("address {address} is not on the loopback interface");
            found.extend(missing.into_iter().map(tell));
        }
        Ok(found)
    }

    /// Where addresses may not be put on the loopback interface, service ports are mapped to local ports instead.
    fn settle_ingress(&mut self) {
        if self.ingress != Ingress::Loopback || self.loopback.is_some() {
            return;
        }
        let reason = match Loopback::open() {
            Ok(Some(mut loopback)) => match loopback.probe() {
                Ok(()) => {
                    self.loopback = Some(loopback);
                    return;
                }
                Err(error) => error.to_string(),
            },
            Ok(None) => "there is none".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            reason,
            "The loopback interface takes no addresses: mapping service ports to local ports"
        );
        self.ingress = Ingress::Mapped;
    }

    /// The services to look at: what changed, and what did not work before.
    fn affected(&self, plan: &Plan, family: Family, applied: &mut Applied) -> BTreeSet<ServiceName> {
        let state = self.families.get(family);
        let everything = || {
            let planned = plan.services().map(|service| service.name.clone());
            planned.chain(state.services.keys().cloned()).collect()
        };
        let changed = match &state.applied {
            Some((revision, node)) if node == plan.node() => plan.changed_since(*revision),
            _ => Changed::Everything,
        };
        match changed {
            Changed::Everything => {
                applied.full = true;
                everything()
            }
            Changed::Services(names) => names
                .into_iter()
                .cloned()
                .chain(state.unsettled.keys().cloned())
                .collect(),
        }
    }

    fn change(&mut self, plan: &Plan, family: Family, names: &BTreeSet<ServiceName>, applied: &mut Applied) {
        let home = render::home(plan.node().family(family));
        let render =
            |service: &Arc<ServicePlan>| render::render(service, plan.node(), family, &home, self.ingress);
        let mut wanted: Vec<(ServiceName, Vec<PortRule>)> = Vec::new();
        for name in names {
            wanted.push((name.clone(), plan.service(name).map(render).unwrap_or_default()));
        }
        let state = self.families.get_mut(family);
        for name in names {
            let what = plan
                .service(name)
                .map(|service| unsupported(service, family))
                .unwrap_or_default();
            if what.is_empty() {
                state.unsupported.remove(name)
            } else {
                state.unsupported.insert(name.clone(), what)
            };
        }
        for (name, rules) in &wanted {
            shrink(state, name, rules);
        }
        let mut wait_left = ADDRESS_TIMEOUT;
        for (name, rules) in wanted {
            let mut means = Means {
                family,
                ingress: self.ingress,
                bind_address: self.bind_address,
                relay: &self.relay,
                ports: &mut self.ports,
                loopback: self.loopback.as_mut(),
                transfer: &mut self.transfer,
                leaving: &mut state.leaving,
                wait_left: &mut wait_left,
                opened: 0,
                warnings: Vec::new(),
            };
            let was_settled = !state.unsettled.contains_key(&name);
            grow(&mut state.services, &name, rules, was_settled, &mut means);
            applied.added += means.opened;
            if means.warnings.is_empty() {
                state.unsettled.remove(&name)
            } else {
                state.unsettled.insert(name, means.warnings)
            };
        }
    }

    fn write_rules(
        &mut self,
        plan: &Plan,
        family: Family,
        names: BTreeSet<ServiceName>,
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let node = plan.node().family(family);
        let listen = Listen {
            address: self.bind_address.filter(|ip| Family::of(*ip) == family),
            node: node.node_ip.filter(|ip| node.addresses.contains(ip)),
        };
        let state = self.families.get_mut(family);
        let mut changes = Vec::new();
        for name in names {
            let mut rules: BTreeSet<Rule> = BTreeSet::new();
            for port in state.services.get(&name).into_iter().flat_map(BTreeMap::values) {
                for door in port.doors.values().filter(|door| door.is_open()) {
                    let leads = door
                        .rule
                        .leads
                        .iter()
                        .filter(|lead| is_ours(lead, port, family))
                        .copied();
                    let proxy_port = door.local.port();
                    rules.extend(portals::rules(
                        &port.rule.name,
                        &leads.collect(),
                        proxy_port,
                        listen,
                        node,
                    ));
                }
            }
            changes.push((name, rules));
        }
        state.rules.write(changes, family, self.check, applied)
    }

    /// Makes the kernel look at the rules again for flows of datagrams that it still sends the old way.
    fn forget_flows(&mut self, family: Family) -> Option<String> {
        let rerouted = std::mem::take(&mut self.families.get_mut(family).leaving.rerouted);
        if rerouted.is_empty() {
            return None;
        }
        let forget = || {
            let mut conntrack = Conntrack::open()?;
            for frontend in rerouted {
                let everywhere = |port| Filter {
                    destination: None,
                    ..Filter::to(Protocol::Udp.number(), (render::any(family), port).into())
                };
                let filter = match frontend {
                    FrontendKey::NodePort(_, port, _) => everywhere(port),
                    FrontendKey::Address(ip, port, _) => {
                        Filter::to(Protocol::Udp.number(), (ip, port).into())
                    }
                };
                conntrack.delete(&filter)?;
            }
            Ok::<(), conntrack::Error>(())
        };
        let error = forget().err()?;
        Some(format!("UDP clients may keep their old way for a while: {error}"))
    }

    fn close_leaving(&mut self, family: Family, warnings: &mut Vec<String>) -> usize {
        let leaving = &mut self.families.get_mut(family).leaving;
        let closed = leaving.close(&self.relay, &mut self.ports);
        for address in leaving.addresses.drain(..) {
            if let Some(loopback) = &mut self.loopback
                && let Err(error) = loopback.release(address)
            {
                warnings.push(format!("{address} stays on the loopback interface: {error}"));
            }
        }
        closed
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        let unsettled = Family::BOTH
            .iter()
            .any(|family| !self.families.get(*family).unsettled.is_empty());
        match (self.retired, unsettled, self.ingress) {
            (true, _, _) => None,
            (false, true, _) => Some(RETRY_INTERVAL),
            (false, false, Ingress::Portals) => Some(self.check),
            (false, false, Ingress::Loopback | Ingress::Mapped) => None,
        }
    }

    pub(super) fn cleanup(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for family in Family::BOTH {
            let state = self.families.get_mut(family);
            result = result.and(state.rules.remove(family));
            state.applied = None;
            for port in std::mem::take(&mut state.services)
                .into_values()
                .flat_map(BTreeMap::into_values)
            {
                port.dissolve(&mut state.leaving);
            }
            self.close_leaving(family, &mut Vec::new());
        }
        if self.loopback.is_none() {
            self.loopback = Loopback::open().map_err(Error::writing(LOOPBACK))?;
        }
        match &mut self.loopback {
            Some(loopback) => result.and(loopback.clear().map_err(Error::writing(LOOPBACK))),
            None => result,
        }
    }

    /// Each service port of a family with what is open for it.
    fn ports(&self) -> impl Iterator<Item = (Family, &LivePort)> {
        Family::BOTH.into_iter().flat_map(|family| {
            let services = self.families.get(family).services.values();
            services
                .flat_map(BTreeMap::values)
                .map(move |port| (family, port))
        })
    }

    pub(super) fn traffic(&self) -> Vec<Traffic> {
        self.ports()
            .map(|(family, port)| {
                let totals = port.port.counters.read();
                Traffic {
                    family,
                    port: port.rule.name.clone(),
                    endpoint: None,
                    connections: totals.connections,
                    bytes: Some((totals.bytes_received, totals.bytes_sent)),
                    relayed: Some(Relayed {
                        open: totals.active,
                        failed: totals.failed,
                        refused: totals.refused,
                    }),
                }
            })
            .collect()
    }

    /// The doors of a service port, and the rules that lead to them where there are such.
    pub(super) fn inspect(&mut self, port: &PortPlan) -> Result<Inspection, Error> {
        let mut found = Inspection::default();
        let state = self.families.get_mut(port.family);
        let ports = state.services.get(&port.name.service);
        let Some(live) = ports.and_then(|ports| ports.get(&port.name)) else {
            found.add(format!("a listening socket for {}", port.name), Presence::Missing);
            return Ok(found);
        };
        let connections = live.port.counters.read().connections;
        for door in live.doors.values() {
            let leads: Vec<String> = door.rule.leads.iter().map(FrontendKey::to_string).collect();
            let what = format!("socket at {} for {}", door.local, leads.join(", "));
            let presence = if door.is_open() {
                Presence::Present
            } else {
                Presence::Missing
            };
            found.add_counted(what, presence, Some(connections));
        }
        if self.ingress == Ingress::Portals {
            state.rules.inspect(port.family, &port.name.service, &mut found)?;
        }
        Ok(found)
    }

    /// Open connections and associations by endpoint.
    pub(super) fn relayed(&self) -> Vec<RelayedFlows> {
        let flows = |(family, port): (Family, &LivePort)| {
            let name = port.rule.name.clone();
            let open = port.port.balancer.open().into_iter();
            open.map(move |(endpoint, open)| RelayedFlows {
                family,
                port: name.clone(),
                endpoint,
                open: open as u64,
            })
            .collect::<Vec<RelayedFlows>>()
        };
        self.ports().flat_map(flows).collect()
    }

    /// The table of doors, and what is draining.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.retired {
            let open = self.open_connections();
            notes.push(format!(
                "a successor has taken over; {open} connection(s) are still open here"
            ));
        }
        for (_, port) in self.ports() {
            for door in port.doors.values().filter(|door| door.is_open()) {
                let leads: Vec<String> = door.rule.leads.iter().map(FrontendKey::to_string).collect();
                let (name, protocol) = (&port.rule.name, port.rule.name.protocol);
                notes.push(format!(
                    "{protocol} {name}: {} -> {}",
                    leads.join(", "),
                    door.local
                ));
            }
            let (endpoints, connections) = port.port.balancer.draining();
            if endpoints > 0 {
                let name = &port.rule.name;
                notes.push(format!(
                    "{name}: {connections} connection(s) to {endpoints} removed endpoint(s) drain"
                ));
            }
        }
        notes
    }

    /// All that a successor needs to go on: every socket, or the reason why not, and as many associations as there are
    /// files for.
    pub(super) fn transfer(&self) -> io::Result<Transfer> {
        let mut transfer = Transfer::default();
        for (family, port) in self.ports() {
            for door in port.doors.values() {
                let name = SocketName::Listener(door.name.clone());
                transfer
                    .sockets
                    .extend(door.share()?.map(|socket| (name, socket)));
            }
            for (address, held) in &port.claims {
                let name = SocketName::Claim((family, port.rule.name.clone()), *address);
                transfer.sockets.insert(name, held.as_fd().try_clone_to_owned()?);
            }
            let affinity = port.port.balancer.sticky();
            if !affinity.is_empty() {
                transfer
                    .affinity
                    .insert((family, port.rule.name.clone()), affinity);
            }
        }
        for door in self.ports().flat_map(|(_, port)| port.doors.values()) {
            let sessions = door.sessions();
            if !sessions.is_empty() {
                transfer.sessions.insert(door.name.clone(), sessions);
            }
        }
        Ok(transfer)
    }

    /// Stops accepting; what was accepted goes on.
    pub(super) fn retire(&mut self) {
        self.retired = true;
        for family in Family::BOTH {
            let state = self.families.get_mut(family);
            for port in state.services.values_mut().flat_map(BTreeMap::values_mut) {
                port.claims.clear();
                for door in port.doors.values_mut() {
                    door.leave(&self.relay);
                }
            }
            state.leaving.close(&self.relay, &mut self.ports);
        }
    }
}

fn shrink(state: &mut FamilyState, name: &ServiceName, rules: &[PortRule]) {
    let Some(live) = state.services.get_mut(name) else {
        return;
    };
    let wanted: HashMap<&PortName, &PortRule> = rules.iter().map(|rule| (&rule.name, rule)).collect();
    let gone: Vec<PortName> = live
        .keys()
        .filter(|name| !wanted.contains_key(name))
        .cloned()
        .collect();
    for port in gone.iter().filter_map(|name| live.remove(name)) {
        port.dissolve(&mut state.leaving);
    }
    for (name, port) in live.iter_mut() {
        if let Some(rule) = wanted.get(name) {
            port.shrink(rule, &mut state.leaving);
        }
    }
    if live.is_empty() {
        state.services.remove(name);
    }
}

fn grow(
    services: &mut BTreeMap<ServiceName, LivePorts>,
    name: &ServiceName,
    rules: Vec<PortRule>,
    was_settled: bool,
    means: &mut Means<'_>,
) {
    if rules.is_empty() {
        return;
    }
    let live = services.entry(name.clone()).or_default();
    for rule in rules {
        let port = live
            .entry(rule.name.clone())
            .or_insert_with(|| LivePort::new(rule.name.clone()));
        if !was_settled || port.rule != rule {
            port.grow(rule, means);
        }
    }
}

/// A frontend whose claim belongs to another process is left to it.
fn is_ours(lead: &FrontendKey, port: &LivePort, family: Family) -> bool {
    let claim = match *lead {
        FrontendKey::NodePort(_, number, _) => (render::any(family), number).into(),
        FrontendKey::Address(ip, number, _) => (ip, number).into(),
    };
    !port.rule.claims.contains(&claim) || port.claims.contains_key(&claim)
}

fn unsupported(service: &ServicePlan, family: Family) -> Vec<String> {
    let sctp = service
        .ports(family)
        .filter(|port| port.protocol() == Protocol::Sctp);
    sctp.map(|port| format!("Service {}: SCTP is not supported in userspace mode", port.name))
        .collect()
}
