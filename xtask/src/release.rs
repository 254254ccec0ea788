//! Everything that a release consists of, by one command.
//!
//! May touch: the build directory, Debian's packages. Always holds: the artefacts are all there with their checksums, or none
//! is; the same program and the same packages of Debian give the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::image::{self, Debian, sha256};
use crate::{package, program, sbom, shell};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMS: &str = "SHA256SUMS";

/// Build every artefact of a release into target/artefacts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    /// Build a second time, from a copy of the commit in another place, and compare
    #[arg(long)]
    verify: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    is_ready(&args.program)?;
    let program = program::named_or_built(args.program.as_ref())?;
    let out = shell::target_dir().join("artefacts");
    let sums = pack(&program, Debian::Fetched, &out)?;
    if args.verify {
        let again = tempfile::tempdir()?;
        let program = match &args.program {
            Some(program) => program.clone(),
            None => built_elsewhere(again.path())?,
        };
        let second = pack(&program, Debian::Fetched, &again.path().join("artefacts"))?;
        same(&sums, &second)?;
        let what = match args.program {
            Some(_) => "packing again",
            None => "a second build",
        };
        println!("{what} gave the same bytes");
    }
    print!("{sums}");
    println!("in {}", out.display());
    Ok(())
}

/// What a release must not be without.
fn is_ready(program: &Option<PathBuf>) -> Result<()> {
    let read = |file: &str| fs::read_to_string(shell::root().join(file)).with_context(|| file.to_owned());
    versions_agree(&read("deploy/chart/ferry/Chart.yaml")?, &read("CHANGELOG.md")?)?;
    if program.is_some() {
        return Ok(());
    }
    let mut status = Command::new("git");
    status.current_dir(shell::root()).args(["status", "--porcelain"]);
    let changed = String::from_utf8(shell::output(&mut status)?)?;
    ensure!(
        changed.is_empty(),
        "the artefacts name the commit that they are made from; commit first:\n{changed}"
    );
    Ok(())
}

fn versions_agree(chart: &str, changelog: &str) -> Result<()> {
    for key in ["version", "appVersion"] {
        ensure!(
            chart.lines().any(|line| line == format!("{key}: {VERSION}")),
            "deploy/chart/ferry/Chart.yaml: {key} is not {VERSION}"
        );
    }
    let heading = format!("## {VERSION}");
    ensure!(
        changelog.lines().any(|line| line.starts_with(&heading)),
        "CHANGELOG.md has no heading {heading:?}"
    );
    Ok(())
}

/// Makes all artefacts of a program, and what `sha256sum --check` reads.
fn pack(program: &Path, debian: Debian, out: &Path) -> Result<String> {
    let parent = out.parent().context("a directory has a parent")?;
    fs::create_dir_all(parent)?;
    let work = tempfile::Builder::new()
        .prefix(".artefacts-")
        .tempdir_in(parent)?;
    let at = |name: &str| work.path().join(name);
    let architecture = program::architecture()?;
    let binary = at(&format!("ferry-{VERSION}-linux-{architecture}"));
    fs::copy(program, &binary)?;
    shell::output(Command::new("strip").arg(&binary))?;
    shell::output(Command::new("chmod").arg("755").arg(&binary))?;
    for file in [package::debian(program)?, image::build(program, debian)?.archive] {
        let name = file.file_name().context("an artefact has a name")?;
        fs::copy(&file, work.path().join(name))?;
    }
    fs::write(at(&format!("ferry-{VERSION}.spdx.json")), sbom::of_program()?)?;
    let chart = shell::root().join("deploy/chart");
    archive(&chart, &["ferry"], &at(&format!("ferry-{VERSION}.tgz")))?;
    let parts = ["kubernetes", "seccomp", "monitoring"];
    let manifests = at(&format!("ferry-{VERSION}-manifests.tgz"));
    archive(&shell::root().join("deploy"), &parts, &manifests)?;
    let sums = sums(work.path())?;
    fs::write(at(SUMS), &sums)?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::rename(work.path(), out)?;
    Ok(sums)
}

/// Directories as an archive in which nothing tells of the machine or the hour.
fn archive(directory: &Path, names: &[&str], to: &Path) -> Result<()> {
    let tar = to.with_extension("tar");
    image::tar(directory, names, &tar)?;
    shell::output(Command::new("gzip").args(["--no-name", "--best"]).arg(&tar))?;
    fs::rename(to.with_extension("tar.gz"), to)?;
    Ok(())
}

fn sums(directory: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let mut text = String::new();
    for name in names {
        let sum = sha256(&fs::read(directory.join(&name))?);
        text.push_str(&format!("{sum}  {name}\n"));
    }
    Ok(text)
}

/// The same commit, built where nothing has the same path.
fn built_elsewhere(directory: &Path) -> Result<PathBuf> {
    let sources = directory.join("sources");
    let mut clone = Command::new("git");
    clone
        .args(["clone", "--quiet", "--no-hardlinks"])
        .arg(shell::root())
        .arg(&sources);
    shell::run(&mut clone)?;
    program::built(&sources, &directory.join("target"))
}

/// Names what differs.
fn same(first: &str, second: &str) -> Result<()> {
    let differ: Vec<&str> = first
        .lines()
        .filter(|line| !second.lines().any(|other| other == *line))
        .filter_map(|line| line.split("  ").nth(1))
        .collect();
    if !differ.is_empty() || first.lines().count() != second.lines().count() {
        bail!("two builds differ in: {}", differ.join(", "));
    }
    Ok(())
}

/// The package and the image once more, from the same program, must be what they were.
pub(crate) fn is_reproducible(program: &Path, before: &[&Path]) -> Result<()> {
    let sum = |path: &Path| -> Result<String> {
        let name = path.file_name().context("an artefact has a name")?;
        Ok(format!(
            "{}  {}\n",
            sha256(&fs::read(path)?),
            name.to_string_lossy()
        ))
    };
    let first: String = before.iter().map(|path| sum(path)).collect::<Result<_>>()?;
    let again = [
        package::debian(program)?,
        image::build(program, Debian::Kept)?.archive,
    ];
    let second: String = again.iter().map(|path| sum(path)).collect::<Result<_>>()?;
    same(&first, &second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_and_changelog_are_of_this_version() {
        let read = |file: &str| fs::read_to_string(shell::root().join(file)).unwrap();
        let (chart, changelog) = (read("deploy/chart/ferry/Chart.yaml"), read("CHANGELOG.md"));
        versions_agree(&chart, &changelog).unwrap();
        let error = versions_agree(&chart, "# Changes\n").unwrap_err().to_string();
        assert!(error.starts_with("CHANGELOG.md has no heading"), "{error}");
        assert!(versions_agree("version: 9\n", &changelog).is_err());
    }

    #[test]
    fn a_difference_is_named() {
        same("1  a\n2  b\n", "2  b\n1  a\n").unwrap();
        let error = same("1  a\n2  b\n", "1  a\n3  b\n").unwrap_err().to_string();
        assert_eq!(error, "two builds differ in: b");
        assert!(same("1  a\n", "1  a\n2  b\n").is_err());
    }
}
