//! All tests, least powerful first. What cannot run fails; nothing skips itself.

use anyhow::{Result, bail};

use crate::{fuzz, packages, shell, vm};

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

pub(crate) fn run(args: &Args) -> Result<()> {
    prepare()?;
    shell::run(
        shell::cargo()
            .args(["test", "--workspace", "--no-fail-fast", "--"])
            .args(&args.rest),
    )?;
    if args.rest.is_empty() {
        fuzz::run(&fuzz::Args::short())?;
    }
    if !args.no_vm {
        vm::run(&vm::Args::default())?;
    }
    Ok(())
}

pub(crate) fn netns(args: &NetnsArgs) -> Result<()> {
    prepare()?;
    shell::run(
        shell::cargo()
            .args(["test", "--package", "ferry-netns", "--"])
            .args(&args.rest),
    )
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
