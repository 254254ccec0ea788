//! What can be said about the tree without running it.

use anyhow::Result;

use crate::{licences, shell};

pub(crate) fn run() -> Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    licences::check()
}
