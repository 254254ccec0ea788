//! Figures, from release builds.

use std::process::Command;

use anyhow::Result;

use crate::{packages, shell};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Passed on to the bench program; `-- --help` tells what it takes (sizes, modes, `--peer KUBE-PROXY`)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    packages::ensure()?;
    shell::run(shell::cargo().args([
        "build",
        "--release",
        "--package",
        "ferry-app",
        "--package",
        "ferry-bench",
    ]))?;
    let program = shell::target_dir().join("release/ferry-bench");
    shell::run(Command::new(program).args(&args.rest))
}
