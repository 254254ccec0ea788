//! What the cluster and the host say, as our own structs: parsed, validated and ordered at the edge.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::names::{Family, Protocol, ServiceName, SliceName};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

/// A Service that has at least one cluster IP; headless and ExternalName ones never become facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: ServiceName,
    /// When the object was made, in seconds since the epoch, as far as it says.
    pub created: Option<i64>,
    pub kind: ServiceType,
    /// At most one of each family.
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    pub external_ips: Vec<IpAddr>,
    /// Ingress addresses that the node answers for itself (ipMode `VIP` or unset).
    pub load_balancer_ips: Vec<IpAddr>,
    /// As given, without the rules about families and zero-length prefixes: those are the plan's.
    pub source_ranges: Vec<IpNet>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// How long a client sticks to its endpoint.
    pub affinity: Option<Duration>,
    /// Where a load balancer asks whether this node has endpoints; only where the policy asks for it.
    pub health_check_node_port: Option<u16>,
    pub options: ServiceOptions,
}

impl Service {
    /// A service of type ClusterIP of which nothing else is said.
    pub fn new(name: ServiceName, cluster_ips: Vec<IpAddr>) -> Self {
        Service {
            name,
            created: None,
            kind: ServiceType::ClusterIp,
            cluster_ips,
            ports: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity: None,
            health_check_node_port: None,
            options: ServiceOptions::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

impl ServicePort {
    /// A port that nodes do not open.
    pub fn new(name: impl Into<Arc<str>>, protocol: Protocol, port: u16) -> Self {
        ServicePort {
            name: name.into(),
            protocol,
            port,
            node_port: None,
        }
    }
}

/// What annotations of ours ask for; a backend that cannot do it ignores it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceOptions {
    /// The IPVS scheduler of this service.
    pub scheduler: Option<Arc<str>>,
    /// How long connections to a removed endpoint may go on.
    pub drain: Option<Duration>,
    /// Whether backends get a PROXY protocol header (userspace mode).
    pub proxy_protocol: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    pub name: SliceName,
    pub service: ServiceName,
    pub family: Family,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    pub address: IpAddr,
    pub node: Option<Arc<str>>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Shared, because most endpoints of a slice have the same ones, or none.
    pub hints: Option<Arc<Hints>>,
}

/// Whom an endpoint is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    pub zones: Box<[Arc<str>]>,
    pub nodes: Box<[Arc<str>]>,
}

impl SliceEndpoint {
    /// An endpoint that takes traffic from everywhere.
    pub fn ready(address: IpAddr, node: Option<Arc<str>>) -> Self {
        SliceEndpoint {
            address,
            node,
            ready: true,
            serving: true,
            terminating: false,
            hints: None,
        }
    }

    pub fn zone_hints(&self) -> &[Arc<str>] {
        self.hints.as_deref().map_or(&[], |hints| &hints.zones)
    }

    pub fn node_hints(&self) -> &[Arc<str>] {
        self.hints.as_deref().map_or(&[], |hints| &hints.nodes)
    }
}

/// The node that we run on, as the cluster knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Zero to two addresses, the primary one first, no two of one family.
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    pub zone: Option<Arc<str>>,
    /// Whether load balancers may go on sending traffic here: false while the node is being removed.
    pub eligible: bool,
}

/// The node that we run on, as its kernel knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Every address of every interface.
    pub addresses: BTreeSet<IpAddr>,
}

/// An object, or a part of one, that is not served, and why. The others are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    pub object: ObjectRef,
    /// What of it, where the rest is served: `spec.externalIPs[1]`, or an address and port.
    pub part: Option<String>,
    pub reason: String,
}

/// Which object, as far as its name can be shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectRef {
    Service(ServiceName),
    Other { kind: &'static str, name: String },
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectRef::Service(name) => write!(f, "Service {name}"),
            ObjectRef::Other { kind, name } => write!(f, "{kind} {name}"),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.object)?;
        if let Some(part) = &self.part {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.reason)
    }
}
