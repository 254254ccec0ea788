//! From a [`Command`] to the code that does it.

use std::process::ExitCode;

use super::Command;
use crate::{commands, daemon};

/// Does what was asked and returns the exit status.
pub fn dispatch(command: Command) -> ExitCode {
    let outcome = match command {
        Command::Daemon(settings, action) => return daemon_status(daemon::run(*settings, action)),
        Command::Plan(plan) => commands::plan(plan),
        Command::Trace(trace) => commands::trace(trace),
        Command::Status(status) => commands::status(status),
        Command::Demo(demo) => commands::demo(demo),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// kube-proxy's last words.
fn daemon_status(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    let error = one_line(&error);
    tracing::error!(err = error, "Error running ProxyServer");
    tracing::error!(err = error, "command failed");
    ExitCode::FAILURE
}

/// An error with its causes; many say what caused them in their own words, which are not said again.
fn one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |line, cause| match cause.to_string() {
            cause if line.is_empty() => cause,
            cause if line.ends_with(&cause) => line,
            cause => format!("{line}: {cause}"),
        })
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
