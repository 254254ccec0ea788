//! The container image, made of Debian's packages and the program, with neither a daemon nor a registry.
//!
//! May touch: the build directory, and the cache, where Debian's part is kept. Always holds: the same sources and packages
//! give the same bytes; an image that is there is complete.

mod containerfile;
mod oci;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::vm::packages::{default_cache, fill};
use crate::{packages, program, sbom, shell};

pub(crate) use oci::sha256;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Build the container image (an OCI archive) from a release build, or from the program named.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Put this program into it instead of a release build
    #[arg(long)]
    program: Option<PathBuf>,
    /// Ask Debian for its packages again, rather than to use those of the last time
    #[arg(long)]
    fresh: bool,
    /// Put the image's files into this directory instead, for a Containerfile to copy
    #[arg(long)]
    tree: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = program::named_or_built(args.program.as_ref())?;
    let debian = if args.fresh { Debian::Fetched } else { Debian::Kept };
    if let Some(tree) = &args.tree {
        return unpacked(&program, debian, tree);
    }
    let image = build(&program, debian)?;
    let size = fs::metadata(&image.archive)?.len();
    println!("{} ({size} bytes)", image.archive.display());
    Ok(())
}

/// Which packages of Debian go into an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Debian {
    /// Those of the last time, if there was one.
    Kept,
    /// Those that Debian has now.
    Fetched,
}

/// What was built.
#[derive(Debug)]
pub(crate) struct Image {
    /// An OCI layout as one file, for `ctr images import`, `podman load` or `skopeo copy oci-archive:`.
    pub(crate) archive: PathBuf,
    /// The same as a directory.
    pub(crate) layout: PathBuf,
}

/// Builds the image around a program.
pub(crate) fn build(program: &Path, debian: Debian) -> Result<Image> {
    let out = shell::target_dir().join("image");
    fs::create_dir_all(&out)?;
    let work = tempfile::Builder::new().prefix(".building-").tempdir_in(&out)?;
    let layers = layers(program, debian, work.path())?;
    let (architecture, created) = (program::architecture()?, program::written_date()?);
    let text = fs::read_to_string(shell::root().join("deploy/image/Containerfile"))?;
    let revision = program::revision()?;
    let arguments = [
        ("VERSION", VERSION),
        ("REVISION", &revision),
        ("CREATED", &created),
    ];
    let about = oci::About {
        stage: containerfile::last_stage(&text, &arguments)?,
        architecture: &architecture,
        created: &created,
        tag: VERSION,
    };
    let layout = work.path().join("oci");
    fs::create_dir(&layout)?;
    oci::write(&layout, &layers, &about)?;
    let image = Image {
        archive: out.join(format!("ferry-{VERSION}-{architecture}.oci.tar")),
        layout: out.join("oci"),
    };
    let packed = work.path().join("archive");
    tar(&layout, &["."], &packed)?;
    if image.layout.exists() {
        fs::remove_dir_all(&image.layout)?;
    }
    fs::rename(layout, &image.layout)?;
    fs::rename(packed, &image.archive)?;
    Ok(image)
}

fn unpacked(program: &Path, debian: Debian, tree: &Path) -> Result<()> {
    fs::create_dir_all(tree)?;
    let work = tempfile::tempdir()?;
    for layer in layers(program, debian, work.path())? {
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(&layer.tar);
        shell::output(tar.arg("--directory").arg(tree))?;
    }
    Ok(())
}

/// Debian's part, which stays the same for months, and ours.
fn layers(program: &Path, debian: Debian, work: &Path) -> Result<[oci::Layer; 2]> {
    let root = root(debian, work)?;
    let status = shell::output(
        Command::new("tar")
            .args(["--extract", "--to-stdout", "--file"])
            .arg(&root)
            .arg("./var/lib/dpkg/status"),
    )?;
    let tree = work.join("tree");
    let ours = work.join("ours.tar");
    let put = |from: &Path, to: &str, mode: &str| {
        let mut install = Command::new("install");
        install.args(["-D", "--mode", mode]).arg(from).arg(tree.join(to));
        shell::output(&mut install).map(drop)
    };
    put(program, "usr/bin/ferry", "755")?;
    shell::output(Command::new("strip").arg(tree.join("usr/bin/ferry")))?;
    let licence = shell::root().join("LICENSE");
    put(&licence, "usr/share/doc/ferry/copyright", "644")?;
    let parts = work.join("sbom");
    fs::write(&parts, sbom::of_image(&String::from_utf8(status)?)?)?;
    put(&parts, "usr/share/doc/ferry/sbom.spdx.json", "644")?;
    // where a DaemonSet of kubeadm's looks for kube-proxy: an image is all that has to be changed in it
    fs::create_dir_all(tree.join("usr/local/bin"))?;
    std::os::unix::fs::symlink("/usr/bin/ferry", tree.join("usr/local/bin/kube-proxy"))?;
    tar(&tree, &["."], &ours)?;
    let layer = |tar: PathBuf, made_by: &str| oci::Layer {
        tar,
        made_by: made_by.to_owned(),
    };
    Ok([
        layer(root, "deploy/image/root.sh"),
        layer(ours, "cargo xtask image"),
    ])
}

/// Files of a directory as an archive, all of them as old as the sources.
pub(crate) fn tar(directory: &Path, names: &[&str], to: &Path) -> Result<()> {
    oci::archive(directory, names, to, program::source_date()?)
}

/// Debian's part, kept under a name that changes with what it is made from.
fn root(debian: Debian, work: &Path) -> Result<PathBuf> {
    packages::ensure_also(&[("mmdebstrap", "mmdebstrap")])?;
    let suite = program::suite()?;
    if debian == Debian::Fetched {
        let file = work.join("root.tar");
        fetch_root(&suite, &file)?;
        return Ok(file);
    }
    let recipe = fs::read(shell::root().join("deploy/image/root.sh"))?;
    let directory = default_cache()?.join(format!("image-root-{suite}-{}", &sha256(&recipe)[..12]));
    if !directory.join("root.tar").exists() {
        println!("making the image's root of {suite} in {}", directory.display());
        fill(&directory, |directory| {
            fetch_root(&suite, &directory.join("root.tar"))
        })
        .context("make the image's root")?;
    }
    Ok(directory.join("root.tar"))
}

/// Packages are never newer than this, so one date serves whatever the sources' is: a root does not change with a commit.
const ROOT_DATE: &str = "1";

fn fetch_root(suite: &str, to: &Path) -> Result<()> {
    let script = shell::root().join("deploy/image/root.sh");
    let status = Command::new(&script)
        .arg(suite)
        .env("SOURCE_DATE_EPOCH", ROOT_DATE)
        .stdin(Stdio::null())
        .stdout(fs::File::create(to)?)
        .status()
        .with_context(|| format!("cannot start {}", script.display()))?;
    ensure!(status.success(), "{}: {status}", script.display());
    ensure!(fs::metadata(to)?.len() > 1 << 20, "the image's root is empty");
    Ok(())
}
