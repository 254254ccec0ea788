//! The node's own part of the plan: who is local, where node ports are answered, which networks are for services.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Detector, NodeFamily, NodePlan, NodePorts};
use crate::names::{Family, PerFamily};
use crate::options::{DetectLocal, LocalhostNodePorts, NodePortAddress, PlanOptions};
use crate::snapshot::Snapshot;

pub(super) fn plan_node(options: &PlanOptions, snapshot: &Snapshot) -> NodePlan {
    let service_cidrs = snapshot.service_cidrs();
    NodePlan {
        name: Arc::clone(&options.node_name),
        zone: snapshot.node().and_then(|node| node.zone.clone()),
        policy: options.policy,
        masquerade_all: options.masquerade_all,
        allow_external_ips: options.allow_external_ips,
        families: PerFamily::from_fn(|family| {
            let addresses: Vec<IpAddr> = snapshot
                .host()
                .addresses
                .iter()
                .copied()
                .filter(|ip| Family::of(*ip) == family)
                .collect();
            let node_ip = node_ip(options, snapshot, family);
            let ports = NodePortNetworks::of(options, snapshot, family);
            let localhost_node_ports = match options.policy.localhost_node_ports.get(family) {
                LocalhostNodePorts::Never => false,
                LocalhostNodePorts::IfAddressed => ports.include_loopback,
                LocalhostNodePorts::Always => true,
            };
            NodeFamily {
                detector: detector(options, snapshot, family),
                node_ip,
                node_ports: ports.resolve(&addresses, *options.policy.localhost_node_ports.get(family)),
                localhost_node_ports,
                service_cidrs: service_cidrs
                    .iter()
                    .copied()
                    .filter(|c| Family::of_net(c) == family)
                    // Whatever answers in a network where we live ourselves, it is not only services.
                    .filter(|c| node_ip.is_none_or(|ip| !c.contains(&ip)))
                    .collect(),
                addresses,
            }
        }),
    }
}

fn node_ip(options: &PlanOptions, snapshot: &Snapshot, family: Family) -> Option<IpAddr> {
    let bound = options.bind_address.filter(|ip| !ip.is_unspecified());
    let known = snapshot
        .node()
        .into_iter()
        .flat_map(|node| node.addresses.iter().copied());
    bound
        .into_iter()
        .chain(known)
        .find(|ip| Family::of(*ip) == family)
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
        let mut only = Vec::new();
        for address in &options.node_port_addresses {
            match address {
                NodePortAddress::Primary => {
                    only.extend(
                        node_ip(options, snapshot, family)
                            .filter(|ip| !ip.is_loopback())
                            .map(IpNet::from),
                    );
                }
                NodePortAddress::Cidr(cidr) if Family::of_net(cidr) == family => only.push(*cidr),
                NodePortAddress::Cidr(_) => {}
            }
        }
        // A family without networks of its own is open, even if the other one is not: kube-proxy's rule, and users
        // with one-family lists rely on it.
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
