//! The node's own part of the plan: who is local, where node ports are answered, which networks are for services, and
//! what happens to packets that are nearly a service's.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::frontend::{Action, Client};
use crate::facts::Node;
use crate::names::{Family, PerFamily};
use crate::options::{DetectLocal, LocalhostNodePorts, NodePortAddress, PlanOptions, Policy};
use crate::snapshot::Snapshot;

/// The part of the plan that no service owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    pub name: Arc<str>,
    pub zone: Option<Arc<str>>,
    /// Connections end here and others go on from here, so an endpoint never sees the client's address.
    pub relays: bool,
    /// The addresses of services are addresses of the node: it sends to them from themselves.
    pub binds_service_addresses: bool,
    /// A node port that refuses others does so at every local address; else only where node ports are answered.
    pub refuses_node_ports_everywhere: bool,
    /// What happens at a port that no service has, of a cluster IP; of the other addresses of services too where they
    /// are bound.
    pub unknown_ports: Action,
    /// What happens at an address of the service networks that no service has.
    pub unallocated: Action,
    pub families: PerFamily<NodeFamily>,
    pub(super) policy: Policy,
    pub(super) allow_external_ips: bool,
}

impl NodePlan {
    pub fn family(&self, family: Family) -> &NodeFamily {
        self.families.get(family)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFamily {
    /// How traffic of local pods is recognised.
    pub detector: Detector,
    /// Whose traffic for cluster IPs is masqueraded.
    pub masqueraded: Masqueraded,
    pub node_ip: Option<IpAddr>,
    pub node_ports: NodePorts,
    /// Whether node ports answer on loopback addresses.
    pub localhost_node_ports: bool,
    pub service_cidrs: Vec<IpNet>,
    /// Every address of this host, loopback included.
    pub addresses: Vec<IpAddr>,
}

impl NodeFamily {
    /// Whether an address is this node's own.
    pub fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// Whether node ports are answered at one of the node's addresses.
    pub fn answers_node_ports_at(&self, address: IpAddr) -> bool {
        match &self.node_ports {
            NodePorts::All => !address.is_loopback() || self.localhost_node_ports,
            NodePorts::Only(addresses) => addresses.contains(&address),
        }
    }
}

/// Tells whether a packet comes from a local pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    /// Nothing is known; nothing is decided by it.
    None,
    Cidr(IpNet),
    Bridge(Arc<str>),
    InterfacePrefix(Arc<str>),
}

/// Clients whose address is replaced by the node's, so that answers come back this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masqueraded {
    Nobody,
    /// The node itself, which sends from the service's address.
    Node,
    /// Everybody who is not recognised as a local pod.
    NotPods,
    Everybody,
}

impl Masqueraded {
    pub(super) fn includes(self, client: Client) -> bool {
        match self {
            Masqueraded::Nobody => false,
            Masqueraded::Node => client == Client::Node,
            Masqueraded::NotPods => client != Client::Pod,
            Masqueraded::Everybody => true,
        }
    }
}

/// The local addresses on which node ports are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// Every local address; loopback only with `localhost_node_ports`.
    All,
    /// These; loopback addresses are among them only with `localhost_node_ports`.
    Only(Vec<IpAddr>),
}

pub(super) fn plan_node(options: &PlanOptions, snapshot: &Snapshot) -> NodePlan {
    let policy = options.policy;
    let if_so = |decided: bool, action: Action| if decided { action } else { Action::NotOurs };
    NodePlan {
        name: Arc::clone(&options.node_name),
        zone: snapshot.node().and_then(|node| node.zone.clone()),
        relays: policy.relays,
        binds_service_addresses: policy.binds_addresses,
        refuses_node_ports_everywhere: policy.node_port_verdicts_everywhere,
        unknown_ports: if_so(policy.reject_unknown_ports, Action::Reject),
        unallocated: if_so(policy.drop_unallocated, Action::Drop),
        families: PerFamily::from_fn(|family| plan_family(options, snapshot, family)),
        policy,
        allow_external_ips: options.allow_external_ips,
    }
}

fn plan_family(options: &PlanOptions, snapshot: &Snapshot, family: Family) -> NodeFamily {
    let addresses = snapshot.host().addresses.iter().copied();
    let addresses: Vec<IpAddr> = addresses.filter(|ip| Family::of(*ip) == family).collect();
    let localhost = *options.policy.localhost_node_ports.get(family);
    let ports = NodePortNetworks::of(options, snapshot, family);
    let detector = detector(options, snapshot, family);
    let node_ip = node_ip(options, snapshot.node().map(|node| &**node), family);
    NodeFamily {
        masqueraded: masqueraded(options, &detector),
        detector,
        node_ip,
        node_ports: ports.resolve(&addresses, localhost),
        localhost_node_ports: match localhost {
            LocalhostNodePorts::Never => false,
            LocalhostNodePorts::IfAddressed => ports.include_loopback,
            LocalhostNodePorts::Always => true,
        },
        service_cidrs: snapshot
            .service_cidrs()
            .into_iter()
            .filter(|cidr| Family::of_net(cidr) == family)
            // Whatever answers in a network where we live ourselves, it is not only services.
            .filter(|cidr| node_ip.is_none_or(|ip| !cidr.contains(&ip)))
            .collect(),
        addresses,
    }
}

fn masqueraded(options: &PlanOptions, detector: &Detector) -> Masqueraded {
    if options.masquerade_all || options.policy.relays {
        return Masqueraded::Everybody;
    }
    match detector {
        Detector::None if options.policy.binds_addresses => Masqueraded::Node,
        Detector::None => Masqueraded::Nobody,
        Detector::Cidr(_) | Detector::Bridge(_) | Detector::InterfacePrefix(_) => Masqueraded::NotPods,
    }
}

fn node_ip(options: &PlanOptions, node: Option<&Node>, family: Family) -> Option<IpAddr> {
    let bound = options.bind_address.filter(|ip| !ip.is_unspecified());
    let known = node.into_iter().flat_map(|node| node.addresses.iter().copied());
    let mut addresses = bound.into_iter().chain(known);
    addresses.find(|ip| Family::of(*ip) == family)
}

impl PlanOptions {
    /// The networks in which node ports of a family are answered, `primary` expanded. A family without any is open,
    /// even if the other one is not: kube-proxy's rule, and users with one-family lists rely on it.
    pub fn node_port_networks(&self, node: Option<&Node>, family: Family) -> Vec<IpNet> {
        let primary = node_ip(self, node, family).filter(|ip| !ip.is_loopback());
        let networks = self
            .node_port_addresses
            .iter()
            .filter_map(|address| match address {
                NodePortAddress::Primary => primary.map(IpNet::from),
                NodePortAddress::Cidr(cidr) => Some(*cidr),
            });
        networks.filter(|cidr| Family::of_net(cidr) == family).collect()
    }
}

/// Only the first network of a family counts, as in kube-proxy.
fn detector(options: &PlanOptions, snapshot: &Snapshot, family: Family) -> Detector {
    let first = |cidrs: &[IpNet]| cidrs.iter().find(|cidr| Family::of_net(cidr) == family).copied();
    let cidr = |cidr: Option<IpNet>| cidr.map_or(Detector::None, Detector::Cidr);
    match &options.detect_local {
        DetectLocal::ClusterCidrs(cidrs) => cidr(first(cidrs)),
        DetectLocal::NodeCidrs => cidr(snapshot.node().and_then(|node| first(&node.pod_cidrs))),
        DetectLocal::Bridge(name) => Detector::Bridge(Arc::clone(name)),
        DetectLocal::InterfacePrefix(prefix) => Detector::InterfacePrefix(Arc::clone(prefix)),
    }
}

/// The networks whose addresses answer node ports; none means all.
struct NodePortNetworks {
    only: Vec<IpNet>,
    include_loopback: bool,
}

impl NodePortNetworks {
    fn of(options: &PlanOptions, snapshot: &Snapshot, family: Family) -> Self {
        let only = options.node_port_networks(snapshot.node().map(|node| &**node), family);
        let all = only.is_empty() || only.iter().any(|cidr| cidr.prefix_len() == 0);
        let include_loopback = family == Family::V4 && (all || only.iter().any(touches_loopback));
        NodePortNetworks {
            only: if all { Vec::new() } else { only },
            include_loopback,
        }
    }

    fn resolve(&self, addresses: &[IpAddr], localhost: LocalhostNodePorts) -> NodePorts {
        if self.only.is_empty() {
            return NodePorts::All;
        }
        let addressed = |ip: &IpAddr| self.only.iter().any(|cidr| cidr.contains(ip));
        let answers = |ip: &IpAddr| match (ip.is_loopback(), localhost) {
            (true, LocalhostNodePorts::Never) => false,
            (true, LocalhostNodePorts::Always) => true,
            (true, LocalhostNodePorts::IfAddressed) | (false, _) => addressed(ip),
        };
        NodePorts::Only(addresses.iter().copied().filter(answers).collect())
    }
}

fn touches_loopback(cidr: &IpNet) -> bool {
    cidr.addr().is_loopback() || cidr.contains(&IpAddr::from([127, 0, 0, 0]))
}
