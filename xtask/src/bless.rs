//! Golden files are compared by tests, and rewritten by the same tests when asked to.

use anyhow::Result;

use crate::shell;

/// Tests that keep golden files rewrite them when they see `FERRY_BLESS`; insta has its own variable.
pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo();
    command.args(["test", "--workspace", "--no-fail-fast", "--", "golden"]);
    shell::run(command.env("FERRY_BLESS", "1").env("INSTA_UPDATE", "always"))?;
    shell::run(
        std::process::Command::new("git")
            .current_dir(shell::root())
            .args(["status", "--short"]),
    )
}
