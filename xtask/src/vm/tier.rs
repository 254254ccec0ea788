//! The tier itself: build the programs that need another kernel, run them in one guest, one verdict.

use super::engine::{self, Machine};
use crate::shell;
use anyhow::Result;
use std::time::Instant;

/// The package whose program holds the tier's cases.
const PACKAGE: &str = "ferry-vm-tests";

/// Many hosts in one process need many files. Programs are started dozens of times, so they are read through the share once and then run from memory. Waits are made
/// for real machines; an emulated one gets more patience.
const START: &str =
    "ulimit -n 65536; cp \"$0\" \"$1\" /tmp/ && shift && FERRY_LAB_SLOW=4 exec /tmp/ferry-vm-tests \"$@\"";

pub(super) fn run(machine: &Machine, filter: Option<&str>) -> Result<u8> {
    shell::run(shell::cargo().args(["build", "--package", PACKAGE, "--package", "ferry-app"]))?;
    let built = |name: &str| {
        shell::target_dir()
            .join("debug")
            .join(name)
            .to_string_lossy()
            .into_owned()
    };
    let mut command: Vec<String> = ["sh", "-c", START, &built("ferry"), &built(PACKAGE)]
        .map(str::to_owned)
        .into();
    command.extend(filter.map(str::to_owned));
    let begun = Instant::now();
    let code = engine::run(machine, &shell::root(), &command)?;
    let verdict = if code == 0 { "passed" } else { "FAILED" };
    println!(
        "vm: {verdict} under kernel {} in {} s",
        machine.kernel.version,
        begun.elapsed().as_secs()
    );
    Ok(code)
}
