//! One packet's fate, for people and programs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ferry_model::{Action, Origin, Packet, Plan, Protocol, trace};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Who sends it.
    pub from: IpAddr,
    /// Where to.
    pub to: SocketAddr,
    /// tcp, udp or sctp.
    #[serde(serialize_with = "protocol_name", deserialize_with = "protocol_named")]
    pub protocol: Protocol,
}

fn protocol_name<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(protocol.as_str())
}

fn protocol_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
    let name = String::deserialize(deserializer)?;
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.as_str() == name)
        .ok_or_else(|| serde::de::Error::custom("the protocol must be tcp, udp or sctp"))
}

/// What becomes of it, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceReport {
    /// The packet.
    pub packet: TraceRequest,
    /// Whether it comes from the node itself.
    pub from_node: bool,
    /// forward, drop, reject or host.
    pub fate: String,
    /// The service port that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where it may go, each as likely as the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetReport>,
    /// How long the client sticks to its target, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u64>,
    /// The reasons, in order.
    pub steps: Vec<String>,
}

/// One place where a packet may go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetReport {
    /// The endpoint.
    pub address: SocketAddr,
    /// Whether it sees the node's address in place of the client's.
    pub masquerade: bool,
}

impl TraceReport {
    /// Follows a packet through a plan. A source that is one of the host's own
    /// addresses means the host itself.
    pub fn of(plan: &Plan, request: &TraceRequest) -> Self {
        let own = &plan
            .node()
            .family(ferry_model::Family::of(request.from))
            .addresses;
        let from_node = own.contains(&request.from) || request.from.is_loopback();
        let packet = Packet {
            source: request.from,
            origin: if from_node {
                Origin::Node
            } else {
                Origin::Network(None)
            },
            destination: request.to.ip(),
            port: request.to.port(),
            protocol: request.protocol,
        };
        let outcome = trace(plan, &packet);
        let forwarded = matches!(outcome.action, Action::Forward { .. });
        Self {
            packet: request.clone(),
            from_node,
            fate: match outcome.action {
                Action::Forward { .. } => "forward",
                Action::Drop => "drop",
                Action::Reject => "reject",
                Action::NotOurs => "host",
            }
            .into(),
            service: outcome.port.filter(|_| forwarded).map(|port| port.to_string()),
            targets: outcome
                .targets
                .into_iter()
                .map(|target| TargetReport {
                    address: target.address,
                    masquerade: target.masquerade,
                })
                .collect(),
            affinity_seconds: outcome.affinity.map(|affinity| affinity.as_secs()),
            steps: outcome.steps,
        }
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceRequest { from, to, protocol } = &self.packet;
        let who = if self.from_node { " (this node)" } else { "" };
        writeln!(f, "{from}{who} -> {to}/{protocol}")?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {}. {step}", number + 1)?;
        }
        match self.fate.as_str() {
            "forward" => {
                let service = self.service.as_deref().unwrap_or_default();
                writeln!(f, "forwarded, to one of these endpoints of {service}:")?;
                for target in &self.targets {
                    let seen = if target.masquerade { "node" } else { "client" };
                    writeln!(f, "  -> {}, which sees the {seen}'s address", target.address)?;
                }
                Ok(())
            }
            "drop" => writeln!(f, "dropped: the sender hears nothing"),
            "reject" => writeln!(f, "rejected: the sender is told at once"),
            _ => writeln!(f, "left alone: the host treats it as if no proxy were here"),
        }
    }
}
