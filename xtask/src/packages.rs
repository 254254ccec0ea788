//! Programs that tests use, and the Debian packages that bring them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// (a file of the package that tests need, the package)
const NEEDED: [(&str, &str); 16] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables-nft-restore", "iptables"),
    ("ipset", "ipset"),
    ("ipvsadm", "ipvsadm"),
    ("conntrack", "conntrack"),
    ("sysctl", "procps"),
    ("curl", "curl"),
    ("kubectl", "kubernetes-client"),
    ("c++", "g++"),
    ("git", "git"),
    ("strace", "strace"),
    ("xz", "xz-utils"),
    ("openssl", "openssl"),
    ("script", "bsdutils"),
    ("chromium", "chromium"),
];

const PLACES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Makes sure that every program is there; asks apt-get for what is not.
pub(crate) fn ensure() -> Result<()> {
    ensure_also(&NEEDED)
}

/// The same for programs that one tier alone needs.
pub(crate) fn ensure_also(needed: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !present(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)
}

/// Asks apt-get for packages.
pub(crate) fn install(missing: &[&str]) -> Result<()> {
    println!(
        "the tests need Debian packages that are not installed: {}",
        missing.join(" ")
    );
    if !present("apt-get") {
        bail!(
            "install {} and run this again (there is no apt-get here)",
            missing.join(", ")
        );
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .arg("--quiet=2")
            .args(args);
        shell::run(&mut command)
    };
    apt(&["update"])?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(missing);
    apt(&install).context("cannot install what the tests need (root is required)")
}

fn present(program: &str) -> bool {
    PLACES.iter().any(|dir| Path::new(dir).join(program).exists())
}
