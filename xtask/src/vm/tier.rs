//! The tier itself: build the programs that need another kernel, run them in guests, one verdict.

use super::engine::{self, Machine};
use crate::shell;
use anyhow::{Context, Result, ensure};
use std::time::Instant;

/// The package whose program holds the tier's cases.
const PACKAGE: &str = "ferry-vm-tests";

/// Many hosts in one process need many files. Programs are started dozens of times, so they are read through the share
/// once and then run from memory. Waits are made for real machines; an emulated one gets more patience.
const START: &str =
    "ulimit -n 65536; cp \"$0\" \"$1\" /tmp/ && shift && FERRY_LAB_SLOW=4 exec /tmp/ferry-vm-tests \"$@\"";

/// A guest, and what the tier's program is told to run in it.
#[derive(Debug)]
pub(super) struct Share {
    machine: Machine,
    args: Vec<String>,
}

/// A guest with its share of all cases; its output is marked with the share's name.
pub(super) fn share(machine: Machine, name: &str) -> Share {
    Share {
        machine: Machine {
            label: Some(name.to_owned()),
            ..machine
        },
        args: vec!["--share".to_owned(), name.to_owned()],
    }
}

/// A guest with every case whose name contains the filter.
pub(super) fn named(machine: Machine, filter: Option<&str>) -> Share {
    Share {
        machine,
        args: filter.map(str::to_owned).into_iter().collect(),
    }
}

/// Runs all guests at once: each keeps one processor busy.
pub(super) fn run(shares: Vec<Share>) -> Result<()> {
    shell::run(shell::cargo().args(["build", "--package", PACKAGE, "--package", "ferry-app"]))?;
    let results: Vec<Result<bool>> = std::thread::scope(|scope| {
        let guests: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(|| run_one(share)))
            .collect();
        let join = |guest: std::thread::ScopedJoinHandle<'_, Result<bool>>| {
            guest
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        guests.into_iter().map(join).collect()
    });
    let mut passed = true;
    for result in results {
        passed &= result?;
    }
    ensure!(passed, "the VM tier failed");
    Ok(())
}

fn run_one(share: &Share) -> Result<bool> {
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
    command.extend(share.args.iter().cloned());
    let begun = Instant::now();
    let version = &share.machine.kernel.version;
    let code = engine::run(&share.machine, &shell::root(), &command).with_context(|| version.clone())?;
    let verdict = if code == 0 { "passed" } else { "FAILED" };
    println!(
        "vm: {verdict} under kernel {version} in {} s",
        begun.elapsed().as_secs()
    );
    Ok(code == 0)
}
