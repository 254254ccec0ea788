//! Plan -> what the table should hold. Pure. Services become pieces one by one, so that the same code serves the
//! whole table and the one service that changed.

mod affinity;
mod fixed;
mod port;
mod shared;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_host::nftables::{self as nft, Element, SetDecl};
use ferry_model::{Action, Family, NodeFamily, NodePlan, Plan, PortPlan, ServicePlan};

use super::ruleset::{Chain, Name, Ruleset, Set, element_key};
use super::{Options, names};
use crate::Likeness;
pub(super) use shared::Shared;

/// Where the slots of Local pools start in the maps of endpoints; those of Cluster pools start at zero.
pub(super) const LOCAL_SLOTS: u32 = 1 << 16;
/// The largest pool: its size is half of a number. What is beyond gets nothing.
const MAX_SLOTS: usize = LOCAL_SLOTS as usize - 1;

/// Everything but the services that the table depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) family: nft::Family,
    pub(super) mark: u32,
    pub(super) counters: bool,
    pub(super) likeness: Likeness,
    pub(super) unknown_ports: Action,
    pub(super) unallocated: Action,
    pub(super) node: NodeFamily,
}

impl Context {
    pub(super) fn new(node: &NodePlan, family: Family, options: &Options) -> Self {
        let mut own = node.family(family).clone();
        // Not used here: a new address of the host must not look like a change of the rules.
        own.addresses = Vec::new();
        own.node_ip = None;
        Self {
            family: match family {
                Family::V4 => nft::Family::Ip,
                Family::V6 => nft::Family::Ip6,
            },
            mark: 1u32 << (options.masquerade_bit & 31),
            counters: options.counters,
            likeness: options.likeness,
            unknown_ports: node.unknown_ports,
            unallocated: node.unallocated,
            node: own,
        }
    }
}

/// The sets and maps that are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FixedSet {
    ClusterIps,
    NodePortIps,
    Hairpin,
    ServiceIps,
    ServiceNodePorts,
    NoEndpointServices,
    NoEndpointNodePorts,
    FirewallIps,
    ServiceCidrs,
    Protocols,
    Endpoints,
    NodePortEndpoints,
    Frontends,
    NodePorts,
    ShortCircuits,
    NodePortShortCircuits,
    Balancers,
    NodePortBalancers,
    ShortCircuitBalancers,
    NodePortShortCircuitBalancers,
}

impl FixedSet {
    pub(super) const ALL: [Self; 20] = [
        Self::ClusterIps,
        Self::NodePortIps,
        Self::Hairpin,
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::FirewallIps,
        Self::ServiceCidrs,
        Self::Protocols,
        Self::Endpoints,
        Self::NodePortEndpoints,
        Self::Frontends,
        Self::NodePorts,
        Self::ShortCircuits,
        Self::NodePortShortCircuits,
        Self::Balancers,
        Self::NodePortBalancers,
        Self::ShortCircuitBalancers,
        Self::NodePortShortCircuitBalancers,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ClusterIps => names::CLUSTER_IPS,
            Self::NodePortIps => names::NODE_PORT_IPS,
            Self::Hairpin => names::HAIRPIN,
            Self::ServiceIps => names::SERVICE_IPS,
            Self::ServiceNodePorts => names::SERVICE_NODE_PORTS,
            Self::NoEndpointServices => names::NO_ENDPOINT_SERVICES,
            Self::NoEndpointNodePorts => names::NO_ENDPOINT_NODE_PORTS,
            Self::FirewallIps => names::FIREWALL_IPS,
            Self::ServiceCidrs => names::SERVICE_CIDRS,
            Self::Protocols => names::PROTOCOLS,
            Self::Endpoints => names::ENDPOINTS,
            Self::NodePortEndpoints => names::NODE_PORT_ENDPOINTS,
            Self::Frontends => names::FRONTENDS,
            Self::NodePorts => names::NODE_PORTS,
            Self::ShortCircuits => names::SHORT_CIRCUITS,
            Self::NodePortShortCircuits => names::NODE_PORT_SHORT_CIRCUITS,
            Self::Balancers => names::BALANCERS,
            Self::NodePortBalancers => names::NODE_PORT_BALANCERS,
            Self::ShortCircuitBalancers => names::SHORT_CIRCUIT_BALANCERS,
            Self::NodePortShortCircuitBalancers => names::NODE_PORT_SHORT_CIRCUIT_BALANCERS,
        }
    }

    /// Whether its elements are where new connections are counted.
    fn counts_traffic(self) -> bool {
        matches!(
            self,
            Self::Frontends | Self::NodePorts | Self::Endpoints | Self::NodePortEndpoints
        )
    }
}

/// One thing that a service needs in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// An element that is this service's alone: the plan gives each frontend to one service.
    Element(FixedSet, Element),
    /// Something that other services may need too.
    Shared(Shared),
    /// A chain of its own.
    Chain(Name, Chain),
    /// A set of its own.
    Set(Name, Set),
}

/// What a service needs in the table of a family.
pub(super) fn service(service: &ServicePlan, context: &Context) -> Vec<Piece> {
    let family = match context.family {
        nft::Family::Ip => Family::V4,
        nft::Family::Ip6 => Family::V6,
    };
    let mut pieces = Vec::new();
    for plan in service.ports(family) {
        port::render(plan, context, &mut pieces);
    }
    pieces
}

/// What one of its ports needs.
pub(super) fn port(plan: &PortPlan, context: &Context) -> Vec<Piece> {
    let mut pieces = Vec::new();
    port::render(plan, context, &mut pieces);
    pieces
}

pub(super) use fixed::render as fixed;

/// The whole table.
pub(super) fn ruleset(plan: &Plan, context: &Context) -> Ruleset {
    let mut ruleset = fixed(context);
    for plan in plan.services() {
        for piece in service(plan, context) {
            match piece {
                Piece::Element(set, element) => insert(&mut ruleset.sets, set.name(), element),
                Piece::Chain(name, chain) => drop(ruleset.chains.insert(name, chain)),
                Piece::Set(name, set) => drop(ruleset.sets.insert(name, set)),
                Piece::Shared(shared) => {
                    let objects = shared.objects(context);
                    ruleset.chains.extend(objects.chains);
                    ruleset.sets.extend(objects.sets);
                    for (set, element) in objects.elements {
                        insert(&mut ruleset.sets, set.name(), element);
                    }
                }
            }
        }
    }
    ruleset
}

fn insert(sets: &mut BTreeMap<Name, Set>, name: &str, element: Element) {
    if let Some(set) = sets.get_mut(name) {
        set.elements.insert(element_key(&element), element);
    }
}

fn set(decl: SetDecl, elements: impl IntoIterator<Item = Element>) -> Set {
    let elements = elements
        .into_iter()
        .map(|element| (element_key(&element), element))
        .collect();
    Set { decl, elements }
}

/// An address's bytes, as keys have them.
enum Octets {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Octets {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => Self::V6(address.octets()),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::V4(octets) => octets,
            Self::V6(octets) => octets,
        }
    }
}

fn text(text: &str) -> Option<Arc<str>> {
    Some(text.into())
}
