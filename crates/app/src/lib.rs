//! The application: reads the command line and the configuration, wires sources, model and backends together.
//! It may touch everything; it decides nothing about forwarding.
//! What always holds: configuration is checked whole before anything else happens.

mod bounded;
pub mod bundle;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod compare;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod facts;
pub mod flows;
pub mod gates;
pub mod history;
pub mod logging;
pub mod metrics;
pub mod modes;
pub mod servers;
pub mod status;
pub mod sync;
pub mod watch;
pub mod web;

use std::ffi::OsString;
use std::process::ExitCode;

/// The Kubernetes release whose kube-proxy we stand in for.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// Runs one invocation of the program, whatever it asks for, and returns its exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ferry_host::process::return_large_buffers();
    cli::run(args)
}
