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
            eprintln!("ferry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// kube-proxy's last words.
fn daemon_status(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    tracing::error!(err = format!("{error:#}"), "Error running ProxyServer");
    tracing::error!(err = format!("{error:#}"), "command failed");
    ExitCode::FAILURE
}
