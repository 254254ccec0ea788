//! The tier itself: build the tests that need another kernel, run each test program in one guest, one verdict.

use super::engine::{self, Machine};
use crate::shell;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

/// The package that holds the tier's tests; its targets are left out of a plain `cargo test`.
const PACKAGE: &str = "ferry-vm-tests";

pub(super) fn run(machine: &Machine, filter: Option<&str>) -> Result<u8> {
    let root = shell::root();
    shell::run(shell::cargo().args(["build", "--package", "ferry-app"]))?;
    let tests = test_programs()?;
    ensure!(!tests.is_empty(), "{PACKAGE} has no test programs");
    eprintln!(
        "vm: {} under kernel {}",
        plural(tests.len(), "test program"),
        machine.kernel.version
    );
    let begun = Instant::now();
    let mut words = vec!["sh".to_owned(), "-c".to_owned()];
    let line: Vec<String> = tests
        .iter()
        .map(|test| format!("'{}' --test-threads=1 \"$@\"", test.display()))
        .collect();
    words.push(format!(
        "rc=0; {}; exit $rc",
        line.iter()
            .map(|l| format!("{l} || rc=1"))
            .collect::<Vec<_>>()
            .join("; ")
    ));
    words.push("sh".to_owned());
    words.extend(filter.map(str::to_owned));
    let code = engine::run(machine, &root, &words)?;
    let verdict = if code == 0 { "passed" } else { "FAILED" };
    println!(
        "vm: {verdict} under kernel {} in {} s",
        machine.kernel.version,
        begun.elapsed().as_secs()
    );
    Ok(code)
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The test programs of the package, built, in the order cargo names them.
fn test_programs() -> Result<Vec<PathBuf>> {
    let out = shell::cargo()
        .args([
            "test",
            "--no-run",
            "-p",
            PACKAGE,
            "--test",
            "*",
            "--message-format=json-render-diagnostics",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(out.status.success(), "the tests of {PACKAGE} do not build");
    let mut programs = Vec::new();
    for line in out
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let message: serde_json::Value =
            serde_json::from_slice(line).context("cargo's output is not JSON")?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        if let (true, Some(path)) = (is_test, message["executable"].as_str()) {
            programs.push(PathBuf::from(path));
        }
    }
    programs.sort();
    Ok(programs)
}
