//! `ferry compare`: what is against what would be.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use ferry_host::process::{Limits, Unattended, run};

use super::{CANNOT_TELL, DIFFERENT, load, print};
use crate::cli::{Invocation, Origin, Output, Refused};
use crate::compare::{CompareReport, compare as compare_plans};
use crate::config::Settings;
use crate::config::values::Word;
use crate::daemon;
use crate::facts::{Facts, settings_of};
use crate::modes::Mode;
use crate::status::{self, AddressSource, PlanReport};

/// How long another program may take to plan, and how much it may say.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    output: 1 << 30,
};

/// What the present is compared with.
struct Other {
    mode: Option<Word<Mode>>,
    config: Option<PathBuf>,
    binary: Option<PathBuf>,
}

/// `ferry compare`
pub fn compare(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output: Output = invocation.output()?;
    let other = Other::of(&invocation)?;
    let report = match compared(invocation, &other) {
        Ok(report) => report,
        Err(error) if error.is::<Refused>() => return Err(error),
        Err(error) => {
            eprintln!("ferry: {error:#}");
            return Ok(ExitCode::from(CANNOT_TELL));
        }
    };
    print(output, &report)?;
    Ok(if report.agrees() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIFFERENT)
    })
}

impl Other {
    fn of(invocation: &Invocation) -> Result<Self, Refused> {
        let extra = &invocation.typed.extra;
        let path = |text: &String| Some(PathBuf::from(text)).filter(|_| !text.is_empty());
        let other = Self {
            mode: Some(extra.other_mode.clone()).filter(|mode| !mode.is_blank()),
            config: path(&extra.other_config),
            binary: path(&extra.other_binary),
        };
        if other.mode.is_none() && other.config.is_none() && other.binary.is_none() {
            let why = "name what to compare with: --mode, --config or --binary";
            return Err(Refused(why.into()));
        }
        Ok(other)
    }

    fn name(&self) -> String {
        let mode = self.mode.as_ref().map(|mode| format!("mode {}", mode.as_str()));
        let config = self.config.as_ref().map(|path| path.display().to_string());
        let binary = self.binary.as_ref().map(|path| path.display().to_string());
        let parts = [binary, config, mode].into_iter().flatten();
        parts.collect::<Vec<String>>().join(" with ")
    }

    /// The configuration that it would have.
    fn settings(&self, facts: &Facts) -> anyhow::Result<Settings> {
        match &self.config {
            None => facts.settings(self.mode.clone()),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                settings_of(&text, self.mode.clone()).with_context(|| path.display().to_string())
            }
        }
    }
}

fn compared(invocation: Invocation, other: &Other) -> anyhow::Result<CompareReport> {
    let (name, facts) = facts(invocation)?;
    let (now, then) = (facts.settings(None)?, other.settings(&facts)?);
    // Another program takes the node's addresses from its Node object, so both do.
    let addresses = match other.binary {
        Some(_) => AddressSource::NodeObject,
        None => AddressSource::Host,
    };
    let plan = |settings: &Settings| -> anyhow::Result<PlanReport> {
        let planner = facts.plan(settings, addresses)?;
        Ok(PlanReport::of(
            planner.plan(),
            settings.mode,
            addresses,
            Vec::new(),
        ))
    };
    let before = plan(&now)?;
    let after = match &other.binary {
        Some(binary) => plan_by(binary, &facts, &then)?,
        None => plan(&then)?,
    };
    Ok(compare_plans(&before, &after, [name, other.name()]))
}

/// Where the facts are from, in words, and the facts.
fn facts(invocation: Invocation) -> anyhow::Result<(String, Facts)> {
    let origin = invocation.origin_named_by(
        &["manifests", "kubeconfig", "master"],
        &["mode", "config", "binary"],
    )?;
    match origin {
        Origin::Running(socket) => Ok(("the running daemon".into(), status::ask_facts(&socket)?)),
        Origin::Bundle(path, _) => Ok((path.display().to_string(), crate::bundle::facts(&path)?)),
        Origin::Objects(settings) => {
            let loaded = load(&settings)?;
            let node = daemon::node_name(&settings)?;
            let known = loaded.planner.snapshot().facts();
            let facts = Facts::of(&known, &settings, &node, loaded.skipped);
            Ok(("a daemon with these flags".into(), facts))
        }
    }
}

/// What another program says that it would do with the same facts.
fn plan_by(binary: &Path, facts: &Facts, settings: &Settings) -> anyhow::Result<PlanReport> {
    let desk = Desk::new()?;
    let (config, manifests) = (desk.0.join("config.yaml"), desk.0.join("manifests"));
    let configz: serde_json::Value = serde_json::from_str(&settings.configz)?;
    std::fs::write(&config, configz["kubeproxy.config.k8s.io"].to_string())?;
    std::fs::create_dir(&manifests)?;
    std::fs::write(manifests.join("objects.json"), facts.manifest())?;
    let mut command = Command::new(binary);
    command
        .args(["plan", "--output=json", "--manifests"])
        .arg(&manifests)
        .arg("--config")
        .arg(&config)
        .arg(format!("--hostname-override={}", facts.node));
    let name = binary.display();
    let ran = run(&mut command, &[], LIMITS, &mut Unattended).with_context(|| format!("running {name}"))?;
    if !ran.status.success() {
        bail!("{name} plan: {}: {}", ran.status, ran.stderr.trim());
    }
    serde_json::from_slice(&ran.stdout).with_context(|| format!("what {name} plan printed is no plan"))
}

/// A directory of our own, for a moment.
struct Desk(PathBuf);

impl Desk {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("ferry-compare-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
