//! The Debian package: the program, its unit, its configuration, its manual and completions.
//!
//! May touch: the build directory. Always holds: the same inputs give the same bytes, and what is generated (manual,
//! completions) comes from the program that is packed.

mod man;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{program, sbom, shell};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Build the package from a release build, or from the program named.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pack this program instead of a release build
    #[arg(long)]
    program: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = program::named_or_built(args.program.as_ref())?;
    let package = debian(&program)?;
    println!("{}", package.display());
    Ok(())
}

/// Packs the program; the path of the package.
pub(crate) fn debian(program: &Path) -> Result<PathBuf> {
    let out = shell::target_dir().join("package");
    fs::create_dir_all(&out)?;
    let work = tempfile::Builder::new().prefix(".packing-").tempdir_in(&out)?;
    let tree = work.path().join("tree");
    let source = shell::root().join("deploy/debian");
    let put = |from: &Path, to: &str, mode: &str| -> Result<()> {
        let to = tree.join(to);
        shell::output(
            Command::new("install")
                .args(["-D", "--mode", mode])
                .arg(from)
                .arg(&to),
        )
        .map(drop)
    };
    put(program, "usr/bin/ferry", "755")?;
    shell::output(Command::new("strip").arg(tree.join("usr/bin/ferry")))?;
    put(
        &source.join("ferry.service"),
        "lib/systemd/system/ferry.service",
        "644",
    )?;
    put(
        &source.join("ferry.tmpfiles"),
        "usr/lib/tmpfiles.d/ferry.conf",
        "644",
    )?;
    put(&source.join("config.yaml"), "etc/ferry/config.yaml", "644")?;
    put(
        &shell::root().join("LICENSE"),
        "usr/share/doc/ferry/copyright",
        "644",
    )?;
    let parts = work.path().join("sbom");
    fs::write(&parts, sbom::of_program()?)?;
    put(&parts, "usr/share/doc/ferry/sbom.spdx.json", "644")?;
    for example in ["node.yaml", "web.yaml"] {
        let from = shell::root().join("examples/manifests").join(example);
        put(&from, &format!("usr/share/doc/ferry/examples/{example}"), "644")?;
    }
    fs::create_dir_all(tree.join("etc/ferry/services"))?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&source.join(script), &format!("DEBIAN/{script}"), "755")?;
    }
    manual(program, &tree)?;
    completions(program, &tree)?;
    fs::write(tree.join("DEBIAN/conffiles"), "/etc/ferry/config.yaml\n")?;
    fs::write(tree.join("DEBIAN/control"), control(&tree)?)?;
    shell::output(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&tree))?;
    // under another name until it is whole: a run that is killed leaves no package
    let unfinished = work.path().join("package");
    let mut build = Command::new("dpkg-deb");
    build
        .env("SOURCE_DATE_EPOCH", program::source_date()?.to_string())
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&tree)
        .arg(&unfinished);
    shell::output(&mut build)?;
    let package = out.join(format!("ferry_{VERSION}_{}.deb", program::architecture()?));
    fs::rename(unfinished, &package)?;
    Ok(package)
}

fn control(tree: &Path) -> Result<String> {
    Ok(format!(
        "Package: ferry\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: Ferry maintainers <maintainers@ferry.invalid>\n\
         Installed-Size: {}\nSection: net\nPriority: optional\nHomepage: https://github.com/ferry-proxy/ferry\n\
         Depends: libc6 (>= 2.34), libgcc-s1 (>= 4.2)\nRecommends: iptables, kmod\n\
         Description: service proxy for Linux nodes, a drop-in for kube-proxy\n \
         Carries the traffic of Kubernetes Services, or of services described in files, to their\n \
         endpoints: by nftables, iptables or ipvs rules, or relaying connections itself.\n",
        program::architecture()?,
        kibibytes(tree)?
    ))
}

/// As Debian counts it, whatever file system the tree is on: one for a directory, what it takes for a file.
fn kibibytes(path: &Path) -> Result<u64> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Ok(found.len().div_ceil(1024));
    }
    let mut sum = 1;
    for entry in fs::read_dir(path)? {
        sum += kibibytes(&entry?.path())?;
    }
    Ok(sum)
}

/// `ferry(8)`, and a page for each command.
fn manual(program: &Path, tree: &Path) -> Result<()> {
    let help = ask(program, &["help"])?;
    let (what, _) = help
        .split_once('.')
        .context("the help does not say what this is")?;
    let what = what.trim_start_matches("Ferry ");
    write_page(tree, "ferry", 8, &man::page(title("ferry", 8, what), &help))?;
    // the page of `help` would be this one
    for command in man::commands(&help).into_iter().filter(|c| c.name != "help") {
        let name = format!("ferry-{}", command.name);
        let help = ask(program, &["help", command.name])?;
        write_page(
            tree,
            &name,
            1,
            &man::page(title(&name, 1, command.summary), &help),
        )?;
    }
    Ok(())
}

fn title<'a>(name: &'a str, section: u8, summary: &'a str) -> man::Title<'a> {
    man::Title {
        name,
        section,
        summary,
        version: VERSION,
    }
}

fn write_page(tree: &Path, name: &str, section: u8, page: &str) -> Result<()> {
    let dir = tree.join(format!("usr/share/man/man{section}"));
    fs::create_dir_all(&dir)?;
    let file = dir.join(format!("{name}.{section}"));
    fs::write(&file, page)?;
    shell::output(
        Command::new("gzip")
            .args(["--no-name", "--best", "--force"])
            .arg(&file),
    )
    .map(drop)
}

fn completions(program: &Path, tree: &Path) -> Result<()> {
    for (shell, to) in [
        ("bash", "usr/share/bash-completion/completions/ferry"),
        ("zsh", "usr/share/zsh/vendor-completions/_ferry"),
        ("fish", "usr/share/fish/vendor_completions.d/ferry.fish"),
    ] {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("a file without a directory")?)?;
        fs::write(to, ask(program, &["completions", shell])?)?;
    }
    Ok(())
}

fn ask(program: &Path, args: &[&str]) -> Result<String> {
    Ok(String::from_utf8(shell::output(
        Command::new(program).args(args),
    )?)?)
}
