//! THE decision: which frontends exist, which endpoints each may use, and what happens where there are none.
//!
//! Pure. A [`Plan`] is updated in place by a [`Planner`], one service at a time; services that did not change keep
//! their `Arc`, and a journal tells a backend what changed since it last looked, so its work follows the change.

mod endpoints;
mod frontends;
mod node;
mod planner;
mod service;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::facts::{ServiceOptions, Skipped, TrafficPolicy};
use crate::names::{Family, PerFamily, PortName, Protocol, ServiceName};
use crate::options::Policy;

pub use frontends::FrontendKey;
pub use planner::{Planner, Replaced, Update};

use frontends::Claims;

/// What the node should do with packets, all of it.
#[derive(Clone, Debug)]
pub struct Plan {
    node: Arc<NodePlan>,
    services: BTreeMap<ServiceName, Arc<ServicePlan>>,
    claims: Claims,
    tally: Tally,
    revision: Revision,
    journal: VecDeque<(Revision, ServiceName)>,
    /// Changes up to here may be missing from the journal.
    journal_start: Revision,
}

/// A point in a plan's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(u64);

/// The services that differ from an earlier revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// The earlier revision is too long ago.
    Everything,
    /// These only, in order, each once; one that is not in the plan is gone.
    Services(Vec<&'a ServiceName>),
}

impl Plan {
    pub fn node(&self) -> &Arc<NodePlan> {
        &self.node
    }

    /// Every service, in the order of its name.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &Arc<ServicePlan>> {
        self.services.values()
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServicePlan>> {
        self.services.get(name)
    }

    /// Every service port of a family, in the order of the services' names.
    pub fn ports(&self, family: Family) -> impl Iterator<Item = &PortPlan> {
        self.services().flat_map(move |service| service.ports(family))
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// What a backend that applied `since` has to look at. The node's part is apart: compare [`Plan::node`].
    pub fn changed_since(&self, since: Revision) -> Changed<'_> {
        if since < self.journal_start {
            return Changed::Everything;
        }
        let from = self.journal.partition_point(|(revision, _)| *revision <= since);
        let mut names: Vec<&ServiceName> = self.journal.range(from..).map(|(_, name)| name).collect();
        names.sort();
        names.dedup();
        Changed::Services(names)
    }

    /// The service port that answers at a frontend.
    pub fn port_at(&self, key: &FrontendKey) -> Option<&PortPlan> {
        let name = self.claims.owner(key)?;
        let service = self.services.get(&name.service)?;
        service
            .ports
            .iter()
            .find(|port| port.name == *name && port.family == key.family())
    }

    /// Whether an address is some service's cluster IP.
    pub fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.claims.is_cluster_ip(address)
    }

    /// Whether some service is served at an address.
    pub fn is_service_address(&self, address: IpAddr) -> bool {
        self.claims.is_service_address(address)
    }

    /// Frontends that are not served because another service holds them already.
    pub fn skipped(&self) -> Vec<Skipped> {
        let contested = self.claims.contested().filter_map(|name| self.services.get(name));
        contested
            .flat_map(|service| {
                service
                    .lost
                    .iter()
                    .map(|lost| lost.skipped(self.claims.owner(&lost.key)))
            })
            .collect()
    }
}

/// The part of the plan that no service owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    pub name: Arc<str>,
    pub zone: Option<Arc<str>>,
    pub policy: Policy,
    pub masquerade_all: bool,
    /// A decision of [`crate::PlanOptions`] that planning a service needs.
    pub allow_external_ips: bool,
    pub families: PerFamily<NodeFamily>,
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
    pub node_ip: Option<IpAddr>,
    pub node_ports: NodePorts,
    /// Whether node ports answer on loopback addresses.
    pub localhost_node_ports: bool,
    pub service_cidrs: Vec<IpNet>,
    /// Every address of this host, loopback included.
    pub addresses: Vec<IpAddr>,
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

/// The local addresses on which node ports are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// Every local address; loopback only with `localhost_node_ports`.
    All,
    /// These; loopback addresses are among them only with `localhost_node_ports`.
    Only(Vec<IpAddr>),
}

/// One service, all ports, both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    pub name: ServiceName,
    /// In the order of family, port name and protocol.
    pub ports: Vec<PortPlan>,
    pub health_check: Option<HealthCheck>,
    pub options: ServiceOptions,
    /// Frontends that it asks for and another service has.
    lost: Vec<frontends::Lost>,
}

impl ServicePlan {
    pub fn ports(&self, family: Family) -> impl Iterator<Item = &PortPlan> {
        self.ports.iter().filter(move |port| port.family == family)
    }
}

/// Where load balancers ask whether this node should get traffic of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Ready endpoints on this node, by distinct address; `None` where the service has no cluster IP of the family.
    pub local_endpoints: PerFamily<Option<u32>>,
}

/// One port of a service in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    pub family: Family,
    pub name: PortName,
    pub port: u16,
    pub cluster_ip: IpAddr,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    pub node_port: Option<u16>,
    pub internal_policy: TrafficPolicy,
    /// What happens to traffic for the cluster IP.
    pub internal: Verdict,
    /// What happens to traffic for the other addresses and the node port.
    pub external: External,
    /// Whether it can be reached from outside at all: a node port, a load-balancer IP or an external IP.
    pub externally_accessible: bool,
    /// Whether the cluster has an endpoint that could serve it, reachable from here or not.
    pub has_endpoints: bool,
    pub affinity: Option<Duration>,
    /// Who may use the load-balancer IPs; empty means everyone.
    pub source_ranges: Vec<IpNet>,
    /// The node itself is within the ranges; then the load-balancer IPs, as the node's own source, are too.
    pub node_in_source_ranges: bool,
    /// Every known endpoint, usable or not, sorted by the text `ip:port` as kube-proxy does.
    pub endpoints: Box<[Endpoint]>,
}

impl PortPlan {
    pub fn protocol(&self) -> Protocol {
        self.name.protocol
    }

    /// The endpoints for traffic under a Cluster policy.
    pub fn cluster(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.is(Endpoint::IN_CLUSTER_POOL))
    }

    /// The endpoints for traffic under a Local policy.
    pub fn local(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.is(Endpoint::IN_LOCAL_POOL))
    }

    pub fn pool(&self, scope: Scope) -> impl Iterator<Item = &Endpoint> {
        let pool = match scope {
            Scope::Cluster => Endpoint::IN_CLUSTER_POOL,
            Scope::Local => Endpoint::IN_LOCAL_POOL,
        };
        self.endpoints.iter().filter(move |endpoint| endpoint.is(pool))
    }

    /// The endpoints of either pool.
    pub fn reachable(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints
            .iter()
            .filter(|e| e.is(Endpoint::IN_CLUSTER_POOL) || e.is(Endpoint::IN_LOCAL_POOL))
    }

    /// The endpoints that established flows may go on using.
    pub fn serving(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.is_serving())
    }

    /// Every address, other than the cluster IP, that the port is served on.
    pub fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.external_ips.iter().chain(&self.load_balancer_ips).copied()
    }

    /// A Local internal policy that no local endpoint can serve, though others of the cluster could.
    pub fn lacks_local_internally(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local && self.has_endpoints && self.local().next().is_none()
    }

    /// The same for the external policy.
    pub fn lacks_local_externally(&self) -> bool {
        self.external.policy == TrafficPolicy::Local && self.has_endpoints && self.local().next().is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    pub policy: TrafficPolicy,
    /// What happens to traffic from outside. Under a Local policy that short-circuits, pods and the node itself use
    /// the Cluster pool as long as there is any endpoint.
    pub verdict: Verdict,
}

/// The fate of a packet for a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Forward(Scope),
    /// There are endpoints, but none that this traffic may use: another node will do better, so stay silent.
    Drop,
    /// There is no endpoint anywhere: say so at once.
    Reject,
}

/// Which pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Local,
}

/// Twenty bytes, because a cluster has many: a `SocketAddr` alone would take 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    ip: IpAddr,
    port: u16,
    flags: u8,
}

impl Endpoint {
    const LOCAL: u8 = 1;
    const READY: u8 = 2;
    const SERVING: u8 = 4;
    const TERMINATING: u8 = 8;
    const IN_CLUSTER_POOL: u8 = 16;
    const IN_LOCAL_POOL: u8 = 32;

    fn new(address: SocketAddr, flags: u8) -> Self {
        Endpoint {
            ip: address.ip(),
            port: address.port(),
            flags,
        }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Runs on this node.
    pub fn is_local(&self) -> bool {
        self.is(Self::LOCAL)
    }

    pub fn is_ready(&self) -> bool {
        self.is(Self::READY)
    }

    pub fn is_serving(&self) -> bool {
        self.is(Self::SERVING)
    }

    pub fn is_terminating(&self) -> bool {
        self.is(Self::TERMINATING)
    }

    pub fn in_cluster_pool(&self) -> bool {
        self.is(Self::IN_CLUSTER_POOL)
    }

    pub fn in_local_pool(&self) -> bool {
        self.is(Self::IN_LOCAL_POOL)
    }
}

/// Sums over the plan, kept up to date with each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub services: usize,
    pub families: PerFamily<FamilyTally>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyTally {
    pub ports: usize,
    /// Known endpoints, usable or not.
    pub endpoints: usize,
    /// Service ports with a Local policy that endpoints elsewhere could serve, but none here.
    pub no_local_internal: usize,
    pub no_local_external: usize,
}

impl Tally {
    fn add(&mut self, service: &ServicePlan) {
        self.services += 1;
        for port in &service.ports {
            let family = self.families.get_mut(port.family);
            family.ports += 1;
            family.endpoints += port.endpoints.len();
            family.no_local_internal += usize::from(port.lacks_local_internally());
            family.no_local_external += usize::from(port.lacks_local_externally());
        }
    }

    fn subtract(&mut self, service: &ServicePlan) {
        self.services -= 1;
        for port in &service.ports {
            let family = self.families.get_mut(port.family);
            family.ports -= 1;
            family.endpoints -= port.endpoints.len();
            family.no_local_internal -= usize::from(port.lacks_local_internally());
            family.no_local_external -= usize::from(port.lacks_local_externally());
        }
    }
}
