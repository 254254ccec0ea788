//! The command line: what was typed, and the configuration it names, become a [`Command`].
//! It reads the configuration file, starts logging, and touches the standard streams.
//! What always holds: kube-proxy's own command line is accepted unchanged and is the daemon.

mod completions;
mod dispatch;
pub mod flags;
mod help;
mod parse;
mod version;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

pub use dispatch::dispatch;
pub use ferry_model::Protocol;
pub use parse::parse;
pub(crate) use version::reported as reported_version;

use crate::config::Settings;
use crate::modes::Mode;

/// What the daemon is to do. Everything else was dealt with before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Serve until told to stop.
    Run,
    /// The privileged part of the set-up, then exit.
    InitOnly,
    /// Remove every rule of every mode, then exit.
    Cleanup,
}

/// How a command prints its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

/// Whose decisions `plan` and `trace` show.
#[derive(Debug)]
pub enum Origin {
    /// Those of the running daemon, asked over its status socket.
    Running(PathBuf),
    /// Those of a daemon that would be started with these settings.
    Objects(Box<Settings>),
}

/// `ferry plan`
#[derive(Debug)]
pub struct Plan {
    pub origin: Origin,
    pub output: Output,
}

/// `ferry trace`
#[derive(Debug)]
pub struct Trace {
    pub origin: Origin,
    pub from: IpAddr,
    pub to: SocketAddr,
    pub protocol: Protocol,
    pub output: Output,
}

/// `ferry status`
#[derive(Debug)]
pub struct Status {
    pub socket: PathBuf,
    pub output: Output,
}

/// `ferry demo`
#[derive(Debug)]
pub struct Demo {
    /// The mode to show.
    pub mode: Mode,
    /// Leave the namespaces and the proxy running.
    pub keep: bool,
}

/// One invocation of the program.
#[derive(Debug)]
pub enum Command {
    Daemon(Box<Settings>, Action),
    Plan(Plan),
    Trace(Trace),
    Status(Status),
    Demo(Demo),
}

/// Why there is nothing to run: a text to print, if any, and the exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Stop {
    stdout: String,
    stderr: String,
    status: u8,
}

impl Stop {
    /// Everything asked for is this text.
    fn text(stdout: String) -> Self {
        Self {
            stdout,
            stderr: String::new(),
            status: 0,
        }
    }

    /// The command line was not understood.
    fn refused(stderr: String) -> Self {
        Self {
            stdout: String::new(),
            stderr,
            status: 1,
        }
    }

    /// It failed, and the log says why.
    fn failed() -> Self {
        Self::refused(String::new())
    }

    /// Prints the text and returns the exit status.
    pub fn report(&self) -> ExitCode {
        use std::io::Write as _;
        // A reader that went away early (`ferry --help | head`) is no failure.
        let _ = std::io::stdout().write_all(self.stdout.as_bytes());
        let _ = std::io::stderr().write_all(self.stderr.as_bytes());
        ExitCode::from(self.status)
    }
}
