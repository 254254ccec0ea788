//! Every endpoint of a service port, and why it gets traffic or does not.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Because, HintsUnused};
use crate::facts::{EndpointSlice, ObjectRef, SliceEndpoint};
use crate::names::SliceName;
use crate::plan::{NodePlan, PortPlan, Scope, Topology, is_draining, merge, topology};

/// An endpoint as a slice has it, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFate {
    pub address: SocketAddr,
    pub slice: SliceName,
    pub node: Option<Arc<str>>,
    pub fate: Fate,
    /// The field that says so, where it is left out.
    pub because: Option<Because>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Used,
    /// It terminates, and is used because no other is ready.
    UsedDraining,
    NotReady,
    /// It terminates, and others are ready.
    Terminating,
    /// The policy is Local, and it is on another node.
    Elsewhere,
    /// Its hints are for others.
    HintedElsewhere,
    /// Another slice says the same address, and counts.
    Doubled,
}

impl Fate {
    pub fn is_used(self) -> bool {
        matches!(self, Fate::Used | Fate::UsedDraining)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::Used => "gets traffic",
            Fate::UsedDraining => "gets traffic although it terminates: no other is ready",
            Fate::NotReady => "left out: not ready",
            Fate::Terminating => "left out: terminating",
            Fate::Elsewhere => "left out: on another node",
            Fate::HintedElsewhere => "left out: meant for others",
            Fate::Doubled => "left out: another slice has the same address",
        })
    }
}

/// The endpoints of a port, as they stand in the slices.
pub(super) fn fates(slices: &[&Arc<EndpointSlice>], port: &PortPlan, scope: Scope) -> Vec<EndpointFate> {
    let merged = merge(slices, port.family, &port.name.port, port.protocol());
    let mut all = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == port.family) {
        let ports = slice.ports.iter();
        let ports = ports.filter(|one| *one.name == *port.name.port && one.protocol == port.protocol());
        for number in ports.map(|one| one.port) {
            for (index, endpoint) in slice.endpoints.iter().enumerate() {
                let address = SocketAddr::new(endpoint.address, number);
                let counts = merged.iter().any(|(_, one)| std::ptr::eq(*one, endpoint));
                let used = counts && port.pool(scope).addresses().any(|used| used == address);
                let fate = fate(endpoint, counts, used, scope, port);
                all.push(EndpointFate {
                    address,
                    slice: slice.name.clone(),
                    node: endpoint.node.clone(),
                    fate,
                    because: because(&slice.name, index, endpoint, fate),
                });
            }
        }
    }
    all
}

fn fate(endpoint: &SliceEndpoint, counts: bool, used: bool, scope: Scope, port: &PortPlan) -> Fate {
    let is_local = |address| {
        let mut endpoints = port.endpoints.iter();
        endpoints.any(|one| one.address().ip() == address && one.is_local())
    };
    if !counts {
        Fate::Doubled
    } else if used && endpoint.ready {
        Fate::Used
    } else if used {
        Fate::UsedDraining
    } else if endpoint.terminating && !endpoint.ready {
        Fate::Terminating
    } else if !endpoint.ready {
        Fate::NotReady
    } else if scope == Scope::Local && !is_local(endpoint.address) {
        Fate::Elsewhere
    } else {
        Fate::HintedElsewhere
    }
}

fn because(slice: &SliceName, index: usize, endpoint: &SliceEndpoint, fate: Fate) -> Option<Because> {
    let hints = || {
        let zones = endpoint.zone_hints().join(",");
        let nodes = endpoint.node_hints().join(",");
        match nodes.as_str() {
            "" => ("hints.forZones", zones),
            _ => ("hints.forNodes", nodes),
        }
    };
    let (field, value) = match fate {
        Fate::Used | Fate::Doubled => return None,
        Fate::UsedDraining | Fate::Terminating => ("conditions.terminating", "true".to_owned()),
        Fate::NotReady => ("conditions.ready", "false".to_owned()),
        Fate::Elsewhere => (
            "nodeName",
            endpoint
                .node
                .as_deref()
                .map_or_else(|| "unset".to_owned(), str::to_owned),
        ),
        Fate::HintedElsewhere => hints(),
    };
    let object = ObjectRef::Other {
        kind: "EndpointSlice",
        name: slice.to_string(),
    };
    let field = format!("endpoints[{index}].{field}");
    Some(Because::of(object, &field, value))
}

/// How hints were treated: followed, there and unused, or not there.
pub(super) enum Hints {
    Absent,
    Node,
    Zone,
    Unused(HintsUnused),
}

pub(super) fn hints(slices: &[&Arc<EndpointSlice>], port: &PortPlan, node: &NodePlan) -> Hints {
    let merged = merge(slices, port.family, &port.name.port, port.protocol());
    let ready = || merged.iter().map(|(_, one)| *one).filter(|one| one.ready);
    let is_hinted = |one: &SliceEndpoint| !one.zone_hints().is_empty() || !one.node_hints().is_empty();
    match topology(&merged, &node.name, node.zone.as_deref()) {
        _ if !ready().any(is_hinted) => Hints::Absent,
        Topology::SameNode(_) => Hints::Node,
        Topology::SameZone(_) => Hints::Zone,
        Topology::Anywhere => {
            let without = ready().filter(|one| one.zone_hints().is_empty()).count();
            Hints::Unused(match &node.zone {
                _ if without > 0 => HintsUnused::SomeWithout { count: without },
                None => HintsUnused::NoZone,
                Some(zone) => {
                    let hinted: BTreeSet<&Arc<str>> = ready().flat_map(SliceEndpoint::zone_hints).collect();
                    HintsUnused::NoneForZone {
                        zone: Arc::clone(zone),
                        hinted: hinted.into_iter().cloned().collect(),
                    }
                }
            })
        }
    }
}

/// How many endpoints could serve if they were looked for everywhere: the ready ones, or else those that drain.
pub(super) fn usable(slices: &[&Arc<EndpointSlice>], port: &PortPlan) -> usize {
    let merged = merge(slices, port.family, &port.name.port, port.protocol());
    let count = |usable: fn(&SliceEndpoint) -> bool| merged.iter().filter(|(_, one)| usable(one)).count();
    match count(|one| one.ready) {
        0 => count(is_draining),
        ready => ready,
    }
}
