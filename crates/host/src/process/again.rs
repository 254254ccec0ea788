//! Starting this program over, with the same arguments: in place of this process, or beside it.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions};

/// Tells a process that it stands in for its parent, which will come back.
const STANDS_IN: &str = "FERRY_STANDS_IN";
/// Names the process that stood in while this one was replaced.
const STAND_IN: &str = "FERRY_STAND_IN";

/// Starts this program over with the same process id; returns only if that failed. Files that are not inherited are
/// closed, the kernel's state stays as it is. A stand-in goes on; the new program waits for its end.
pub fn replace(stand_in: Option<StandIn>) -> io::Error {
    let mut command = again();
    if let Some(StandIn(child)) = stand_in {
        command.env(STAND_IN, child.id().to_string());
    }
    command.exec()
}

/// Starts this program a second time, to stand in for this process.
pub fn stand_in() -> io::Result<StandIn> {
    again().env(STANDS_IN, "1").spawn().map(StandIn)
}

/// Whether this process stands in for its parent.
pub fn is_stand_in() -> bool {
    std::env::var_os(STANDS_IN).is_some()
}

/// Lets the kernel forget the process that stood in for this one, once it has ended.
pub fn reap_stand_in() {
    let id = std::env::var(STAND_IN).ok().and_then(|id| id.parse().ok());
    let Some(pid) = id.and_then(Pid::from_raw) else {
        return;
    };
    // Without the thread a dead process stays in the list of processes: untidy, no more.
    let _ = std::thread::Builder::new()
        .name("reap".into())
        .spawn(move || rustix::process::waitpid(Some(pid), WaitOptions::empty()));
}

/// A second process of this program that does the work of the first.
#[derive(Debug)]
pub struct StandIn(Child);

impl StandIn {
    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        // A process that has ended and was waited for has no number any more.
        if !self.has_ended()
            && let Some(pid) = Pid::from_raw(self.0.id().cast_signed())
        {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

fn again() -> Command {
    let mut args = std::env::args_os();
    let name = args.next();
    // A binary that was replaced while running is taken in its new form, one that was removed in its old.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    if let Some(name) = name {
        command.arg0(name);
    }
    command.args(args).env_remove(STAND_IN);
    command
}
