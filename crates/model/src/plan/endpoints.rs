//! Slices -> the endpoints of one service port, and which of them each kind of traffic may use.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Endpoint, NodePlan};
use crate::facts::{EndpointSlice, SliceEndpoint};
use crate::names::{Family, Protocol};

/// Which pools a service port needs at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

/// The endpoints of a service port, merged over its slices, sorted, and with their pools decided.
/// The flag tells whether the cluster has any usable endpoint.
pub(super) fn endpoints(
    slices: &[&Arc<EndpointSlice>],
    family: Family,
    port_name: &str,
    protocol: Protocol,
    wanted: Wanted,
    node: &NodePlan,
) -> (Box<[Endpoint]>, bool) {
    let merged = merge(slices, family, port_name, protocol);
    let is_local =
        |endpoint: &SliceEndpoint| !node.name.is_empty() && endpoint.node.as_deref() == Some(&*node.name);
    let cluster_pool = wanted.cluster.then(|| cluster_pool(&merged, node));
    let local_pool = wanted.local.then(|| ready_or_draining(&merged, is_local));

    let planned: Box<[Endpoint]> = merged
        .iter()
        .map(|&(address, endpoint)| {
            let flag = |on: bool, flag: u8| if on { flag } else { 0 };
            let in_pool = |pool: &Option<Choice<'_>>| pool.as_ref().is_some_and(|pool| pool.has(endpoint));
            let flags = flag(is_local(endpoint), Endpoint::LOCAL)
                | flag(endpoint.ready, Endpoint::READY)
                | flag(endpoint.serving, Endpoint::SERVING)
                | flag(endpoint.terminating, Endpoint::TERMINATING)
                | flag(
                    node.policy.remote_hairpins || is_local(endpoint),
                    Endpoint::HAIRPIN,
                )
                | flag(in_pool(&cluster_pool), Endpoint::IN_CLUSTER_POOL)
                | flag(
                    is_local(endpoint) && in_pool(&local_pool),
                    Endpoint::IN_LOCAL_POOL,
                );
            Endpoint::new(address, flags)
        })
        .collect();
    let cluster_has_any = planned.iter().any(|endpoint| endpoint.in_cluster_pool());
    let has_any = cluster_has_any || wanted.local && merged.iter().any(|(_, e)| e.ready || is_draining(e));
    (planned, has_any)
}

pub(crate) type Merged<'a> = [(SocketAddr, &'a SliceEndpoint)];

/// All endpoints of the port, each address once: one that is not terminating beats one that is, a later slice beats
/// an earlier one.
pub(crate) fn merge<'a>(
    slices: &[&'a Arc<EndpointSlice>],
    family: Family,
    port_name: &str,
    protocol: Protocol,
) -> Vec<(SocketAddr, &'a SliceEndpoint)> {
    let mut all = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        let ports = slice
            .ports
            .iter()
            .filter(|port| *port.name == *port_name && port.protocol == protocol);
        for port in ports {
            all.extend(
                slice
                    .endpoints
                    .iter()
                    .map(|endpoint| (SocketAddr::new(endpoint.address, port.port), endpoint)),
            );
        }
    }
    if all.len() > 1 {
        all.sort_by_cached_key(|(address, _)| TextKey::of(*address));
    }
    all.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same && !later.1.terminating {
            *kept = *later;
        }
        same
    });
    all
}

/// An endpoint's text form without an allocation: kube-proxy sorts by it, so chain contents depend on it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct TextKey([u8; 48]);

impl TextKey {
    fn of(address: SocketAddr) -> Self {
        let mut text = [0; 48];
        // The longest form, `[` eight groups `]:65535`, has 47 bytes, so this cannot run out of room.
        let _ = write!(&mut text[..], "{address}");
        TextKey(text)
    }
}

pub(crate) fn is_draining(endpoint: &SliceEndpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

/// A choice among the endpoints: those that are ready, or else those that still serve while they terminate.
enum Choice<'a> {
    Ready(Topology<'a>),
    Draining,
    Empty,
}

impl Choice<'_> {
    fn has(&self, endpoint: &SliceEndpoint) -> bool {
        match self {
            Choice::Ready(topology) => endpoint.ready && topology.allows(endpoint),
            Choice::Draining => is_draining(endpoint),
            Choice::Empty => false,
        }
    }
}

/// Hints count among ready endpoints only: a draining cluster needs every endpoint that still serves.
fn cluster_pool<'a>(endpoints: &Merged<'_>, node: &'a NodePlan) -> Choice<'a> {
    match ready_or_draining(endpoints, |_| true) {
        Choice::Ready(_) => Choice::Ready(topology(endpoints, &node.name, node.zone.as_deref())),
        other => other,
    }
}

fn ready_or_draining<'a>(endpoints: &Merged<'_>, counts: impl Fn(&SliceEndpoint) -> bool) -> Choice<'a> {
    let any = |state: fn(&SliceEndpoint) -> bool| endpoints.iter().any(|(_, e)| counts(e) && state(e));
    if any(|endpoint| endpoint.ready) {
        Choice::Ready(Topology::Anywhere)
    } else if any(is_draining) {
        Choice::Draining
    } else {
        Choice::Empty
    }
}

/// For which of the ready endpoints hints leave a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology<'a> {
    Anywhere,
    SameNode(&'a str),
    SameZone(&'a str),
}

impl Topology<'_> {
    fn allows(&self, endpoint: &SliceEndpoint) -> bool {
        match self {
            Topology::Anywhere => true,
            Topology::SameNode(node) => endpoint.node_hints().iter().any(|hint| **hint == **node),
            Topology::SameZone(zone) => endpoint.zone_hints().iter().any(|hint| **hint == **zone),
        }
    }
}

/// Hints are followed only if every ready endpoint has one and some endpoint is meant for us: otherwise following
/// them would overload or strand somebody. Node hints go before zone hints.
pub(crate) fn topology<'a>(endpoints: &Merged<'_>, node: &'a str, zone: Option<&'a str>) -> Topology<'a> {
    let ready = || {
        endpoints
            .iter()
            .map(|(_, endpoint)| *endpoint)
            .filter(|endpoint| endpoint.ready)
    };
    let same_node = Topology::SameNode(node);
    if ready().all(|e| !e.node_hints().is_empty()) && ready().any(|e| same_node.allows(e)) {
        return same_node;
    }
    let same_zone = Topology::SameZone(zone.unwrap_or_default());
    if ready().all(|e| !e.zone_hints().is_empty()) && ready().any(|e| same_zone.allows(e)) {
        return same_zone;
    }
    Topology::Anywhere
}
