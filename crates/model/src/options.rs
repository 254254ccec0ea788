//! What the operator decided, and where the modes of kube-proxy differ from each other.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::names::PerFamily;

/// Everything but the facts that a plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Our node's name: decides which endpoints are local and which node hints are meant for us.
    pub node_name: Arc<str>,
    pub policy: Policy,
    pub masquerade_all: bool,
    pub detect_local: DetectLocal,
    /// Where node ports are answered; empty means everywhere.
    pub node_port_addresses: Vec<NodePortAddress>,
    /// Stands for the node's address of its family, whatever the Node object says.
    pub bind_address: Option<IpAddr>,
    /// The gate `AllowServiceExternalIPs`.
    pub allow_external_ips: bool,
}

/// How traffic of pods of this node (or cluster) is told from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    ClusterCidrs(Vec<IpNet>),
    NodeCidrs,
    Bridge(Arc<str>),
    InterfacePrefix(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortAddress {
    /// The node's own addresses.
    Primary,
    Cidr(IpNet),
}

/// Whether node ports answer on loopback addresses of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalhostNodePorts {
    #[default]
    Never,
    /// Where the node-port addresses include the loopback network.
    IfAddressed,
    Always,
}

/// Where kube-proxy's modes treat the same packet differently: each difference is a field, not a fork of the code.
/// Only the plan reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A cluster IP's port that no service has is rejected; else it is none of our business.
    pub(crate) reject_unknown_ports: bool,
    /// An address of the service networks that no service has is dropped; else it is none of our business.
    pub(crate) drop_unallocated: bool,
    /// Source ranges hold before endpoints are looked at; else a service without endpoints rejects everyone.
    pub(crate) source_ranges_first: bool,
    /// Source ranges do not guard a load-balancer IP that the service has as an external IP too.
    pub(crate) external_ips_pass_source_ranges: bool,
    /// The node's own traffic to an external address meets the reject or drop of a service without endpoints.
    pub(crate) verdicts_for_own_traffic: bool,
    /// A node port without endpoints rejects on every local address; else only where node ports are answered.
    pub(crate) node_port_verdicts_everywhere: bool,
    /// With a Local external policy, pods and the node itself may use every endpoint.
    pub(crate) short_circuit: bool,
    /// A Local policy without local endpoints uses those of the cluster, and refuses where it may not, instead of
    /// dropping.
    pub(crate) local_falls_back: bool,
    /// The addresses of services are addresses of the node: it sends to them from themselves, and their other ports
    /// are rejected.
    pub(crate) binds_addresses: bool,
    /// A client that meets itself is masqueraded at every endpoint; else only at those of this node.
    pub(crate) remote_hairpins: bool,
    /// A process stands between client and endpoint.
    pub(crate) relays: bool,
    pub(crate) localhost_node_ports: PerFamily<LocalhostNodePorts>,
}

impl Policy {
    /// The same, but node ports are not answered on loopback addresses.
    #[must_use]
    pub fn without_localhost_node_ports(self) -> Self {
        Policy {
            localhost_node_ports: PerFamily {
                v4: LocalhostNodePorts::Never,
                v6: LocalhostNodePorts::Never,
            },
            ..self
        }
    }

    pub fn nftables() -> Self {
        Policy {
            reject_unknown_ports: true,
            drop_unallocated: true,
            source_ranges_first: true,
            external_ips_pass_source_ranges: false,
            verdicts_for_own_traffic: true,
            node_port_verdicts_everywhere: false,
            short_circuit: true,
            local_falls_back: false,
            binds_addresses: false,
            remote_hairpins: false,
            relays: false,
            localhost_node_ports: PerFamily {
                v4: LocalhostNodePorts::Always,
                v6: LocalhostNodePorts::Always,
            },
        }
    }

    pub fn iptables() -> Self {
        Policy {
            reject_unknown_ports: false,
            drop_unallocated: false,
            source_ranges_first: false,
            external_ips_pass_source_ranges: true,
            verdicts_for_own_traffic: false,
            node_port_verdicts_everywhere: true,
            short_circuit: true,
            local_falls_back: false,
            binds_addresses: false,
            remote_hairpins: true,
            relays: false,
            localhost_node_ports: PerFamily {
                v4: LocalhostNodePorts::IfAddressed,
                v6: LocalhostNodePorts::Never,
            },
        }
    }

    pub fn ipvs() -> Self {
        Policy {
            reject_unknown_ports: true,
            drop_unallocated: false,
            source_ranges_first: true,
            external_ips_pass_source_ranges: false,
            verdicts_for_own_traffic: true,
            node_port_verdicts_everywhere: false,
            short_circuit: false,
            local_falls_back: true,
            binds_addresses: true,
            remote_hairpins: false,
            relays: false,
            localhost_node_ports: PerFamily::default(),
        }
    }

    pub fn userspace() -> Self {
        Policy {
            external_ips_pass_source_ranges: false,
            verdicts_for_own_traffic: true,
            relays: true,
            localhost_node_ports: PerFamily {
                v4: LocalhostNodePorts::Always,
                v6: LocalhostNodePorts::Always,
            },
            ..Policy::iptables()
        }
    }
}
