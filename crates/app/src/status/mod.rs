//! What the daemon tells about itself over a local socket, and how `plan`, `trace` and `status` show it.
//! Reads what the loop publishes, or asks the loop between two syncs; changes nothing.
//! One JSON line in, one JSON line out. A daemon that is busy with a long sync still tells its state.

mod client;
mod diff;
mod plan;
mod report;
mod rules;
mod server;
mod service;
mod table;
mod trace;

pub use client::{
    AskError, ask_diff, ask_explain, ask_facts, ask_flows, ask_history, ask_plan, ask_pulse, ask_rules,
    ask_service, ask_status, ask_trace,
};
pub use diff::{DiffReport, FamilyDiff};
pub use plan::{
    AddressSource, DecisionReport, EndpointReport, FrontendReport, NodeReport, PlanReport, PortReport,
    ServiceReport,
};
pub use report::{FamilyReport, StatusReport, StatusRow};
pub(crate) use report::{problems, word};
pub use rules::{FamilyRules, RulesReport};
pub use server::{Sources, serve};
pub use service::{PlaceReport, ServiceDetail};
pub(crate) use table::{columns, span};
pub use trace::{TraceReport, TraceRequest};

use serde::{Deserialize, Serialize};

use crate::explain::{ExplainReport, ExplainRequest};
use crate::facts::Facts;
use crate::flows::FlowsReport;
use crate::history::HistoryReport;

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(crate) enum Request {
    /// The state of the daemon and a row per service.
    Status,
    /// Everything that is decided.
    Plan,
    /// What that is in the kernel's own language.
    Rules,
    /// What becomes of one packet.
    Trace(TraceRequest),
    /// Why a service is or is not reached.
    Explain(ExplainRequest),
    /// What happened lately.
    History(HistoryRequest),
    /// Where the kernel differs from the plan.
    Diff,
    /// Everything that the plan is made of.
    Facts,
    /// One service, closely: `namespace/name`.
    Service { name: String },
    /// Who talks to which service.
    Flows(FlowsRequest),
    /// The state without the rows: cheap, and answered at once.
    Pulse,
}

/// Which part of the history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRequest {
    /// Of one service: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Of the last so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<f64>,
}

/// Which flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsRequest {
    /// Of one service: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Over how many seconds rates are taken; none of them without.
    #[serde(default)]
    pub seconds: f64,
}

/// What it gets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// The state.
    Status(Box<StatusReport>),
    /// The plan.
    Plan(PlanReport),
    /// What is written for it.
    Rules(RulesReport),
    /// The decision.
    Trace(TraceReport),
    /// The reasons.
    Explain(Box<ExplainReport>),
    /// What happened.
    History(HistoryReport),
    /// The differences.
    Diff(DiffReport),
    /// The facts.
    Facts(Box<Facts>),
    /// The service, if there is one.
    Service(Option<Box<ServiceDetail>>),
    /// The flows.
    Flows(FlowsReport),
    /// The question was not understood or cannot be answered now.
    Error(String),
}
