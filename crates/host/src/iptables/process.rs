//! Running a program: input written, output read, a time limit kept. A run with little input needs no thread: its
//! input fits into a pipe, its output goes to memory, and its error output ends when it does.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::fcntl_setpipe_size;

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

/// What a pipe holds by default, and what anybody may ask for.
const PIPE: usize = 64 << 10;
const LARGE_PIPE: usize = 1 << 20;

const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

pub(super) fn run(
    command: &mut Command,
    input: &[&str],
    limit: Duration,
    attend: &mut impl Attend,
) -> Result<Ran, Trouble> {
    let start = Instant::now();
    let output = memfd_create("output", MemfdFlags::CLOEXEC).map_err(|error| Trouble::Io(error.into()))?;
    let mut output = File::from(output);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(output.try_clone().map_err(Trouble::Io)?)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Trouble::Io)?;
    let pid = child.id();
    attend.started(pid);
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let large = input.iter().map(|piece| piece.len()).sum::<usize>() > PIPE;
    let (ended, said) = thread::scope(|scope| {
        if large {
            scope.spawn(move || feed(stdin, input));
        } else {
            feed(stdin, input);
        }
        let mut said = Vec::new();
        let ended = listen(stderr, &mut said, || {
            attend.waiting(pid, start.elapsed());
            start.elapsed() < limit
        });
        if !ended {
            // Ends the feeding too.
            let _ = child.kill();
        }
        (ended, said)
    });
    let status = finish(&mut child, !ended).map_err(Trouble::Io)?;
    if !ended {
        return Err(Trouble::Timeout);
    }
    Ok(Ran {
        status,
        stdout: whole(&mut output).map_err(Trouble::Io)?,
        stderr: String::from_utf8_lossy(&said).into_owned(),
    })
}

/// A program that ends early closes its input; its status then says why.
fn feed(stdin: Option<ChildStdin>, input: &[&str]) {
    let Some(mut stdin) = stdin else { return };
    if input.iter().map(|piece| piece.len()).sum::<usize>() > PIPE {
        // Fewer and longer turns for both sides; what a pipe has by default works too.
        let _ = fcntl_setpipe_size(&stdin, LARGE_PIPE);
    }
    let _ = input
        .iter()
        .try_for_each(|piece| stdin.write_all(piece.as_bytes()));
}

/// Reads until the other side closes; `false` if `go_on`, asked every now and then, said no before that.
fn listen(stderr: Option<ChildStderr>, said: &mut Vec<u8>, mut go_on: impl FnMut() -> bool) -> bool {
    let Some(mut stderr) = stderr else { return true };
    let mut buffer = [0; 4096];
    loop {
        let ready = poll(&mut [PollFd::new(&stderr, PollFlags::IN)], Some(&LOOK_EVERY));
        if matches!(ready, Ok(0) | Err(rustix::io::Errno::INTR)) {
            if !go_on() {
                return false;
            }
            continue;
        }
        match stderr.read(&mut buffer) {
            Ok(0) => return true,
            Ok(read) => said.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What was read before an error is still worth showing.
            Err(_) => return true,
        }
    }
}

fn whole(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
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
            &[&input],
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
        let result = run(sleep.arg("600"), &[], Duration::from_millis(300), &mut Unattended);
        assert!(matches!(result, Err(Trouble::Timeout)));
    }

    #[test]
    fn a_program_that_does_not_read_its_input_keeps_its_status() {
        let input = "x".repeat(4 << 20);
        let ran = run(
            &mut Command::new("false"),
            &[&input],
            Duration::from_secs(60),
            &mut Unattended,
        )
        .unwrap();
        assert_eq!(ran.status.code(), Some(1));
    }
}
