//! The state of the daemon, as a value.

use std::collections::HashMap;
use std::time::SystemTime;

use ferry_backends::Traffic;
use ferry_model::{Action, Family, PortName, ServicePlan, Skipped};
use ferry_sources::{Mailbox, Problem};
use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::sync::{FamilyNotice, Notice};

/// Everything that `ferry status` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The program's own version.
    pub version: String,
    /// The Kubernetes release that it speaks.
    pub kubernetes: String,
    /// The proxy mode.
    pub mode: String,
    /// Our Node.
    pub node: String,
    /// Its process id.
    pub pid: u32,
    /// Where objects come from.
    pub source: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Kinds of objects that were not listed yet; nothing is written before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<String>,
    /// A sync that has been running for this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncing_seconds: Option<f64>,
    /// Each family served.
    pub families: Vec<FamilyReport>,
    /// Services served.
    pub services: usize,
    /// EndpointSlices known.
    pub slices: usize,
    /// How many objects, or parts of them, are not served.
    #[serde(default)]
    pub not_served: usize,
    /// Objects, or parts of them, that are not served, with the reason; the first of them, where they are many.
    pub skipped: Vec<String>,
    /// Trouble with the source: an API server that cannot be reached, a broken file.
    pub problems: Vec<String>,
    /// Lines of the backend.
    pub notes: Vec<String>,
    /// A row per service port and family; absent while the loop is busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<StatusRow>>,
}

/// How one family fares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyReport {
    /// IPv4 or IPv6.
    pub family: String,
    /// When everything known was last in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// How long ago that was, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_age_seconds: Option<f64>,
    /// How long it took, in seconds.
    pub last_sync_duration_seconds: f64,
    /// Successful syncs.
    pub syncs: u64,
    /// Failed ones.
    pub failures: u64,
    /// The last error, until a sync succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often others' changes were put right.
    pub repairs: u64,
    /// What was put right last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_repair: Option<String>,
    /// Service ports.
    pub ports: usize,
    /// Known endpoints.
    pub endpoints: usize,
    /// What the last sync could not do and did not fail for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One service port in one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusRow {
    /// `namespace/name` or `namespace/name:port`.
    pub service: String,
    /// Cluster IP, port and protocol.
    pub address: String,
    /// Endpoints that get traffic.
    pub used: usize,
    /// Endpoints known.
    pub known: usize,
    /// What happens: forward, drop or reject.
    pub internal: String,
    /// The same for traffic from outside, where there is such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// New connections so far, where the mode counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
}

/// What stays the same for the life of the daemon.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) mode: crate::modes::Mode,
    pub(super) node: String,
    pub(super) source: String,
    pub(super) started: SystemTime,
}

impl StatusReport {
    /// From what the loop has published; without rows and notes, which only the loop itself can tell.
    pub(super) fn of(facts: &Identity, notice: &Notice, mailbox: &Mailbox, now: SystemTime) -> Self {
        let seconds_since = |time: SystemTime| now.duration_since(time).unwrap_or_default().as_secs_f64();
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            kubernetes: crate::KUBERNETES_VERSION.into(),
            mode: facts.mode.to_string(),
            node: facts.node.clone(),
            pid: std::process::id(),
            source: facts.source.clone(),
            uptime_seconds: seconds_since(facts.started) as u64,
            waiting_for: mailbox
                .missing()
                .into_iter()
                .map(|kind| kind.as_str().to_owned())
                .collect(),
            syncing_seconds: notice.syncing.map(|(_, since)| seconds_since(since)),
            families: notice
                .families
                .iter()
                .map(|(family, state)| FamilyReport::of(*family, state, notice, now))
                .collect(),
            services: notice.tally.services,
            slices: notice.slices,
            not_served: mailbox.skipped_count() + notice.contested.len(),
            skipped: skipped(mailbox, &notice.contested),
            problems: problems(mailbox),
            notes: Vec::new(),
            rows: None,
        }
    }
}

impl FamilyReport {
    fn of(family: Family, state: &FamilyNotice, notice: &Notice, now: SystemTime) -> Self {
        let tally = notice.tally.families.get(family);
        Self {
            family: family.to_string(),
            last_sync: state.last_success.map(rfc3339),
            last_sync_age_seconds: state
                .last_success
                .map(|time| now.duration_since(time).unwrap_or_default().as_secs_f64()),
            last_sync_duration_seconds: state.last_duration.as_secs_f64(),
            syncs: state.syncs,
            failures: state.failures,
            error: state.error.clone(),
            repairs: state.repairs,
            last_repair: state.last_repair.clone(),
            ports: tally.ports,
            endpoints: tally.endpoints,
            warnings: state.warnings.clone(),
        }
    }
}

/// How many objects that are not served are named; more would say no more.
const MAX_SKIPPED: usize = 1000;

/// What is not served and why, a line each.
pub(super) fn skipped(mailbox: &Mailbox, contested: &[Skipped]) -> Vec<String> {
    let all = mailbox.skipped();
    let mut lines: Vec<String> = all
        .iter()
        .chain(contested)
        .take(MAX_SKIPPED)
        .map(Skipped::to_string)
        .collect();
    let more = all.len() + contested.len() - lines.len();
    if more > 0 {
        lines.push(format!("... and {more} more"));
    }
    lines
}

/// Trouble with the source, a line each.
pub(crate) fn problems(mailbox: &Mailbox) -> Vec<String> {
    let line = |problem: Problem| {
        format!(
            "{}: {} (since {})",
            problem.about,
            problem.reason,
            rfc3339(problem.since)
        )
    };
    mailbox.problems().into_iter().map(line).collect()
}

/// A row per service port and family, with connections where they are counted.
pub(super) fn rows<'a>(
    services: impl Iterator<Item = &'a ServicePlan>,
    traffic: &[Traffic],
) -> Vec<StatusRow> {
    let connections: HashMap<(Family, &PortName), u64> = traffic
        .iter()
        .filter(|row| row.endpoint.is_none())
        .map(|row| ((row.family, &row.port), row.connections))
        .collect();
    let ports = services.flat_map(|service| &service.ports);
    ports
        .map(|port| StatusRow {
            service: port.name.to_string(),
            address: match port.frontends.first() {
                Some(frontend) => format!("{}/{}", frontend.key, port.protocol()),
                None => "-".into(),
            },
            used: port.reachable().count(),
            known: port.endpoints.len(),
            internal: port
                .cluster_ip()
                .map_or("-", |frontend| word(frontend.actions.others))
                .into(),
            external: port.external.map(|actions| word(actions.others).into()),
            connections: connections.get(&(port.family, &port.name)).copied(),
        })
        .collect()
}

/// An action in a word.
pub(crate) fn word(action: Action) -> &'static str {
    match action {
        Action::Forward { .. } => "forward",
        Action::Drop => "drop",
        Action::Reject => "reject",
        Action::NotOurs => "not ours",
    }
}
