//! The command line: the daemon's flags, and the commands beside it.
//! It reads the configuration file, starts logging, and touches the standard streams.
//! What always holds: kube-proxy's own command line is accepted unchanged and is the daemon. A flag is known in
//! `flags/table.rs`, a command in `commands.rs`, and nowhere else.

mod commands;
mod completions;
pub mod flags;
mod help;
mod invocation;
mod parse;
mod version;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

pub use invocation::{Invocation, Origin, invalid};
pub(crate) use version::reported as reported_version;

use crate::config::values::Named;

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

impl Named for Output {
    const ALL: &'static [Self] = &[Self::Text, Self::Json];

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// A command line that was not understood, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Runs one invocation of the program, its name first, and returns the exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let error = match parse::run(args) {
        Ok(status) => return status,
        Err(error) => error,
    };
    let prefix = if error.is::<Refused>() { "Error" } else { "ferry" };
    eprintln!("{prefix}: {}", one_line(&error));
    ExitCode::FAILURE
}

/// An error with its causes; many say what caused them in their own words, which are not said again.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |line, cause| match cause.to_string() {
            cause if line.is_empty() => cause,
            cause if line.ends_with(&cause) => line,
            cause => format!("{line}: {cause}"),
        })
}

/// Prints a text. A reader that went away early (`ferry --help | head`) is no failure.
pub(crate) fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("ferry: cannot write to the standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use ferry_backends::{Error, Retry, Step};

    #[test]
    fn a_cause_is_told_once() {
        let refused = std::io::Error::from_raw_os_error(1);
        let error = Error::new(Step::Open, "open nf_tables", Retry::Futile, refused);
        let error = anyhow::Error::from(error).context("unable to create proxier");
        assert_eq!(
            super::one_line(&error),
            "unable to create proxier: open nf_tables: Operation not permitted (os error 1)"
        );
        let error = anyhow::anyhow!("deep").context("middle").context("outer");
        assert_eq!(super::one_line(&error), "outer: middle: deep");
    }
}
