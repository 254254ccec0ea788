//! Starting over keeps the process id and the arguments. Its own harness, since the process under test is replaced.

use std::path::Path;
use std::process::Command;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().position(|arg| arg == "child") {
        Some(at) => child(&args[at + 1..]),
        None => parent(),
    }
}

/// The first time: leaves a mark and starts over. The second time: tells what it sees.
fn child(args: &[String]) {
    let mark = Path::new(&args[0]);
    if mark.exists() {
        println!("{} {}", std::process::id(), args[1..].join(","));
        return;
    }
    if std::fs::write(mark, "").is_ok() {
        eprintln!("cannot start over: {}", ferry_host::process::replace(None));
    }
    std::process::exit(3);
}

fn parent() {
    let outcome = run();
    println!("test starting over keeps the process id and the arguments ... {outcome:?}");
    if outcome.is_err() {
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(exe);
    command
        .arg("child")
        .arg(dir.path().join("mark"))
        .args(["a", "b c"])
        .stdout(std::process::Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let id = child.id();
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let expected = format!("{id} a,b c");
    if output.status.success() && said == expected {
        Ok(())
    } else {
        Err(format!("{said:?}, not {expected:?}"))
    }
}
