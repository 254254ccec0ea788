//! The explanation as a value that can be printed and sent.

use ferry_model::{Action, Because, Client, EndpointFate, Explanation, Place, Reason, Weight};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

use super::ExplainRequest;
use super::live::LiveReport;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainReport {
    pub asked: ExplainRequest,
    pub mode: String,
    pub places: Vec<PlaceReport>,
    /// What the kernel says; absent where only objects were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelReport>,
    /// What the kernel told of packets while they passed, where it was asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveReport>,
    /// The weightiest first.
    pub findings: Vec<FindingReport>,
    pub verdict: VerdictReport,
}

/// One frontend, seen by one kind of client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceReport {
    pub service: String,
    pub address: SocketAddr,
    pub protocol: String,
    /// cluster IP, node port and so on.
    pub kind: String,
    /// pod, node or outside.
    pub client: String,
    /// forward, drop, reject or host.
    pub fate: String,
    pub steps: Vec<StepReport>,
    pub endpoints: Vec<EndpointReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    pub says: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<BecauseReport>,
}

/// The field behind a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BecauseReport {
    pub object: String,
    pub field: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    pub address: SocketAddr,
    pub slice: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub used: bool,
    pub why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<BecauseReport>,
}

/// What the kernel holds and would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelReport {
    pub checks: Vec<CheckReport>,
    /// What could not be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    pub settings: Vec<SettingReport>,
    pub ways: Vec<WayReport>,
    /// Tracked flows to the places asked about.
    pub flows: u64,
    /// Those that lead to none of the endpoints.
    pub stale_flows: Vec<String>,
}

/// Something that should be in the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub service: String,
    pub what: String,
    pub state: CheckState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    Present,
    Missing,
    Different,
}

/// A kernel parameter; `None` where it does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingReport {
    pub name: String,
    pub value: Option<i64>,
}

/// How the kernel would send to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WayReport {
    pub endpoint: SocketAddr,
    /// Absent where there is no route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<std::net::IpAddr>,
    /// unknown, resolved, asked or failed; local where the address is the node's own.
    pub neighbour: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingReport {
    /// A name for programs: `no-endpoints`.
    pub cause: String,
    pub weight: FindingWeight,
    pub says: String,
    pub remedy: String,
}

/// What a finding means, the weightiest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingWeight {
    /// Traffic does not arrive.
    Blocks,
    /// It cannot be told.
    Doubt,
    /// It is worth knowing.
    Note,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Reachable,
    Unreachable,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictReport {
    pub is: Verdict,
    /// One sentence.
    pub says: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl ExplainReport {
    /// From what the plan says, what the kernel says where it was asked, and what was found besides.
    pub(crate) fn of(
        asked: ExplainRequest,
        mode: &str,
        explanation: &Explanation,
        kernel: Option<KernelReport>,
        more: Vec<FindingReport>,
    ) -> Self {
        let mut findings: Vec<FindingReport> = explanation.all_findings().map(FindingReport::of).collect();
        findings.extend(more);
        // Several places may say the same; the order within a weight is that of the packet's way.
        let mut seen = Vec::new();
        findings.retain(|finding| {
            let new = !seen.contains(finding);
            seen.push(finding.clone());
            new
        });
        findings.sort_by_key(|finding| finding.weight);
        let places: Vec<PlaceReport> = explanation.places.iter().map(PlaceReport::of).collect();
        let verdict = verdict(&findings, &places, kernel.is_some());
        Self {
            asked,
            mode: mode.to_owned(),
            places,
            kernel,
            live: None,
            findings,
            verdict,
        }
    }
}

impl ExplainReport {
    /// Adds findings that go before the others of their weight, and judges again.
    pub(super) fn add_first(&mut self, more: Vec<FindingReport>) {
        self.findings.splice(0..0, more);
        self.findings.sort_by_key(|finding| finding.weight);
        self.verdict = verdict(&self.findings, &self.places, self.kernel.is_some());
    }
}

fn verdict(findings: &[FindingReport], places: &[PlaceReport], looked: bool) -> VerdictReport {
    match findings
        .first()
        .filter(|finding| finding.weight != FindingWeight::Note)
    {
        Some(finding) => {
            let (is, head) = match finding.weight {
                FindingWeight::Blocks => (Verdict::Unreachable, "not reachable"),
                FindingWeight::Doubt | FindingWeight::Note => (Verdict::Unknown, "cannot tell"),
            };
            VerdictReport {
                is,
                says: format!("{head}: {}", finding.says),
                remedy: Some(finding.remedy.clone()),
            }
        }
        None => {
            let used = places.iter().flat_map(|place| &place.endpoints);
            let used: std::collections::BTreeSet<_> =
                used.filter(|one| one.used).map(|one| one.address).collect();
            let seen = if looked {
                "the plan leads to them and the kernel holds what it takes"
            } else {
                "so the plan says; the kernel was not looked at"
            };
            VerdictReport {
                is: Verdict::Reachable,
                says: format!("reachable through {} endpoint(s): {seen}", used.len()),
                remedy: None,
            }
        }
    }
}

impl PlaceReport {
    fn of(place: &Place) -> Self {
        Self {
            service: place.port.to_string(),
            address: SocketAddr::new(place.address, place.key.port()),
            protocol: place.port.protocol.to_string(),
            kind: place.kind.to_string(),
            client: match place.client {
                Client::Pod => "pod",
                Client::Node => "node",
                Client::Other => "outside",
            }
            .into(),
            fate: match place.action {
                Action::Forward { .. } => "forward",
                Action::Drop => "drop",
                Action::Reject => "reject",
                Action::NotOurs => "host",
            }
            .into(),
            steps: place.steps.iter().map(StepReport::of).collect(),
            endpoints: place.endpoints.iter().map(EndpointReport::of).collect(),
        }
    }
}

impl StepReport {
    fn of(reason: &Reason) -> Self {
        Self {
            says: reason.says.clone(),
            because: reason.because.as_ref().map(BecauseReport::of),
        }
    }
}

impl BecauseReport {
    fn of(because: &Because) -> Self {
        Self {
            object: because.object.to_string(),
            field: because.field.clone(),
            value: because.value.clone(),
        }
    }
}

impl EndpointReport {
    fn of(fate: &EndpointFate) -> Self {
        Self {
            address: fate.address,
            slice: fate.slice.to_string(),
            node: fate.node.as_deref().map(str::to_owned),
            used: fate.fate.is_used(),
            why: fate.fate.to_string(),
            because: fate.because.as_ref().map(BecauseReport::of),
        }
    }
}

impl FindingReport {
    fn of(finding: &ferry_model::Finding) -> Self {
        Self {
            cause: finding.cause.code().into(),
            weight: match finding.weight {
                Weight::Blocks => FindingWeight::Blocks,
                Weight::Note => FindingWeight::Note,
            },
            says: finding.cause.to_string(),
            remedy: finding.cause.remedy(),
        }
    }

    pub(crate) fn new(
        cause: &str,
        weight: FindingWeight,
        says: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            cause: cause.into(),
            weight,
            says: says.into(),
            remedy: remedy.into(),
        }
    }
}
