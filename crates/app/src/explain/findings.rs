//! What the daemon knows beside plan and kernel that makes an answer doubtful or complete: whether its source still
//! speaks, what it refused to serve, and whether its last sync worked.

use std::time::{Duration, SystemTime};

use ferry_model::{Family, ObjectRef, ServiceName, Skipped};
use ferry_sources::Problem;

use super::report::{FindingReport, FindingWeight};
use crate::clock::rfc3339;
use crate::status::span;

/// What is known of the source and of the last sync.
#[derive(Debug)]
pub(crate) struct SourceState {
    /// Where objects come from.
    pub(crate) source: String,
    pub(crate) problems: Vec<Problem>,
    /// Kinds that were not listed yet.
    pub(crate) missing: Vec<&'static str>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) sync_errors: Vec<(Family, String)>,
}

impl SourceState {
    /// What it means for an answer about these services.
    pub(crate) fn findings(&self, services: &[ServiceName], now: SystemTime) -> Vec<FindingReport> {
        let mut findings = Vec::new();
        let is_asked = |skipped: &&Skipped| matches!(&skipped.object, ObjectRef::Service(name) if services.contains(name));
        for skipped in self.skipped.iter().filter(is_asked) {
            let weight = match skipped.part {
                None => FindingWeight::Blocks,
                Some(_) => FindingWeight::Note,
            };
            findings.push(FindingReport::new(
                "not-served",
                weight,
                format!("not served: {skipped}"),
                "correct that field of the object",
            ));
        }
        if !self.missing.is_empty() {
            findings.push(FindingReport::new(
                "not-listed",
                FindingWeight::Doubt,
                format!(
                    "{} has not told its {} yet, so nothing is known",
                    self.source,
                    self.missing.join(", ")
                ),
                format!("make {} reachable from this node", self.source),
            ));
        }
        if let Some(problem) = self.problems.iter().min_by_key(|problem| problem.since) {
            let age = now.duration_since(problem.since).unwrap_or(Duration::ZERO);
            findings.push(FindingReport::new(
                "source-silent",
                FindingWeight::Doubt,
                format!(
                    "{} has not been heard since {} ({} ago), so services and endpoints may have changed: {}",
                    self.source,
                    rfc3339(problem.since),
                    span(age.as_secs_f64()),
                    problem.reason
                ),
                format!(
                    "make {} reachable from this node; until then what is in force stays",
                    self.source
                ),
            ));
        }
        findings.extend(self.sync_errors.iter().map(|(family, error)| {
            FindingReport::new(
                "sync-failing",
                FindingWeight::Doubt,
                format!("the last {family} sync failed, so the kernel may be behind: {error}"),
                "put right what the error names; it is tried again by itself",
            )
        }));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_gone_for_minutes_is_named_with_its_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let problem = |minutes: u64| Problem {
            about: "services".into(),
            reason: "connection refused".into(),
            since: now - Duration::from_secs(60 * minutes),
        };
        let state = SourceState {
            source: "API server https://10.0.0.1:6443".into(),
            problems: vec![problem(2), problem(4)],
            missing: vec![],
            skipped: vec![],
            sync_errors: vec![],
        };
        let findings = state.findings(&[], now);
        let [finding] = findings.as_slice() else {
            panic!("{findings:?}")
        };
        assert_eq!(
            (&*finding.cause, finding.weight),
            ("source-silent", FindingWeight::Doubt)
        );
        assert!(finding.says.contains("(4 min 0 s ago)"), "{}", finding.says);
        assert!(
            finding.remedy.contains("https://10.0.0.1:6443"),
            "{}",
            finding.remedy
        );
    }
}
