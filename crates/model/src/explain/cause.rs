//! What can stand between a client and a service, in words: what is wrong, and what to do about it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::names::{PortName, ServiceName, SliceName};
use crate::plan::{Contest, FrontendKey};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub weight: Weight,
    pub cause: Cause,
}

impl Finding {
    pub(crate) fn blocks(cause: Cause) -> Self {
        Finding {
            weight: Weight::Blocks,
            cause,
        }
    }

    pub(crate) fn note(cause: Cause) -> Self {
        Finding {
            weight: Weight::Note,
            cause,
        }
    }
}

/// What a finding means for traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It does not arrive.
    Blocks,
    /// It arrives, and this is worth knowing.
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    UnknownService {
        name: ServiceName,
        /// Services of that name elsewhere.
        namesakes: Vec<ServiceName>,
    },
    UnknownPort {
        service: ServiceName,
        asked: Option<String>,
        has: Vec<String>,
    },
    /// No service has the address.
    NobodyThere {
        address: IpAddr,
        in_service_network: bool,
    },
    NoNodePort {
        address: IpAddr,
        port: u16,
    },
    /// Another service, or port, has the frontend.
    Contested(Contest),
    NoEndpoints {
        port: PortName,
        slices: usize,
    },
    AllUnready {
        port: PortName,
        count: usize,
    },
    /// There are pods, but their slices do not have the service's port.
    TargetPortMissing {
        port: PortName,
        slice: SliceName,
        has: Vec<String>,
    },
    NoLocalEndpoint {
        port: PortName,
        policy: PolicyField,
        elsewhere: usize,
    },
    OutsideSourceRanges {
        port: PortName,
        source: IpAddr,
        ranges: Vec<IpNet>,
    },
    NodePortAddress {
        port: PortName,
        address: IpAddr,
        answered: Option<IpAddr>,
    },
    /// A frontend that only the node may use.
    OwnOnly {
        port: PortName,
    },
    /// The node's own traffic is not looked at there.
    OwnTrafficIgnored {
        port: PortName,
    },
    HintsUnused {
        port: PortName,
        why: HintsUnused,
    },
}

/// Which of a service's traffic policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyField {
    Internal,
    External,
}

impl PolicyField {
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyField::Internal => "spec.internalTrafficPolicy",
            PolicyField::External => "spec.externalTrafficPolicy",
        }
    }
}

/// Why hints that are there are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintsUnused {
    /// The node says no zone.
    NoZone,
    /// No ready endpoint is meant for our zone.
    NoneForZone { zone: Arc<str>, hinted: Vec<Arc<str>> },
    /// Ready endpoints without any.
    SomeWithout { count: usize },
}

impl Cause {
    /// A name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Cause::UnknownService { .. } => "unknown-service",
            Cause::UnknownPort { .. } => "wrong-port",
            Cause::NobodyThere { .. } => "no-service-there",
            Cause::NoNodePort { .. } => "no-node-port",
            Cause::Contested(_) => "contested",
            Cause::NoEndpoints { .. } => "no-endpoints",
            Cause::AllUnready { .. } => "all-unready",
            Cause::TargetPortMissing { .. } => "target-port-missing",
            Cause::NoLocalEndpoint { .. } => "no-local-endpoint",
            Cause::OutsideSourceRanges { .. } => "source-range",
            Cause::NodePortAddress { .. } => "node-port-address",
            Cause::OwnOnly { .. } => "node-only",
            Cause::OwnTrafficIgnored { .. } => "own-traffic",
            Cause::HintsUnused { .. } => "hints-unused",
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Cause::UnknownService { name, namesakes } => match namesakes.first() {
                Some(other) => format!("ask for {other}, if that was meant"),
                None => format!(
                    "create it, or look with `kubectl -n {} get service {}`: headless and ExternalName services are \
                     not carried by a proxy",
                    name.namespace(),
                    name.name()
                ),
            },
            Cause::UnknownPort { service, has, .. } => format!(
                "use {}, or add the port to spec.ports of Service {service}",
                one_of(has)
            ),
            Cause::NobodyThere { address, .. } => {
                format!("ask for an address of a service, or on the node that has {address}")
            }
            Cause::NoNodePort { .. } => "use a port of spec.ports[].nodePort of the service".into(),
            Cause::Contested(contest) => format!(
                "give Service {} another address or port, or delete {}",
                contest.loser.service, contest.winner.service
            ),
            Cause::NoEndpoints { port, .. } => format!(
                "make spec.selector of Service {} match running pods (`kubectl -n {} get endpointslices -l \
                 kubernetes.io/service-name={}`)",
                port.service,
                port.service.namespace(),
                port.service.name()
            ),
            Cause::AllUnready { port, .. } => format!(
                "look why the pods fail their readiness probe (`kubectl -n {} describe pods`)",
                port.service.namespace()
            ),
            Cause::TargetPortMissing { port, .. } => format!(
                "make targetPort of that port of Service {} the name of a containerPort of its pods, or a number",
                port.service
            ),
            Cause::NoLocalEndpoint { port, policy, .. } => format!(
                "send to a node that has an endpoint, run a pod here, or set {} of Service {} to Cluster",
                policy.as_str(),
                port.service
            ),
            Cause::OutsideSourceRanges { port, source, .. } => format!(
                "add {source} to spec.loadBalancerSourceRanges of Service {}, or ask from an address within them",
                port.service
            ),
            Cause::NodePortAddress { answered, .. } => {
                let there = answered.map(|address| format!("use {address}, or "));
                format!(
                    "{}widen --nodeport-addresses (nodePortAddresses in the configuration)",
                    there.unwrap_or_default()
                )
            }
            Cause::OwnOnly { .. } => "ask from the node itself, or at another of its addresses".into(),
            Cause::OwnTrafficIgnored { .. } => "give the service endpoints, or ask at its cluster IP".into(),
            Cause::HintsUnused { why, .. } => why.remedy().into(),
        }
    }
}

impl HintsUnused {
    fn remedy(&self) -> &'static str {
        match self {
            HintsUnused::NoZone => "label the Node with topology.kubernetes.io/zone",
            HintsUnused::NoneForZone { .. } => {
                "run a ready pod in this zone, or expect traffic to cross zones until there is one"
            }
            HintsUnused::SomeWithout { .. } => {
                "wait for the EndpointSlice controller, or look why it gives no hints (too few endpoints for the zones)"
            }
        }
    }
}

fn one_of(list: &[String]) -> String {
    match list {
        [] => "none: it has no ports".into(),
        [one] => format!("port {one}"),
        _ => format!("one of its ports {}", list.join(", ")),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::UnknownService { name, .. } => {
                write!(f, "there is no service {name} that a proxy carries")
            }
            Cause::UnknownPort { service, asked, has } => {
                let asked = asked.as_deref().unwrap_or("such");
                write!(
                    f,
                    "Service {service} has no port {asked}; it has {}",
                    has.join(", ")
                )
            }
            Cause::NobodyThere {
                address,
                in_service_network: true,
            } => write!(f, "{address} is of the service network, but no service has it"),
            Cause::NobodyThere { address, .. } => {
                write!(f, "no service is at {address}, and it is no address of this node")
            }
            Cause::NoNodePort { address, port } => {
                write!(f, "{address} is this node's own, and {port} is no node port")
            }
            Cause::Contested(contest) => contested(f, contest),
            Cause::NoEndpoints { port, slices: 0 } => {
                write!(f, "{port} has no endpoints: it has no EndpointSlice")
            }
            Cause::NoEndpoints { port, slices } => {
                write!(
                    f,
                    "{port} has no endpoints: its {slices} EndpointSlice(s) are empty"
                )
            }
            Cause::AllUnready { port, count } => {
                write!(f, "none of the {count} endpoint(s) of {port} is ready")
            }
            Cause::TargetPortMissing { port, slice, has } => {
                let has = if has.is_empty() {
                    "none".into()
                } else {
                    has.join(", ")
                };
                write!(
                    f,
                    "the pods of {port} have no port of that name: EndpointSlice {slice} has {has}, because targetPort \
                     names a containerPort that no pod has"
                )
            }
            Cause::NoLocalEndpoint {
                port,
                policy,
                elsewhere,
            } => write!(
                f,
                "{} of {port} is Local and this node has no usable endpoint; other nodes have {elsewhere}",
                policy.as_str()
            ),
            Cause::OutsideSourceRanges { source, ranges, .. } => {
                let ranges: Vec<String> = ranges.iter().map(IpNet::to_string).collect();
                let ranges = ranges.join(", ");
                write!(f, "{source} is outside spec.loadBalancerSourceRanges ({ranges})")
            }
            Cause::NodePortAddress { port, address, .. } => {
                write!(f, "node ports, that of {port} too, are not answered at {address}")
            }
            Cause::OwnOnly { port } => write!(f, "only the node itself may use {port} there"),
            Cause::OwnTrafficIgnored { port } => write!(
                f,
                "{port} has no endpoint, and this mode does not look at the node's own traffic there"
            ),
            Cause::HintsUnused { port, why } => write!(f, "the hints of {port} are not followed: {why}"),
        }
    }
}

fn contested(f: &mut fmt::Formatter<'_>, contest: &Contest) -> fmt::Result {
    let place = match contest.key {
        FrontendKey::Address(..) => contest.key.to_string(),
        FrontendKey::NodePort(family, ..) => format!("{family} {}", contest.key),
    };
    write!(
        f,
        "{} asks for {place} as its {}, but {} has it already",
        contest.loser, contest.kind, contest.winner
    )
}

impl fmt::Display for HintsUnused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HintsUnused::NoZone => f.write_str("this node has no zone"),
            HintsUnused::NoneForZone { zone, hinted } => write!(
                f,
                "no ready endpoint is meant for zone {zone} (hints: {}), so all zones are used",
                hinted.join(", ")
            ),
            HintsUnused::SomeWithout { count } => {
                write!(
                    f,
                    "{count} ready endpoint(s) have none, so every endpoint is used"
                )
            }
        }
    }
}
