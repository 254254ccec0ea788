//! What an update changed: who joined or left which pool, and what became of each frontend, with the reason.
//! Work follows what was replaced, and a reason is looked for only where it is asked for.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::facts::{EndpointSlice, SliceEndpoint};
use crate::names::{Family, PortName, ServiceName, SliceName};
use crate::plan::{Actions, Endpoint, Frontend, FrontendKey, FrontendKind, PortPlan, Replaced, ServicePlan};
use crate::snapshot::{Event, Snapshot};

/// The slices that events are about to change, as they are before.
#[derive(Clone, Debug, Default)]
pub struct Before {
    slices: HashMap<SliceName, Arc<EndpointSlice>>,
}

impl Before {
    /// Of the first so many events: the reasons of the others will be less exact.
    pub fn of(events: &[Event], snapshot: &Snapshot, most: usize) -> Self {
        let slices = events.iter().take(most).filter_map(|event| match event {
            Event::Slice(name, _) => Some((name.clone(), Arc::clone(snapshot.slice(name)?))),
            Event::Service(..) | Event::Node(_) | Event::ServiceCidr(..) | Event::Host(_) => None,
        });
        Before {
            slices: slices.collect(),
        }
    }

    fn slice_of(&self, service: &ServiceName, endpoint: SocketAddr) -> Option<&Arc<EndpointSlice>> {
        let mut slices = self.slices.values().filter(|slice| slice.service == *service);
        slices.find(|slice| slice.endpoints.iter().any(|known| known.address == endpoint.ip()))
    }
}

/// An endpoint that joined or left the endpoints that get traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub port: PortName,
    pub endpoint: SocketAddr,
    pub way: Way,
    pub pools: Pools,
    /// The object and field behind it.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Joined,
    Left,
}

/// Which pools are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    Cluster,
    Local,
    Both,
}

impl Pools {
    pub fn as_str(self) -> &'static str {
        match self {
            Pools::Cluster => "the cluster pool",
            Pools::Local => "the local pool",
            Pools::Both => "both pools",
        }
    }
}

/// Some of the moves, and how many there are more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    pub told: Vec<Move>,
    pub more: usize,
}

/// A frontend of which something else is decided than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub port: PortName,
    pub key: FrontendKey,
    pub kind: FrontendKind,
    /// `None` where it was or is not there.
    pub before: Option<Actions>,
    pub after: Option<Actions>,
}

/// A service's endpoints that joined or left, the first `most` with their reasons.
pub fn moves(replaced: &Replaced, before: &Before, snapshot: &Snapshot, most: usize) -> Moves {
    let mut found = Moves::default();
    for (old, new) in port_pairs(replaced) {
        for (had, has) in different(endpoints(old), endpoints(new)) {
            for (way, pools) in crossings(had, has) {
                if found.told.len() == most {
                    found.more += 1;
                    continue;
                }
                let Some((port, endpoint)) = new.or(old).zip(has.or(had)) else {
                    continue;
                };
                let case = Case {
                    old,
                    new,
                    had,
                    has,
                    way,
                };
                found.told.push(Move {
                    port: port.name.clone(),
                    endpoint: endpoint.address(),
                    way,
                    pools,
                    why: case.why(port, endpoint.address(), before, snapshot),
                });
            }
        }
    }
    found
}

/// A service's frontends that came, went or lead elsewhere; the first `most`.
pub fn decisions(replaced: &Replaced, most: usize) -> Vec<Decision> {
    let mut found = Vec::new();
    for (old, new) in port_pairs(replaced) {
        let Some(port) = new.or(old) else { continue };
        let (old, new) = (frontends(old), frontends(new));
        if old == new {
            continue;
        }
        let keyed = |frontends: &[Frontend]| -> BTreeMap<(FrontendKey, FrontendKind), Actions> {
            let all = frontends.iter().filter(|frontend| !frontend.shadowed);
            all.map(|frontend| ((frontend.key, frontend.kind), frontend.actions))
                .collect()
        };
        let (mut had, has) = (keyed(old), keyed(new));
        let mut tell = |key, kind, before: Option<Actions>, after: Option<Actions>| {
            if before != after && found.len() < most {
                found.push(Decision {
                    port: port.name.clone(),
                    key,
                    kind,
                    before,
                    after,
                });
            }
        };
        for ((key, kind), actions) in has {
            tell(key, kind, had.remove(&(key, kind)), Some(actions));
        }
        for ((key, kind), actions) in had {
            tell(key, kind, Some(actions), None);
        }
    }
    found
}

/// A port before and after; `None` where there was or is none.
type PortPair<'a> = (Option<&'a PortPlan>, Option<&'a PortPlan>);

/// The ports of a service before and after, side by side.
fn port_pairs(replaced: &Replaced) -> Vec<PortPair<'_>> {
    fn ports(service: Option<&Arc<ServicePlan>>) -> &[PortPlan] {
        service.map_or(&[], |service| &service.ports)
    }
    let mut pairs: BTreeMap<(Family, &PortName), PortPair<'_>> = BTreeMap::new();
    for port in ports(replaced.old.as_ref()) {
        pairs.entry((port.family, &port.name)).or_default().0 = Some(port);
    }
    for port in ports(replaced.new.as_ref()) {
        pairs.entry((port.family, &port.name)).or_default().1 = Some(port);
    }
    pairs.into_values().filter(|(old, new)| old != new).collect()
}

fn endpoints(port: Option<&PortPlan>) -> &[Endpoint] {
    port.map_or(&[], |port| &port.endpoints)
}

fn frontends(port: Option<&PortPlan>) -> &[Frontend] {
    port.map_or(&[], |port| &port.frontends)
}

type Pair<'a> = (Option<&'a Endpoint>, Option<&'a Endpoint>);

/// Walks both lists, which are sorted by text, side by side; texts are made only where addresses differ.
fn different<'a>(old: &'a [Endpoint], new: &'a [Endpoint]) -> Vec<Pair<'a>> {
    let mut found = Vec::new();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let pair = match (old.peek(), new.peek()) {
            (None, None) => return found,
            (Some(had), Some(has)) if had.address() == has.address() => (old.next(), new.next()),
            (Some(had), Some(has)) if had.address().to_string() < has.address().to_string() => {
                (old.next(), None)
            }
            (Some(_), None) => (old.next(), None),
            (_, Some(_)) => (None, new.next()),
        };
        if pair.0 != pair.1 {
            found.push(pair);
        }
    }
}

/// The ways that an endpoint went: into pools, out of pools.
fn crossings(had: Option<&Endpoint>, has: Option<&Endpoint>) -> impl Iterator<Item = (Way, Pools)> {
    let of = |endpoint: Option<&Endpoint>| {
        endpoint.map_or((false, false), |endpoint| {
            (endpoint.in_cluster_pool(), endpoint.in_local_pool())
        })
    };
    let (before, after) = (of(had), of(has));
    let pools = |cluster: bool, local: bool| match (cluster, local) {
        (true, true) => Some(Pools::Both),
        (true, false) => Some(Pools::Cluster),
        (false, true) => Some(Pools::Local),
        (false, false) => None,
    };
    let joined = pools(!before.0 && after.0, !before.1 && after.1);
    let left = pools(before.0 && !after.0, before.1 && !after.1);
    let joined = joined.map(|pools| (Way::Joined, pools));
    joined.into_iter().chain(left.map(|pools| (Way::Left, pools)))
}

/// One endpoint that crossed.
#[derive(Clone, Copy)]
struct Case<'a> {
    old: Option<&'a PortPlan>,
    new: Option<&'a PortPlan>,
    had: Option<&'a Endpoint>,
    has: Option<&'a Endpoint>,
    way: Way,
}

impl Case<'_> {
    fn why(&self, port: &PortPlan, endpoint: SocketAddr, before: &Before, snapshot: &Snapshot) -> String {
        let service = &port.name.service;
        if self.new.is_none() {
            return match snapshot.service(service) {
                None => format!("Service {service} is gone"),
                Some(_) => format!("Service {service} has no such port any more, or no address for it"),
            };
        }
        let holder = snapshot.slices(service).find_map(|slice| {
            let mut endpoints = slice.endpoints.iter();
            let known = endpoints.find(|known| known.address == endpoint.ip())?;
            Some((&slice.name, known))
        });
        match (self.had, self.has, holder) {
            (_, None, _) => gone(service, endpoint, before, snapshot),
            (Some(had), Some(has), Some((slice, fact))) => self.changed(had, has, slice.name(), fact),
            (None, Some(has), Some((slice, fact))) if self.old.is_some() => {
                format!("slice {} has it now, with {}", slice.name(), conditions(fact)) + draining(has)
            }
            (None, Some(has), Some((slice, fact))) => {
                let slice = slice.name();
                format!("the service port is new; slice {slice} says {}", conditions(fact)) + draining(has)
            }
            (_, Some(_), None) => "its slice changed".to_owned(),
        }
    }

    /// The endpoint is known before and after, and its state or the choice among all changed.
    fn changed(&self, had: &Endpoint, has: &Endpoint, slice: &str, fact: &SliceEndpoint) -> String {
        let state = |endpoint: &Endpoint| {
            (
                endpoint.is_ready(),
                endpoint.is_serving(),
                endpoint.is_terminating(),
            )
        };
        if state(had) != state(has) {
            return format!("slice {slice} says {}", conditions(fact)) + draining(has);
        }
        if had.is_local() != has.is_local() {
            return format!(
                "slice {slice} says that it runs on node {}",
                fact.node.as_deref().unwrap_or("(none)")
            );
        }
        let policies =
            |port: Option<&PortPlan>| port.map(|port| (port.internal_policy, port.external_policy));
        if policies(self.old) != policies(self.new) {
            return "the traffic policy of the Service changed".to_owned();
        }
        match (self.way, has.is_ready()) {
            (Way::Joined, false) => "no endpoint is ready any more, and this one still serves".to_owned(),
            (Way::Left, false) => "others are ready again, and this one terminates".to_owned(),
            (Way::Joined, true) => format!("the hints of the slices lead here now ({})", hints(slice, fact)),
            (Way::Left, true) => format!("the hints of the slices lead elsewhere ({})", hints(slice, fact)),
        }
    }
}

fn gone(service: &ServiceName, endpoint: SocketAddr, before: &Before, snapshot: &Snapshot) -> String {
    match before.slice_of(service, endpoint) {
        Some(slice) if snapshot.slice(&slice.name).is_none() => {
            format!("slice {} is gone", slice.name.name())
        }
        Some(slice) => format!("slice {} does not have it any more", slice.name.name()),
        None => "no slice has it any more".to_owned(),
    }
}

fn conditions(fact: &SliceEndpoint) -> String {
    let mut text = format!("ready={}", fact.ready);
    if !fact.ready || fact.terminating {
        text.push_str(&format!(
            ", serving={}, terminating={}",
            fact.serving, fact.terminating
        ));
    }
    text
}

fn draining(endpoint: &Endpoint) -> &'static str {
    let is_used = endpoint.in_cluster_pool() || endpoint.in_local_pool();
    if is_used && !endpoint.is_ready() {
        ", and no endpoint is ready"
    } else {
        ""
    }
}

fn hints(slice: &str, fact: &SliceEndpoint) -> String {
    let join = |names: &[Arc<str>]| {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        names.join(" and ")
    };
    match (fact.node_hints(), fact.zone_hints()) {
        ([], []) => format!("slice {slice} has none for it"),
        ([], zones) => format!("slice {slice}: for zone {}", join(zones)),
        (nodes, _) => format!("slice {slice}: for node {}", join(nodes)),
    }
}
