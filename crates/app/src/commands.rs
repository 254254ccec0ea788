//! The commands beside the daemon: they show, and change nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferry_model::{Event, Planner};
use ferry_sources::{Kind, Mailbox};

use crate::cli::{self, Origin, Output};
use crate::config::Settings;
use crate::status::{self, PlanReport, TraceReport, TraceRequest};
use crate::{daemon, demo};

/// How long a source may take to tell everything once.
const PATIENCE: Duration = Duration::from_secs(60);

/// `ferry plan`
pub fn plan(command: cli::Plan) -> anyhow::Result<()> {
    let report = match &command.origin {
        Origin::Running(socket) => status::ask_plan(socket)?,
        Origin::Objects(settings) => {
            let (planner, skipped) = load(settings)?;
            PlanReport::of(planner.plan(), settings.mode, skipped)
        }
    };
    print(command.output, &report)
}

/// `ferry trace`
pub fn trace(command: cli::Trace) -> anyhow::Result<()> {
    let protocol = match command.protocol {
        cli::Protocol::Tcp => "tcp",
        cli::Protocol::Udp => "udp",
        cli::Protocol::Sctp => "sctp",
    };
    let request = TraceRequest {
        from: command.from,
        to: command.to,
        protocol: protocol.into(),
    };
    let report = match &command.origin {
        Origin::Running(socket) => status::ask_trace(socket, request)?,
        Origin::Objects(settings) => {
            let (planner, _) = load(settings)?;
            TraceReport::of(planner.plan(), &request).context("no such protocol")?
        }
    };
    print(command.output, &report)
}

/// `ferry status`
pub fn status(command: cli::Status) -> anyhow::Result<()> {
    print(command.output, &status::ask_status(&command.socket)?)
}

/// `ferry demo`
pub fn demo(command: cli::Demo) -> anyhow::Result<()> {
    demo::run(&command)
}

fn print<T: std::fmt::Display + serde::Serialize>(output: Output, report: &T) -> anyhow::Result<()> {
    use std::io::Write;
    let text = match output {
        Output::Text => report.to_string(),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("writing the result"),
    }
}

/// Lists everything once and plans it, as a daemon with these settings on this host would.
fn load(settings: &Settings) -> anyhow::Result<(Planner, Vec<String>)> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let name = daemon::node_name(settings)?;
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    let _following = daemon::follow(settings, &name, &mailbox, &runtime)?;
    let until = Instant::now() + PATIENCE;
    while !mailbox.is_open() {
        if !mailbox.wait(Some(until)) {
            let missing: Vec<&str> = mailbox.missing().into_iter().map(Kind::as_str).collect();
            let problems: Vec<String> = status::problems(&mailbox);
            bail!(
                "no complete list of {} within {PATIENCE:?}: {}",
                missing.join(", "),
                problems.join("; ")
            );
        }
    }
    let mail = mailbox.take();
    let mut planner = Planner::new(daemon::plan_options(settings, name));
    let host = daemon::host_addresses()?;
    planner.update(mail.events.into_iter().chain([Event::Host(Arc::new(host))]));
    let skipped = mailbox.skipped().into_iter().chain(planner.plan().skipped());
    let skipped = skipped.map(|skipped| skipped.to_string());
    let skipped = skipped.chain(status::problems(&mailbox)).collect();
    runtime.shutdown_background();
    Ok((planner, skipped))
}
