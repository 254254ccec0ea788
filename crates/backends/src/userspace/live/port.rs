//! One service port: its doors, its claims, and the endpoints behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ferry_model::{Family, FrontendKey, PortName, Protocol};

use super::door::LiveDoor;
use crate::relay::{Port, Relay, hold};
use crate::userspace::handover::Transfer;
use crate::userspace::loopback::Loopback;
use crate::userspace::ports::Ports;
use crate::userspace::render::any;
use crate::userspace::ruleset::{DoorName, DoorRule, Ingress, Place, PortRule};
use crate::userspace::wire::SocketName;

/// How soon to look again whether an address has become free.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a service port needs from the backend to change.
#[derive(Debug)]
pub(super) struct Means<'a> {
    pub(super) family: Family,
    pub(super) ingress: Ingress,
    pub(super) bind_address: Option<IpAddr>,
    pub(super) relay: &'a Relay,
    pub(super) ports: &'a mut Ports,
    pub(super) loopback: Option<&'a mut Loopback>,
    pub(super) transfer: &'a mut Transfer,
    pub(super) leaving: &'a mut Leaving,
    /// How much longer to wait for addresses that sockets of ours have left.
    pub(super) wait_left: &'a mut Duration,
    pub(super) opened: usize,
    pub(super) warnings: Vec<String>,
}

impl Means<'_> {
    fn warn(&mut self, what: String) {
        self.warnings.push(what);
    }

    /// Where a door is to be opened.
    fn address(&mut self, name: &DoorName) -> Result<SocketAddr, String> {
        match name.place {
            Place::At(address) => Ok(address),
            Place::Proxy(_) => {
                let port = self.ports.allocate(name).map_err(|error| error.to_string())?;
                Ok(SocketAddr::new(self.proxy_ip(), port))
            }
        }
    }

    fn proxy_ip(&self) -> IpAddr {
        match (self.ingress, self.family) {
            (Ingress::Mapped, Family::V4) => Ipv4Addr::LOCALHOST.into(),
            (Ingress::Mapped, Family::V6) => Ipv6Addr::LOCALHOST.into(),
            (Ingress::Portals | Ingress::Loopback, family) => {
                let bound = self.bind_address.filter(|ip| Family::of(*ip) == family);
                bound.unwrap_or_else(|| any(family))
            }
        }
    }
}

/// What is no longer wanted, until nothing leads to it.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    pub(super) doors: Vec<LiveDoor>,
    pub(super) addresses: Vec<IpAddr>,
    /// Service ports without doors, and how long their connections may go on.
    pub(super) ports: Vec<(Arc<Port>, Option<Duration>)>,
    /// UDP frontends that lead elsewhere now: the kernel still sends flows that it tracks the old way.
    pub(super) rerouted: BTreeSet<FrontendKey>,
}

impl Leaving {
    /// The socket of a leaving door at an address: whoever waits in its queue is served by the door that takes it.
    fn take_socket(&mut self, door: &LiveDoor) -> Option<OwnedFd> {
        let Place::At(address) = door.name.place else {
            return None;
        };
        let same = |other: &LiveDoor| other.local == address && other.protocol() == door.protocol();
        let position = self
            .doors
            .iter()
            .position(|other| same(other) && other.is_open())?;
        self.doors[position].share().ok().flatten()
    }

    /// Notes which UDP frontends lead to another door under the new rule than under the old one.
    pub(super) fn reroute(&mut self, old: &PortRule, new: &PortRule) {
        if old.name.protocol == Protocol::Udp {
            let leads = |rule: &PortRule| -> BTreeSet<(Place, FrontendKey)> {
                let doors = rule.doors.iter();
                doors
                    .flat_map(|(place, door)| door.leads.iter().map(|lead| (*place, *lead)))
                    .collect()
            };
            let changed = leads(old)
                .symmetric_difference(&leads(new))
                .map(|(_, lead)| *lead)
                .collect::<Vec<_>>();
            self.rerouted.extend(changed);
        }
    }

    pub(super) fn close(&mut self, relay: &Relay, ports: &mut Ports) -> usize {
        let count = self.doors.len();
        for mut door in self.doors.drain(..) {
            door.close(relay);
            if matches!(door.name.place, Place::Proxy(_)) {
                ports.release(door.local.port());
            }
        }
        for (port, limit) in self.ports.drain(..) {
            relay.drain(port.balancer.retire(), limit);
        }
        count
    }
}

#[derive(Debug)]
pub(super) struct LivePort {
    pub(super) rule: PortRule,
    pub(super) port: Arc<Port>,
    pub(super) doors: BTreeMap<Place, LiveDoor>,
    pub(super) claims: BTreeMap<SocketAddr, OwnedFd>,
    addresses: BTreeSet<IpAddr>,
}

impl LivePort {
    pub(super) fn new(name: PortName) -> Self {
        LivePort {
            rule: PortRule::empty(name),
            port: Arc::default(),
            doors: BTreeMap::new(),
            claims: BTreeMap::new(),
            addresses: BTreeSet::new(),
        }
    }

    /// First what goes: doors, claims and addresses that the rule no longer has.
    pub(super) fn shrink(&mut self, rule: &PortRule, leaving: &mut Leaving) {
        self.claims.retain(|address, _| rule.claims.contains(address));
        let gone: Vec<Place> = self
            .doors
            .keys()
            .filter(|place| !rule.doors.contains_key(place))
            .copied()
            .collect();
        leaving
            .doors
            .extend(gone.iter().filter_map(|place| self.doors.remove(place)));
        leaving
            .addresses
            .extend(self.addresses.difference(&rule.addresses));
        self.addresses.retain(|address| rule.addresses.contains(address));
    }

    /// Then what comes and what changes. Says whether all of it worked.
    pub(super) fn grow(&mut self, rule: PortRule, means: &mut Means<'_>) -> bool {
        self.supply(&rule, means);
        means.leaving.reroute(&self.rule, &rule);
        let warned = means.warnings.len();
        for address in rule.addresses.difference(&self.addresses.clone()) {
            self.take_address(*address, means);
        }
        for address in &rule.claims {
            self.claim(*address, &rule, means);
        }
        for (place, door) in &rule.doors {
            let name = DoorName {
                family: means.family,
                port: rule.name.clone(),
                place: *place,
            };
            if !self.doors.contains_key(place) {
                match means.address(&name) {
                    Ok(local) => {
                        let new = LiveDoor::new(name, door.clone(), local, self.port.clone());
                        self.doors.insert(*place, new);
                        means.opened += 1;
                    }
                    Err(reason) => {
                        means.warn(format!("Service {}: {reason}", rule.name));
                        continue;
                    }
                }
            }
            if let Some(live) = self.doors.get_mut(place) {
                open(live, door, means);
            }
        }
        self.rule = rule;
        means.warnings.len() == warned
    }

    /// Puts the endpoints in place, before a door lets anyone in.
    fn supply(&mut self, rule: &PortRule, means: &mut Means<'_>) {
        self.port.set_options(rule.options);
        if self.rule.pools != rule.pools || self.rule.affinity != rule.affinity {
            let left = self.port.balancer.update(&rule.pools, rule.affinity);
            means.relay.drain(left, rule.options.drain);
        }
        let port = (means.family, rule.name.clone());
        if let Some(records) = means.transfer.affinity.remove(&port) {
            self.port.balancer.restore_sticky(&records);
        }
    }

    fn take_address(&mut self, address: IpAddr, means: &mut Means<'_>) {
        let Some(loopback) = means.loopback.as_deref_mut() else {
            return;
        };
        match loopback.take(address) {
            Ok(()) => {
                self.addresses.insert(address);
            }
            Err(error) => {
                let name = &self.rule.name;
                means.warn(format!(
                    "Service {name}: {address} cannot be put on the loopback interface: {error}"
                ));
            }
        }
    }

    fn claim(&mut self, address: SocketAddr, rule: &PortRule, means: &mut Means<'_>) {
        if self.claims.contains_key(&address) {
            return;
        }
        let protocol = rule.name.protocol;
        let name = SocketName::Claim((means.family, rule.name.clone()), address);
        let inherited = means.transfer.sockets.remove(&name);
        match inherited.map_or_else(|| hold(protocol, address), Ok) {
            Ok(held) => {
                self.claims.insert(address, held);
            }
            Err(error) => means.warn(format!(
                "Service {}: {address}/{protocol} is not ours to serve: {error}",
                rule.name
            )),
        }
    }

    /// Everything goes; connections to the endpoints are drained.
    pub(super) fn dissolve(self, leaving: &mut Leaving) {
        leaving.reroute(&self.rule, &PortRule::empty(self.rule.name.clone()));
        leaving.ports.push((self.port, self.rule.options.drain));
        leaving.doors.extend(self.doors.into_values());
        leaving.addresses.extend(self.addresses);
    }
}

fn is_in_use(result: &io::Result<()>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Opens or changes a door, with the socket of a predecessor or of a leaving door if there is one.
fn open(live: &mut LiveDoor, rule: &DoorRule, means: &mut Means<'_>) {
    let was_open = live.is_open();
    if !was_open
        && let Some(socket) = means
            .transfer
            .sockets
            .remove(&SocketName::Listener(live.name.clone()))
            .or_else(|| means.leaving.take_socket(live))
    {
        let allocated = live.local.port();
        live.receive(socket);
        if live.local.port() != allocated && matches!(live.name.place, Place::Proxy(_)) {
            means.ports.release(allocated);
            means.ports.take(live.local.port());
        }
    }
    let sessions = means.transfer.sessions.remove(&live.name).unwrap_or_default();
    let mut result = live.update(rule, means.relay, sessions);
    let mut was_ours = was_open;
    if result.is_err() && !means.leaving.doors.is_empty() {
        // What is in the way may be on its way out.
        means.leaving.close(means.relay, means.ports);
        result = live.update(rule, means.relay, Vec::new());
        was_ours = true;
    }
    // A process that is being started has a copy of every socket until it runs its program.
    while was_ours && is_in_use(&result) && !means.wait_left.is_zero() {
        std::thread::sleep(POLL_INTERVAL);
        *means.wait_left = means.wait_left.saturating_sub(POLL_INTERVAL);
        result = live.update(rule, means.relay, Vec::new());
    }
    if result.is_ok() && means.ingress == Ingress::Mapped && !was_open {
        let leads: Vec<String> = rule.leads.iter().map(FrontendKey::to_string).collect();
        let (name, protocol) = (&live.name.port, live.protocol());
        tracing::info!("{protocol} {name}: {} -> {}", leads.join(", "), live.local);
    }
    if let Err(error) = result {
        let (name, local, protocol) = (&live.name.port, live.local, live.protocol());
        means.warn(format!(
            "Service {name}: cannot listen on {local}/{protocol}: {error}"
        ));
    }
}
