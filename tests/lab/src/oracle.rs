//! Recorded truth: scenarios, and what kube-proxy v1.36 did to packets in each of them.
//!
//! A scenario is a cluster, kube-proxy's flags and steps that change the cluster and send probes; the expected
//! record has the outcome of every probe in each mode. The files are in `tests/data/oracle`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::netns::{Outcome, Probe};

/// Modes that were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];

    /// As in `--proxy-mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    /// Flags for the proxy beside those that say where the API server is.
    #[serde(default)]
    pub args: Vec<String>,
    /// What is in the cluster at the start, beside [`crate::api::default_objects`].
    #[serde(default)]
    pub objects: Vec<Value>,
    pub steps: Vec<Step>,
    /// The only modes that have what is tested here.
    #[serde(default)]
    modes: Option<Vec<String>>,
}

impl Scenario {
    pub fn runs_in(&self, mode: Mode) -> bool {
        self.modes
            .as_ref()
            .is_none_or(|modes| modes.iter().any(|m| m == mode.as_str()))
    }
}

/// Changes, then questions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub name: String,
    #[serde(default)]
    pub apply: Vec<Value>,
    #[serde(default)]
    pub delete: Vec<Value>,
    /// Something that the API server does to its watches.
    #[serde(default)]
    pub api: Option<Disturbance>,
    /// Seconds that kube-proxy was given to follow; a proxy that follows sooner need not be waited for.
    #[serde(default)]
    pub wait: Option<f64>,
    #[serde(default)]
    pub probes: Vec<Probe>,
    #[serde(default)]
    pub http: Vec<Fetch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disturbance {
    /// Every watch is cut.
    Close,
    /// Every watch gets 410 Gone and history is dropped.
    Expire,
}

/// A URL to fetch with curl from a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fetch {
    #[serde(default = "node")]
    pub from: String,
    pub url: String,
    /// Is the body compared too?
    #[serde(default = "yes")]
    pub body: bool,
}

fn node() -> String {
    "node".into()
}

fn yes() -> bool {
    true
}

/// What was recorded of a scenario in one mode.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    pub scenario: String,
    pub steps: Vec<ExpectedStep>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedStep {
    pub step: String,
    pub probes: Vec<Outcome>,
    #[serde(default)]
    pub http: Vec<Fetched>,
    /// The node's rules after the step, by the tool that listed them: `iptables-save`, `ip6tables-save`,
    /// `ipvs`, `ipset`. None for nftables, whose rules nobody needs to imitate.
    #[serde(default)]
    pub rules: BTreeMap<String, String>,
}

/// An HTTP answer, its time stamps blanked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fetched {
    pub url: String,
    pub code: String,
    pub body: String,
}

/// All scenarios, by name.
pub fn scenarios() -> Result<Vec<Scenario>> {
    let dir = data().join("scenarios");
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

pub fn scenario(name: &str) -> Result<Scenario> {
    read(&data().join("scenarios").join(format!("{name}.json")))
}

pub fn expected(mode: Mode, scenario: &str) -> Result<Expected> {
    read(
        &data()
            .join("expected")
            .join(mode.as_str())
            .join(format!("{scenario}.json")),
    )
}

/// An answer as it is recorded: the values of `lastUpdated` and `currentTime` blanked.
pub fn without_times(body: &str) -> String {
    let mut out = body.to_owned();
    for key in ["lastUpdated", "currentTime"] {
        let quoted = format!("\"{key}\":");
        let mut rest = std::mem::take(&mut out);
        while let Some(at) = rest.find(&quoted) {
            let value = at + quoted.len();
            out.push_str(&rest[..value]);
            let after = rest[value..].trim_start();
            rest = match after.strip_prefix('"').and_then(|v| v.split_once('"')) {
                Some((_, tail)) => {
                    out.push_str("\"\"");
                    tail.to_owned()
                }
                None => after.to_owned(),
            };
        }
        out.push_str(&rest);
    }
    out
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/oracle")
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not as it should be", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_an_outcome_for_every_probe_in_every_mode() {
        let scenarios = scenarios().unwrap();
        assert!(scenarios.len() >= 28);
        let mut probes = 0;
        for (scenario, mode) in scenarios.iter().flat_map(|s| Mode::ALL.map(|m| (s, m))) {
            if !scenario.runs_in(mode) {
                continue;
            }
            let expected = expected(mode, &scenario.name).unwrap();
            assert_eq!(expected.scenario, scenario.name);
            assert_eq!(expected.steps.len(), scenario.steps.len());
            for (step, want) in scenario.steps.iter().zip(&expected.steps) {
                assert_eq!(step.name, want.step);
                let each: Vec<Probe> = step.probes.iter().flat_map(Probe::each).collect();
                let asked: Vec<String> = each
                    .iter()
                    .map(|p| format!("{} -> {}:{}/{}", p.sender(), p.to, p.port, p.proto))
                    .collect();
                let answered: Vec<&String> = want.probes.iter().map(|o| &o.probe).collect();
                assert_eq!(
                    asked.iter().collect::<Vec<_>>(),
                    answered,
                    "{} {}",
                    scenario.name,
                    step.name
                );
                assert_eq!(step.http.len(), want.http.len());
                probes += each.len();
            }
        }
        assert!(probes > 500, "{probes} probes");
    }

    #[test]
    fn times_are_blanked() {
        let body = r#"{"lastUpdated": "2026-01-01 00:00:00","currentTime":"x","n":{"lastUpdated":"y","healthy":true}}"#;
        let blank = r#"{"lastUpdated":"","currentTime":"","n":{"lastUpdated":"","healthy":true}}"#;
        assert_eq!(without_times(body), blank);
        assert_eq!(without_times("ok"), "ok");
    }
}
