//! Running other programs: said aloud before, an error with the command line after.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Where cargo puts what it builds for this workspace.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = show(command);
    eprintln!("+ {line}");
    let status = command.status().with_context(|| format!("cannot start {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let line = show(command);
    let out = command.output().with_context(|| format!("cannot start {line}"))?;
    if !out.status.success() {
        bail!("{line}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

/// What rustc calls the machine that we run on.
pub(crate) fn host_triple() -> Result<String> {
    let out = output(Command::new("rustc").arg("-vV"))?;
    let text = String::from_utf8(out)?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc does not say what it runs on")
}

fn show(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let program = program
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    std::iter::once(program)
        .chain(command.get_args().map(|a| a.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}
