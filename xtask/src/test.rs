//! All tests, least powerful first. What cannot run fails; nothing skips itself.

use anyhow::{Result, bail};

use crate::{check, deploy, fuzz, monitoring, packages, shell, soak, vm};

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

/// A tier that failed, and the command that runs it alone.
struct Failed {
    tier: &'static str,
    alone: String,
}

/// What the CI runs. What the machine can do is found out and said before anything else.
pub(crate) fn ci() -> Result<()> {
    let engine = prepare(&Args::default())?;
    check::run()?;
    tiers(&Args::default(), engine)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let engine = prepare(args)?;
    tiers(args, engine)
}

/// Runs every tier, also after one has failed.
fn tiers(args: &Args, engine: Option<vm::Engine>) -> Result<()> {
    build()?;
    let mut failed = Vec::new();
    let mut tier = |tier: &'static str, alone: &str, result: Result<()>| {
        if let Err(e) = result {
            eprintln!("{tier}: {e:#}");
            let alone = alone.to_owned();
            failed.push(Failed { tier, alone });
        }
    };
    let most = [
        "test",
        "--workspace",
        "--exclude",
        "ferry-netns",
        "--exclude",
        "ferry-deploy",
        "--no-fail-fast",
        "--",
    ];
    tier(
        "unit, golden, kernel and api tests",
        "cargo test --workspace --exclude ferry-netns --exclude ferry-deploy --no-fail-fast",
        shell::run(shell::cargo().args(most).args(&args.rest)),
    );
    tier("packet table", "cargo xtask netns", packets(&args.rest));
    if args.rest.is_empty() {
        let endurance = soak::Args::short();
        tier("endurance", &endurance.command_line(), soak::run(&endurance));
        let short = fuzz::Args::short();
        tier("fuzz targets", &short.command_line(), fuzz::run(&short));
        tier(
            "manifests, chart and package",
            "cargo xtask deploy",
            deploy::run(),
        );
        tier(
            "dashboards and alerts",
            "cargo xtask monitoring",
            monitoring::run(&monitoring::Args::default()),
        );
    }
    if let Some(engine) = engine {
        let args = vm::Args::with(engine);
        tier("virtual machine", &args.command_line(), vm::run(&args));
    }
    verdict(&failed)
}

/// The last line of the output.
fn verdict(failed: &[Failed]) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = failed
        .iter()
        .map(|Failed { tier, alone }| format!("{tier} (alone: {alone})"))
        .collect();
    bail!("failed: {}", told.join("; "));
}

pub(crate) fn netns(args: &NetnsArgs) -> Result<()> {
    tools()?;
    build()?;
    packets(&args.rest)
}

/// `--workspace` so that dependencies are built with the same features as for all other tests.
fn packets(rest: &[String]) -> Result<()> {
    let tests = [
        "test",
        "--workspace",
        "--test",
        "packets",
        "--test",
        "situations",
        "--test",
        "faults",
        "--no-fail-fast",
    ];
    shell::run(shell::cargo().args(tests).args(["--", PACKET_THREADS]).args(rest))
}

/// Tools, and the engine of the virtual machine, unless that is left out.
fn prepare(args: &Args) -> Result<Option<vm::Engine>> {
    tools()?;
    (!args.no_vm)
        .then(|| vm::choose(&vm::Args::default()))
        .transpose()
}

fn tools() -> Result<()> {
    packages::ensure()?;
    let id = shell::output(std::process::Command::new("id").arg("-u"))?;
    if id.trim_ascii() != b"0" {
        bail!("the tests make network namespaces and need root");
    }
    Ok(())
}

/// The `ferry` program that tests start; of the whole workspace for the same reason as the packets.
pub(crate) fn build() -> Result<()> {
    shell::run(shell::cargo().args(["build", "--workspace", "--bin", "ferry"]))
}

#[cfg(test)]
mod tests {
    use super::{Failed, verdict};

    #[test]
    fn a_failed_tier_is_told_with_the_way_to_run_it_alone() {
        let failed = |tier, alone: &str| Failed {
            tier,
            alone: alone.to_owned(),
        };
        let told = verdict(&[
            failed("packet table", "cargo xtask netns"),
            failed("virtual machine", "cargo xtask vm --engine qemu"),
        ]);
        assert_eq!(
            told.unwrap_err().to_string(),
            "failed: packet table (alone: cargo xtask netns); \
             virtual machine (alone: cargo xtask vm --engine qemu)"
        );
        assert!(verdict(&[]).is_ok());
    }
}
