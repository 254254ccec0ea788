//! Running a program: input written, output read, limits of time and memory kept. A run with little input needs no
//! thread: its input fits into a pipe, its output goes to memory, and its error output is read while it runs.
//! Always holds: a run ends, by itself or by force; no program that was started here outlives [`end_children`].

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// What a program left behind.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// The beginning of what it said.
    pub stderr: String,
}

/// How a run can end badly before there is a status.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it did not end in time")]
    Timeout,
    #[error("this process is about to end")]
    Ending,
}

impl From<rustix::io::Errno> for RunError {
    fn from(error: rustix::io::Errno) -> Self {
        RunError::Io(error.into())
    }
}

/// What a run may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub time: Duration,
    /// Bytes of output; writing more fails.
    pub output: u64,
}

/// Looks after a running program.
pub trait Attend {
    /// It runs and has not been given any input yet.
    fn started(&mut self, _pid: u32) {}
    /// It still runs, after this long.
    fn waiting(&mut self, _pid: u32, _elapsed: Duration) {}
}

/// Nobody looks.
#[derive(Debug)]
pub struct Unattended;
impl Attend for Unattended {}

/// What a pipe holds by default, and what anybody may ask for.
const PIPE: usize = 64 << 10;
const LARGE_PIPE: usize = 1 << 20;
/// How much of a program's error output is kept; the rest is read and dropped.
const MAX_STDERR: usize = 64 << 10;

const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// The programs that run for this process.
static CHILDREN: Children = Children(Mutex::new(Running {
    ending: false,
    groups: Vec::new(),
}));

/// Ends every program that runs for this process, and lets no other start: to be called when the process is to end.
/// Whoever waits for one of them gets an error at once.
pub fn end_children() {
    CHILDREN.end();
}

/// Runs a program to its end.
pub fn run(
    command: &mut Command,
    input: &[&str],
    limits: Limits,
    attend: &mut impl Attend,
) -> Result<Ran, RunError> {
    CHILDREN.run(command, input, limits, attend)
}

#[derive(Debug)]
struct Children(Mutex<Running>);

#[derive(Debug)]
struct Running {
    ending: bool,
    /// Each program leads a process group, so that what it starts itself ends with it.
    groups: Vec<Pid>,
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let mut running = self.lock();
        running.ending = true;
        for group in &running.groups {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }

    fn run(
        &self,
        command: &mut Command,
        input: &[&str],
        limits: Limits,
        attend: &mut impl Attend,
    ) -> Result<Ran, RunError> {
        let start = Instant::now();
        let mut output = bounded_file(limits.output)?;
        command
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(Stdio::piped());
        let mut program = Program::start(command, self)?;
        let pid = program.child.id();
        attend.started(pid);
        let (stdin, stderr) = (program.child.stdin.take(), program.child.stderr.take());
        let large = input.iter().map(|piece| piece.len()).sum::<usize>() > PIPE;
        let mut said = Vec::new();
        let ended = thread::scope(|scope| {
            if large {
                scope.spawn(move || feed(stdin, input));
            } else {
                feed(stdin, input);
            }
            let ended = listen(stderr, program.pidfd.as_ref(), &mut said, || {
                attend.waiting(pid, start.elapsed());
                start.elapsed() < limits.time
            });
            if !ended {
                // Ends the feeding too.
                program.kill();
            }
            ended
        });
        let status = program.finish()?;
        if !ended {
            return Err(RunError::Timeout);
        }
        if self.lock().ending {
            return Err(RunError::Ending);
        }
        Ok(Ran {
            status,
            stdout: written(&mut output)?,
            stderr: String::from_utf8_lossy(&said).into_owned(),
        })
    }
}

/// A running program, which ends with this value.
struct Program<'a> {
    child: Child,
    /// Says that it ended; old kernels cannot.
    pidfd: Option<OwnedFd>,
    group: Option<Pid>,
    among: &'a Children,
}

impl<'a> Program<'a> {
    fn start(command: &mut Command, among: &'a Children) -> Result<Self, RunError> {
        if among.lock().ending {
            return Err(RunError::Ending);
        }
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_raw(child.id().cast_signed());
        let pidfd = group.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let program = Program {
            child,
            pidfd,
            group,
            among,
        };
        let mut running = among.lock();
        running.groups.extend(group);
        if running.ending {
            drop(running);
            return Err(RunError::Ending);
        }
        drop(running);
        Ok(program)
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn finish(mut self) -> io::Result<ExitStatus> {
        self.wait()
    }

    /// Its number may be another's once it has been waited for, so it is forgotten first.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(group) = self.group.take() {
            self.among.lock().groups.retain(|running| *running != group);
        }
        self.child.wait()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.kill();
            let _ = self.wait();
        }
    }
}

/// A file in memory that can hold so many bytes: it is as large as that, takes nothing before it is written, and
/// cannot grow.
fn bounded_file(size: u64) -> Result<File, RunError> {
    let file = memfd_create("output", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::GROW)?;
    Ok(File::from(file))
}

/// What a program wrote: it shares the place in the file with us.
fn written(file: &mut File) -> io::Result<Vec<u8>> {
    let length = file.stream_position()?;
    file.rewind()?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
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

/// Reads what a program says until it has ended; `false` if `go_on`, asked all the time, said no before that.
fn listen(
    mut stderr: Option<ChildStderr>,
    pidfd: Option<&OwnedFd>,
    said: &mut Vec<u8>,
    mut go_on: impl FnMut() -> bool,
) -> bool {
    let mut buffer = [0; 4096];
    loop {
        let mut waiting = Vec::with_capacity(2);
        waiting.extend(stderr.as_ref().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        waiting.extend(pidfd.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        if waiting.is_empty() {
            return true;
        }
        let ready = poll(&mut waiting, Some(&POLL_INTERVAL)).unwrap_or(0);
        let is_said = stderr.is_some() && waiting.first().is_some_and(|fd| !fd.revents().is_empty());
        drop(waiting);
        if ready > 0 && !is_said {
            return true;
        }
        match stderr
            .as_mut()
            .filter(|_| is_said)
            .map(|from| from.read(&mut buffer))
        {
            Some(Ok(0)) => stderr = None,
            Some(Ok(read)) => {
                let kept = read.min(MAX_STDERR.saturating_sub(said.len()));
                said.extend_from_slice(&buffer[..kept]);
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // What was read before an error is still worth showing.
            Some(Err(_)) => stderr = None,
            None => {}
        }
        if !go_on() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(60),
        output: 64 << 20,
    };

    fn shell(script: &str, limits: Limits) -> Result<Ran, RunError> {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), &[], limits, &mut Unattended)
    }

    #[test]
    fn large_input_and_output_do_not_block_each_other() {
        let input = "x".repeat(4 << 20);
        let ran = run(&mut Command::new("cat"), &[&input], LIMITS, &mut Unattended).unwrap();
        assert!(ran.status.success());
        assert_eq!(ran.stdout.len(), input.len());
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_what_it_started() {
        let start = Instant::now();
        let limits = Limits {
            time: Duration::from_millis(300),
            ..LIMITS
        };
        // The shell waits for a child of its own, which has its input and error output too.
        let hanging = "sleep 600; true";
        assert!(matches!(shell(hanging, limits), Err(RunError::Timeout)));
        // Silent, with nothing left to read: only its end would say that it ended.
        assert!(matches!(
            shell("exec 2>&-; exec sleep 600", limits),
            Err(RunError::Timeout)
        ));
        let input = "x".repeat(4 << 20);
        let mut command = Command::new("sh");
        let ran = run(command.args(["-c", hanging]), &[&input], limits, &mut Unattended);
        assert!(matches!(ran, Err(RunError::Timeout)));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_does_not_read_its_input_keeps_its_status() {
        let input = "x".repeat(4 << 20);
        let ran = run(&mut Command::new("false"), &[&input], LIMITS, &mut Unattended).unwrap();
        assert_eq!(ran.status.code(), Some(1));
    }

    #[test]
    fn of_a_flood_of_words_the_beginning_is_kept_and_the_time_limit_holds() {
        let limits = Limits {
            time: Duration::from_millis(500),
            ..LIMITS
        };
        let start = Instant::now();
        assert!(matches!(
            shell("exec yes words >&2", limits),
            Err(RunError::Timeout)
        ));
        assert!(start.elapsed() < Duration::from_secs(30));
        let ran = shell("echo first >&2; head -c 4000000 /dev/zero >&2; exit 3", LIMITS).unwrap();
        assert_eq!((ran.status.code(), ran.stderr.len()), (Some(3), MAX_STDERR));
        assert!(ran.stderr.starts_with("first\n"));
    }

    #[test]
    fn output_is_bounded() {
        let limits = Limits {
            output: 1 << 20,
            ..LIMITS
        };
        let ran = shell("exec head -c 4000000 /dev/zero", limits).unwrap();
        assert!(!ran.status.success(), "{ran:?}");
        assert_eq!(ran.stdout.len(), 1 << 20);
        assert_eq!(shell("printf abc", limits).unwrap().stdout, b"abc");
    }

    #[test]
    fn all_programs_end_at_once_when_told_and_no_other_starts() {
        let children = Children(Mutex::new(Running {
            ending: false,
            groups: Vec::new(),
        }));
        let hang = || children.run(Command::new("sleep").arg("600"), &[], LIMITS, &mut Unattended);
        let start = Instant::now();
        thread::scope(|scope| {
            let hanging: Vec<_> = (0..3).map(|_| scope.spawn(hang)).collect();
            while children.lock().groups.len() < 3 {
                assert!(start.elapsed() < Duration::from_secs(30));
                thread::sleep(Duration::from_millis(1));
            }
            children.end();
            for run in hanging {
                assert!(matches!(run.join().unwrap(), Err(RunError::Ending)));
            }
        });
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(matches!(hang(), Err(RunError::Ending)));
        assert!(children.lock().groups.is_empty());
    }
}
