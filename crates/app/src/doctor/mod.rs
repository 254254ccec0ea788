//! `ferry doctor`: what of this node would keep the proxy from working, and what to do about it.
//! Looks at the kernel, the rules, the processes and the API server; asking may make the kernel load a module, nothing else
//! changes. Always holds: every finding that is not good has a remedy.

mod api;
mod machine;
mod proxies;
mod rules;

use std::fmt;

use serde::Serialize;

use crate::config::{Settings, Source};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Worth knowing; the proxy deals with it.
    Note,
    /// Some traffic may suffer.
    Warning,
    /// The proxy will not work.
    Problem,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    pub verdict: Verdict,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn bad(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            check,
            verdict,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub mode: &'static str,
    pub findings: Vec<Finding>,
}

impl Report {
    /// Looks at everything that a daemon with these settings would depend on.
    pub fn of(settings: &Settings) -> anyhow::Result<Self> {
        let mut findings = machine::privileges();
        findings.extend(machine::kernel(settings.mode));
        findings.extend(machine::parameters(&machine::Proc::default(), settings.mode));
        findings.extend(rules::all(settings.mode));
        findings.extend(proxies::all(settings));
        if let Source::Api(client) = &settings.source {
            let name = crate::daemon::node_name(settings)?;
            findings.extend(api::all(client, &name)?);
        }
        Ok(Self {
            mode: settings.mode.as_str(),
            findings,
        })
    }

    /// Whether the proxy can work.
    pub fn is_good(&self) -> bool {
        self.count(Verdict::Problem) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        let found = self.findings.iter().filter(|f| f.verdict == verdict);
        found.count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding {
                check,
                verdict,
                found,
                remedy,
            } = finding;
            writeln!(f, "{:<8} {check:<12} {found}", verdict.as_str())?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:21} -> {remedy}", "")?;
            }
        }
        writeln!(
            f,
            "{} problems, {} warnings, for {} mode",
            self.count(Verdict::Problem),
            self.count(Verdict::Warning),
            self.mode
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_line_for_each_finding_and_one_for_what_to_do() {
        let report = Report {
            mode: "nftables",
            findings: vec![
                Finding::ok("kernel", "Linux 6.1"),
                Finding::bad("api", Verdict::Problem, "no way in", "open the door"),
            ],
        };
        assert_eq!(
            report.to_string(),
            "ok       kernel       Linux 6.1\nproblem  api          no way in\n                      -> open the door\n\
             1 problems, 0 warnings, for nftables mode\n"
        );
        assert!(!report.is_good());
    }
}
