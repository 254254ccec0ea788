//! Runs programs under a kernel that has IPVS.

use anyhow::Result;

use crate::shell;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// The command to run in the machine (default: the tests that need it)
    #[arg(last = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let script = shell::root().join("tests/vm/run");
    shell::run(std::process::Command::new(script).args(&args.command))
}
