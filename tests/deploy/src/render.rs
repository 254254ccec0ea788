//! The tools that turn what is in the repository into objects.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The modes that have an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
    Userspace,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace];

    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What kubectl makes of a directory below `deploy/kubernetes`.
pub fn kustomize(directory: &str) -> Result<String> {
    let source = repository().join("deploy/kubernetes");
    if !speaks_old_kustomize()? {
        return output(
            Command::new("kubectl")
                .arg("kustomize")
                .arg(source.join(directory)),
        );
    }
    let copy = tempfile::tempdir()?;
    output(Command::new("cp").arg("-r").arg(&source).arg(copy.path()))?;
    let copy = copy.path().join("kubernetes");
    translate(&copy)?;
    output(Command::new("kubectl").arg("kustomize").arg(copy.join(directory)))
}

/// kubectl has had the kustomize of 2019 until its version 1.21; Debian 12 has 1.20.
fn speaks_old_kustomize() -> Result<bool> {
    let version = output(Command::new("kubectl").args(["version", "--client", "--output=json"]))?;
    let version: serde_json::Value = serde_json::from_str(&version)?;
    let minor = version["clientVersion"]["minor"].as_str().unwrap_or_default();
    let minor: u32 = minor
        .trim_end_matches('+')
        .parse()
        .with_context(|| format!("the version of kubectl: {version}"))?;
    Ok(minor < 21)
}

/// Says the same in the words of 2019: directories are bases, and patches are a list of files.
fn translate(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            translate(&path)?;
        } else if path.ends_with("kustomization.yaml") {
            let text = std::fs::read_to_string(&path)?;
            let text = text
                .replace("resources:\n  - ../", "bases:\n  - ../")
                .replace("patches:\n  - path: ", "patchesStrategicMerge:\n  - ");
            std::fs::write(&path, text)?;
        }
    }
    Ok(())
}

/// Runs helm. It is on PATH, or `cargo xtask deploy` has fetched it.
pub fn helm(args: &[&str]) -> Result<String> {
    let program = std::env::var_os("FERRY_HELM").unwrap_or_else(|| "helm".into());
    let chart = repository().join("deploy/chart/ferry");
    let (verb, rest) = args.split_first().context("helm needs a verb")?;
    let mut command = Command::new(program);
    command.arg(verb);
    if *verb == "template" {
        command.arg("ferry");
    }
    command.arg(chart).args(rest);
    output(&mut command).context("helm (cargo xtask deploy fetches it where there is none)")
}

/// The built program.
pub fn ferry() -> Result<Command> {
    let built = match std::env::var_os("FERRY_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let own = std::env::current_exe()?;
            let debug = own.ancestors().nth(2).context("where tests are built")?;
            debug.join("ferry")
        }
    };
    if !built.is_file() {
        bail!("{} is missing: cargo build", built.display());
    }
    Ok(Command::new(built))
}

fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !out.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8(out.stdout)?)
}
