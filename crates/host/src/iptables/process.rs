//! Running a program: input written, output read, a time limit kept.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What a program left behind.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// How a run can end badly before there is a status.
#[derive(Debug)]
pub(super) enum Trouble {
    Io(io::Error),
    Timeout,
}

/// Looks after a running program.
pub(super) trait Attend {
    /// It runs and has not been given any input yet.
    fn started(&mut self, _pid: u32) {}
    /// It still runs, after this long.
    fn waiting(&mut self, _pid: u32, _elapsed: Duration) {}
}

/// Nobody looks.
#[derive(Debug)]
pub(super) struct Unattended;
impl Attend for Unattended {}

const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) fn run(
    command: &mut Command,
    input: &str,
    limit: Duration,
    attend: &mut impl Attend,
) -> Result<Ran, Trouble> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Trouble::Io)?;
    let pid = child.id();
    attend.started(pid);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let (ended, wait) = mpsc::channel::<()>();
        scope.spawn(move || {
            // A program that ends early closes its input; its status then says why.
            let _ = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
        });
        let stderr = scope.spawn(move || read(stderr));
        let stdout = scope.spawn(move || {
            let bytes = read(stdout);
            drop(ended);
            bytes
        });
        let timed_out = loop {
            match wait.recv_timeout(LOOK_EVERY) {
                Err(mpsc::RecvTimeoutError::Timeout) if start.elapsed() >= limit => break true,
                Err(mpsc::RecvTimeoutError::Timeout) => attend.waiting(pid, start.elapsed()),
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => break false,
            }
        };
        let status = finish(&mut child, timed_out).map_err(Trouble::Io)?;
        let stdout = stdout.join().unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
        match timed_out {
            true => Err(Trouble::Timeout),
            false => Ok(Ran {
                status,
                stdout,
                stderr,
            }),
        }
    })
}

fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error is still worth showing.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

fn finish(child: &mut Child, kill: bool) -> io::Result<ExitStatus> {
    if kill {
        child.kill()?;
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_input_and_output_do_not_block_each_other() {
        let input = "x".repeat(4 << 20);
        let ran = run(
            &mut Command::new("cat"),
            &input,
            Duration::from_secs(60),
            &mut Unattended,
        )
        .unwrap();
        assert!(ran.status.success());
        assert_eq!(ran.stdout.len(), input.len());
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let mut sleep = Command::new("sleep");
        let result = run(sleep.arg("600"), "", Duration::from_millis(300), &mut Unattended);
        assert!(matches!(result, Err(Trouble::Timeout)));
    }

    #[test]
    fn a_program_that_does_not_read_its_input_keeps_its_status() {
        let input = "x".repeat(4 << 20);
        let ran = run(
            &mut Command::new("false"),
            &input,
            Duration::from_secs(60),
            &mut Unattended,
        )
        .unwrap();
        assert_eq!(ran.status.code(), Some(1));
    }
}
