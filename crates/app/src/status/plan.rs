//! The whole plan, for people and programs.

use std::fmt;

use ferry_model::{
    Action, Detector, Endpoint, Family, Frontend, FrontendKind, NodePorts, Plan, PortPlan, Scope,
    ServicePlan, TrafficPolicy,
};
use serde::{Deserialize, Serialize};

use super::word;
use crate::modes::Mode;

/// Everything that is decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// Which form this is: [`PlanReport::FORM`] of the program that wrote it. Programs that do not say have form 0, in
    /// which frontends are not told one by one.
    #[serde(default)]
    pub form: u32,
    /// The mode whose rules decide where modes differ.
    pub mode: String,
    /// The node's own part.
    pub node: NodeReport,
    /// Every service by name.
    pub services: Vec<ServiceReport>,
    /// What is not served, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// The node's own part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Where its addresses were taken from.
    #[serde(default)]
    pub addresses_from: AddressSource,
    /// What happens at a port of a cluster IP that no service has.
    #[serde(default)]
    pub unknown_ports: String,
    /// What happens at an address of the service networks that no service has.
    #[serde(default)]
    pub unallocated: String,
    /// Each family.
    pub families: Vec<NodeFamilyReport>,
}

/// Where the addresses of the node were taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AddressSource {
    /// The interfaces of the host that the daemon runs on.
    #[default]
    Host,
    /// The Node object: whoever asks may be on another machine.
    NodeObject,
    /// Nowhere: there is no such object.
    Unknown,
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the host's interfaces",
            Self::NodeObject => "the Node object",
            Self::Unknown => "no Node object, so none is known",
        })
    }
}

/// The node in one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFamilyReport {
    /// IPv4 or IPv6.
    pub family: String,
    /// The node's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ip: Option<String>,
    /// How traffic of local pods is recognised.
    pub local_pods: String,
    /// Where node ports are answered.
    pub node_ports: String,
    /// Networks in which only services live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_networks: Vec<String>,
}

/// One service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReport {
    /// `namespace/name`.
    pub name: String,
    /// Where load balancers ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    /// Each port in each family.
    pub ports: Vec<PortReport>,
}

/// One service port in one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport {
    /// Its name; may be empty.
    pub port: String,
    /// tcp, udp or sctp.
    pub protocol: String,
    /// IPv4 or IPv6.
    pub family: String,
    /// The cluster IP with the port, unless another service has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// What happens to traffic for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<String>,
    /// External and load-balancer addresses with the port, and node ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_addresses: Vec<String>,
    /// What happens to traffic for those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// Who may use the load-balancer addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<String>,
    /// How long a client sticks to its endpoint, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u64>,
    /// Each place where it is answered, and what each kind of client meets there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frontends: Vec<FrontendReport>,
    /// Every known endpoint.
    pub endpoints: Vec<EndpointReport>,
}

/// One place where a service port is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendReport {
    /// Address and port, or node port.
    pub at: String,
    /// What it is to the service.
    pub kind: String,
    /// Pods that are recognised as local.
    pub pods: DecisionReport,
    /// The node itself.
    pub node: DecisionReport,
    pub others: DecisionReport,
    /// Who may come in; everybody if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
}

/// What a packet meets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionReport {
    /// forward, drop, reject or not ours.
    pub action: String,
    /// The pool that it leads to: cluster or local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The endpoint sees the node's address in place of the client's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masquerade: bool,
}

impl DecisionReport {
    fn of(action: Action) -> Self {
        let pool = action.scope().map(|scope| match scope {
            Scope::Cluster => "cluster",
            Scope::Local => "local",
        });
        Self {
            action: word(action).into(),
            pool: pool.map(str::to_owned),
            masquerade: action.masquerades(),
        }
    }
}

impl FrontendReport {
    fn of(frontend: &Frontend) -> Self {
        let allowed = frontend.allowed.iter().flat_map(|allowed| allowed.networks());
        Self {
            at: frontend.key.to_string(),
            kind: frontend.kind.to_string(),
            pods: DecisionReport::of(frontend.actions.pods),
            node: DecisionReport::of(frontend.actions.node),
            others: DecisionReport::of(frontend.actions.others),
            allowed: allowed.map(|network| network.to_string()).collect(),
        }
    }
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// Address and port.
    pub address: String,
    /// On this node.
    pub local: bool,
    /// Ready, serving (while not ready) or neither.
    pub state: String,
    /// Whether traffic under a Cluster policy may go there.
    pub in_cluster_pool: bool,
    /// Whether traffic under a Local policy may go there.
    pub in_local_pool: bool,
    /// Its share of its pool's traffic, relative to the others'.
    #[serde(default = "one")]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

impl PlanReport {
    /// Grows when what is told changes its meaning; more may be told without that.
    pub const FORM: u32 = 1;

    /// Of a plan in a mode, with what is not served.
    pub fn of(plan: &Plan, mode: Mode, addresses_from: AddressSource, skipped: Vec<String>) -> Self {
        Self {
            form: Self::FORM,
            mode: mode.to_string(),
            node: NodeReport::of(plan, addresses_from),
            services: plan
                .services()
                .map(|service| ServiceReport::of(service))
                .collect(),
            skipped,
        }
    }
}

impl NodeReport {
    fn of(plan: &Plan, addresses_from: AddressSource) -> Self {
        let node = plan.node();
        let families = Family::BOTH.map(|family| {
            let of_family = node.family(family);
            NodeFamilyReport {
                family: family.to_string(),
                node_ip: of_family.node_ip.map(|ip| ip.to_string()),
                local_pods: match &of_family.detector {
                    Detector::None => "not told apart".into(),
                    Detector::Cidr(cidr) => format!("source {cidr}"),
                    Detector::Bridge(name) => format!("interface {name}"),
                    Detector::InterfacePrefix(prefix) => format!("interfaces {prefix}*"),
                },
                node_ports: match &of_family.node_ports {
                    NodePorts::All => "every address".into(),
                    NodePorts::Only(addresses) if addresses.is_empty() => "no address".into(),
                    NodePorts::Only(addresses) => join(addresses),
                },
                service_networks: of_family.service_cidrs.iter().map(ToString::to_string).collect(),
            }
        });
        Self {
            name: node.name.to_string(),
            zone: node.zone.as_ref().map(ToString::to_string),
            addresses_from,
            unknown_ports: word(node.unknown_ports).into(),
            unallocated: word(node.unallocated).into(),
            families: families.into(),
        }
    }
}

impl ServiceReport {
    /// Of one service.
    pub fn of(service: &ServicePlan) -> Self {
        Self {
            name: service.name.to_string(),
            health_check_node_port: service.health_check.map(|check| check.port),
            ports: service.ports.iter().map(PortReport::of).collect(),
        }
    }
}

impl PortReport {
    fn of(port: &PortPlan) -> Self {
        let outside = |frontend: &&Frontend| match frontend.kind {
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp | FrontendKind::NodePort => true,
            FrontendKind::ClusterIp | FrontendKind::LocalhostNodePort => false,
        };
        let external: Vec<&Frontend> = port.deciding().filter(outside).collect();
        let allowed = external.iter().find_map(|frontend| frontend.allowed.as_ref());
        let decided = |frontend: &Frontend, policy| what(frontend.actions.others, policy);
        Self {
            port: port.name.port.to_string(),
            protocol: port.protocol().to_string(),
            family: port.family.to_string(),
            cluster_ip: port.cluster_ip().map(|frontend| frontend.key.to_string()),
            internal: port
                .cluster_ip()
                .map(|frontend| decided(frontend, port.internal_policy)),
            external_addresses: external.iter().map(|frontend| frontend.key.to_string()).collect(),
            external: external
                .first()
                .map(|frontend| decided(frontend, port.external_policy)),
            source_ranges: allowed
                .map(|allowed| allowed.ranges.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            affinity_seconds: port.affinity.map(|affinity| affinity.as_secs()),
            frontends: port.deciding().map(FrontendReport::of).collect(),
            endpoints: port.endpoints.iter().map(EndpointReport::of).collect(),
        }
    }
}

impl EndpointReport {
    fn of(endpoint: &Endpoint) -> Self {
        let state = match (
            endpoint.is_ready(),
            endpoint.is_serving(),
            endpoint.is_terminating(),
        ) {
            (true, ..) => "ready",
            (false, true, true) => "terminating, still serving",
            (false, true, false) => "serving, not ready",
            (false, false, true) => "terminating",
            (false, false, false) => "not ready",
        };
        Self {
            address: endpoint.address().to_string(),
            local: endpoint.is_local(),
            state: state.into(),
            in_cluster_pool: endpoint.in_cluster_pool(),
            in_local_pool: endpoint.in_local_pool(),
            weight: endpoint.weight(),
        }
    }
}

fn what(action: Action, policy: TrafficPolicy) -> String {
    let scope = action.scope();
    match action {
        Action::Forward { .. } if scope == Some(Scope::Local) => "forward to this node's endpoints",
        Action::Forward { .. } if policy == TrafficPolicy::Local => {
            "forward to the cluster's endpoints, as this node has none"
        }
        Action::Forward { .. } => "forward to the cluster's endpoints",
        Action::Drop => "drop: the policy is Local and no endpoint is on this node",
        Action::Reject => "reject: there is no endpoint",
        Action::NotOurs => "left alone",
    }
    .into()
}

fn join<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.node.name)?;
        if let Some(zone) = &self.node.zone {
            write!(f, " in zone {zone}")?;
        }
        let from = self.node.addresses_from;
        writeln!(f, ", mode {}; its addresses are those of {from}", self.mode)?;
        for family in &self.node.families {
            let node_ip = family.node_ip.as_deref().unwrap_or("unknown");
            writeln!(
                f,
                "  {}: address {node_ip}; local pods: {}; node ports on {}",
                family.family, family.local_pods, family.node_ports
            )?;
        }
        for service in &self.services {
            write!(f, "\n{service}")?;
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nnot served:")?;
            for skipped in &self.skipped {
                writeln!(f, "  {skipped}")?;
            }
        }
        let ports: usize = self.services.iter().map(|service| service.ports.len()).sum();
        let endpoints: usize = self
            .services
            .iter()
            .flat_map(|service| &service.ports)
            .map(|port| port.endpoints.len())
            .sum();
        writeln!(
            f,
            "\nservices: {}, ports: {ports}, endpoints: {endpoints}",
            self.services.len()
        )
    }
}

impl fmt::Display for ServiceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "service {}", self.name)?;
        if let Some(port) = self.health_check_node_port {
            writeln!(f, "  health checks on node port {port}")?;
        }
        for port in &self.ports {
            write!(f, "{port}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.port.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.port)
        };
        let cluster_ip = self.cluster_ip.as_deref().unwrap_or("no cluster IP");
        let internal = self.internal.as_deref().unwrap_or("another service has it");
        writeln!(f, "  {cluster_ip}/{}{name}: {internal}", self.protocol)?;
        if let Some(external) = &self.external {
            writeln!(
                f,
                "    from outside at {}: {external}",
                self.external_addresses.join(", ")
            )?;
        }
        if !self.source_ranges.is_empty() {
            writeln!(
                f,
                "    load-balancer addresses only for {}",
                self.source_ranges.join(", ")
            )?;
        }
        if let Some(seconds) = self.affinity_seconds {
            writeln!(f, "    a client keeps its endpoint for {seconds} s")?;
        }
        for endpoint in &self.endpoints {
            writeln!(f, "    -> {endpoint}")?;
        }
        Ok(())
    }
}

impl fmt::Display for EndpointReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.local { ", on this node" } else { "" };
        let used = match (self.in_cluster_pool, self.in_local_pool) {
            (true, true) => "",
            (true, false) => "",
            (false, true) => ", for the Local policy only",
            (false, false) => ", not used",
        };
        write!(f, "{} {}{place}{used}", self.address, self.state)
    }
}
