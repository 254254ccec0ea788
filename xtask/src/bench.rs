//! Figures, from release builds.

use std::process::Command;

use anyhow::Result;

use crate::{packages, shell};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Passed on to the bench program; `-- --help` tells what it takes (sizes, modes, `--peer KUBE-PROXY`).
    /// `path` first is short for `--only path`: what packets meet. `userspace` first runs the relay beside haproxy and nginx instead; both have to be installed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let [first, rest @ ..] = args.rest.as_slice()
        && first == "userspace"
    {
        return userspace(rest);
    }
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
    let mut bench = Command::new(program);
    match args.rest.as_slice() {
        [first, rest @ ..] if first == "path" => bench.args(["--only", "path"]).args(rest),
        rest => bench.args(rest),
    };
    shell::run(&mut bench)
}

/// The relay of userspace mode beside other relays.
fn userspace(rest: &[String]) -> Result<()> {
    let program = ["--release", "--package", "ferry-bench", "--bin", "relay_bench"];
    shell::run(shell::cargo().arg("run").args(program).arg("--").args(rest))
}
