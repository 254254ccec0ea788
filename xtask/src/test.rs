//! All tests, least powerful first. What cannot run fails; nothing skips itself.

use anyhow::{Result, bail};

use crate::{fuzz, monitoring, packages, shell, vm};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Leave out the virtual machine (the only home of ipvs mode)
    #[arg(long)]
    no_vm: bool,
    /// Passed on to every test program, e.g. a filter
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct NetnsArgs {
    /// Passed on to the test program, e.g. a filter
    #[arg(last = true)]
    rest: Vec<String>,
}

/// The packet table waits more than it works, so its cases share the cores.
const PACKET_THREADS: &str = "--test-threads=6";

/// Runs every tier, also after one has failed.
pub(crate) fn run(args: &Args) -> Result<()> {
    prepare()?;
    let mut failed = Vec::new();
    let mut tier = |name: &str, result: Result<()>| {
        if let Err(e) = result {
            eprintln!("{name}: {e:#}");
            failed.push(name.to_owned());
        }
    };
    let most = [
        "test",
        "--workspace",
        "--exclude",
        "ferry-netns",
        "--no-fail-fast",
        "--",
    ];
    tier(
        "unit, golden, kernel and api tests",
        shell::run(shell::cargo().args(most).args(&args.rest)),
    );
    tier("packet table", packets(&args.rest));
    if args.rest.is_empty() {
        tier("fuzz targets", fuzz::run(&fuzz::Args::short()));
        tier(
            "dashboards and alerts",
            monitoring::run(&monitoring::Args::default()),
        );
    }
    if !args.no_vm {
        tier("virtual machine", vm::run(&vm::Args::default()));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

pub(crate) fn netns(args: &NetnsArgs) -> Result<()> {
    prepare()?;
    packets(&args.rest)
}

/// `--workspace` so that dependencies are built with the same features as for all other tests.
fn packets(rest: &[String]) -> Result<()> {
    let command = ["test", "--workspace", "--test", "packets", "--", PACKET_THREADS];
    shell::run(shell::cargo().args(command).args(rest))
}

/// Tools, and the `ferry` program that tests start.
fn prepare() -> Result<()> {
    packages::ensure()?;
    let id = shell::output(std::process::Command::new("id").arg("-u"))?;
    if id.trim_ascii() != b"0" {
        bail!("the tests make network namespaces and need root");
    }
    shell::run(shell::cargo().args(["build", "--package", "ferry-app"]))
}
