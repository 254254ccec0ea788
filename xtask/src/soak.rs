//! Endurance.

use std::process::Command;

use anyhow::Result;

use crate::{packages, shell, test};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Passed on; `-- --help` tells what it takes (`--seconds`, `--modes`, `--seed`, `--out`)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

impl Args {
    /// What the CI has time for: a minute in each of three modes, at once.
    pub(crate) fn short() -> Args {
        Args {
            rest: vec!["--seconds".to_owned(), "60".to_owned()],
        }
    }

    pub(crate) fn command_line(&self) -> String {
        format!("cargo xtask soak {}", self.rest.join(" "))
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    packages::ensure()?;
    test::build()?;
    shell::run(shell::cargo().args(["build", "--workspace", "--bin", "soak"]))?;
    shell::run(Command::new(shell::target_dir().join("debug/soak")).args(&args.rest))
}
