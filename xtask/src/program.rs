//! The program as it is shipped: the same bytes wherever its sources lie.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// What the artefacts are made of: the program named, or a build for release.
pub(crate) fn named_or_built(program: Option<&PathBuf>) -> Result<PathBuf> {
    match program {
        Some(program) => std::path::absolute(program).with_context(|| program.display().to_string()),
        None => built(&shell::root(), &shell::target_dir().join("dist")),
    }
}

/// A build for release of the sources there. No path of this machine gets into it, neither of the sources nor of cargo's
/// copies of dependencies, whether rustc or the C compiler would write it. A directory of its own, because other flags
/// would make cargo build everything again at every turn.
pub(crate) fn built(sources: &Path, target: &Path) -> Result<PathBuf> {
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let moved = [(target, "/build"), (sources, "/ferry"), (&cargo_home, "/cargo")];
    let rust: Vec<String> = moved
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    let c: Vec<String> = moved
        .iter()
        .map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()))
        .collect();
    let mut build = shell::cargo();
    build
        .current_dir(sources)
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
        .env("CFLAGS", c.join(" "))
        .env("CARGO_TARGET_DIR", target)
        .args(["build", "--release", "--locked", "--package", "ferry-app"]);
    shell::run(&mut build)?;
    Ok(target.join("release/ferry"))
}

/// What all files of an artefact are as old as, in seconds since 1970: what SOURCE_DATE_EPOCH says, else the time of the last commit.
pub(crate) fn source_date() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut log = Command::new("git");
            log.current_dir(shell::root()).args(["log", "-1", "--format=%ct"]);
            String::from_utf8(shell::output(&mut log)?)?
        }
    };
    let text = text.trim();
    text.parse()
        .with_context(|| format!("SOURCE_DATE_EPOCH: {text:?} is no number of seconds"))
}

/// The same as a date of RFC 3339.
pub(crate) fn written_date() -> Result<String> {
    let at = format!("--date=@{}", source_date()?);
    let date = shell::output(Command::new("date").args(["--utc", &at, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(String::from_utf8(date)?.trim().to_owned())
}

/// The commit that is checked out.
pub(crate) fn revision() -> Result<String> {
    let mut ask = Command::new("git");
    ask.current_dir(shell::root()).args(["rev-parse", "HEAD"]);
    Ok(String::from_utf8(shell::output(&mut ask)?)?.trim().to_owned())
}

/// Debian's name of this machine's architecture, which is also that of images.
pub(crate) fn architecture() -> Result<String> {
    let name = shell::output(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(String::from_utf8(name)?.trim().to_owned())
}

/// The release of Debian that runs here: what is built here has its libraries.
pub(crate) fn suite() -> Result<String> {
    let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    suite
        .map(str::to_owned)
        .context("/etc/os-release names no release of Debian")
}
