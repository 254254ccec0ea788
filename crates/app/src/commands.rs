//! The commands beside the daemon: they show, and change nothing.

mod compare;
mod explain;
mod show;

pub use compare::compare;
pub use explain::explain;
pub use show::{bundle, flows, web};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use ferry_model::{Event, Planner, Protocol};
use ferry_sources::{Kind, Mailbox};

use crate::cli::{Invocation, Origin, Output, Refused, invalid};
use crate::config::Settings;
use crate::config::values::{GoDuration, parse_ip, quote, split_host_port};
use crate::demo::Afterwards;
use crate::facts::host_of;
use crate::modes::Mode;
use crate::status::{
    self, AddressSource, HistoryRequest, PlanReport, RulesReport, TraceReport, TraceRequest,
};
use crate::{daemon, demo, doctor};

/// How long a source may take to tell everything once.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// `ferry plan`
pub fn plan(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output = invocation.output()?;
    let rules = invocation.typed.extra.rules;
    match (decided(invocation.origin()?)?, rules) {
        (Decided::Running(socket), false) => print(output, &status::ask_plan(&socket)?),
        (Decided::Running(socket), true) => print(output, &status::ask_rules(&socket)?),
        (Decided::Here { settings, loaded }, rules) => {
            let (plan, from) = (loaded.planner.plan(), loaded.addresses_from);
            if rules {
                return print(output, &RulesReport::of(plan, &settings, from));
            }
            let report = PlanReport::of(plan, settings.mode, from, loaded.skipped);
            print(output, &report)
        }
    }
}

/// `ferry trace`
pub fn trace(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output = invocation.output()?;
    let request = packet(&invocation)?;
    let report = match decided(invocation.origin()?)? {
        Decided::Running(socket) => status::ask_trace(&socket, request)?,
        Decided::Here { loaded, .. } => TraceReport::of(loaded.planner.plan(), &request),
    };
    print(output, &report)
}

/// The packet that `--from` and `--to` describe.
fn packet(invocation: &Invocation) -> Result<TraceRequest, Refused> {
    let typed = &invocation.typed;
    let missing = ["from", "to"].iter().filter(|name| !typed.given.contains(name));
    let missing: Vec<String> = missing.map(|name| quote(name)).collect();
    if !missing.is_empty() {
        return Err(Refused(format!(
            "required flag(s) {} not set",
            missing.join(", ")
        )));
    }
    packet_of(&typed.extra.from, &typed.extra.to)
}

/// The packet between two places, as they are typed.
pub(crate) fn packet_of(from: &str, to: &str) -> Result<TraceRequest, Refused> {
    let wrong = |why: &str| invalid("--to", to, why);
    let from = parse_ip(from).ok_or_else(|| invalid("--from", from, "must be an IP address"))?;
    let (address, name) = to.split_once('/').unwrap_or((to, Protocol::Tcp.as_str()));
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|known| known.as_str().eq_ignore_ascii_case(name))
        .ok_or_else(|| wrong("the protocol must be tcp, udp or sctp"))?;
    let (host, port) = split_host_port(address).map_err(|why| wrong(&why))?;
    let ip = parse_ip(host).ok_or_else(|| wrong("must be IP:PORT or IP:PORT/PROTOCOL"))?;
    let port = port.parse().ok().filter(|port| *port > 0);
    let port: u16 = port.ok_or_else(|| wrong("the port must be 1 to 65535"))?;
    if ip.is_ipv4() != from.is_ipv4() {
        return Err(wrong("must be of the same IP family as --from"));
    }
    Ok(TraceRequest {
        from,
        to: SocketAddr::new(ip, port),
        protocol,
    })
}

/// `ferry status`
pub fn status(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output = invocation.output()?;
    if invocation.typed.extra.watch {
        crate::watch::run(&invocation.socket())?;
        return Ok(ExitCode::SUCCESS);
    }
    print(output, &status::ask_status(&invocation.socket())?)
}

/// `ferry history`
pub fn history(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let output = invocation.output()?;
    let since = invocation.typed.extra.since;
    let request = HistoryRequest {
        service: invocation.service()?,
        since_seconds: (since > GoDuration::ZERO).then(|| since.nanos() as f64 / 1e9),
    };
    print(output, &status::ask_history(&invocation.socket(), request)?)
}

/// `ferry diff`
pub fn diff(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output = invocation.output()?;
    let report = match status::ask_diff(&invocation.socket()) {
        Ok(report) => report,
        Err(error) => return Ok(cannot_tell(&error)),
    };
    print(output, &report)?;
    Ok(match report.agrees() {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::from(DIFFERENT),
        None => ExitCode::from(CANNOT_TELL),
    })
}

/// Exit codes of commands that compare, as diff(1) has them.
const DIFFERENT: u8 = 1;
const CANNOT_TELL: u8 = 2;

fn cannot_tell(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("ferry: {error}");
    ExitCode::from(CANNOT_TELL)
}

/// `ferry doctor`
pub fn doctor(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let output = invocation.output()?;
    let report = doctor::Report::of(&invocation.settings()?)?;
    let printed = print(output, &report)?;
    Ok(if report.is_good() {
        printed
    } else {
        ExitCode::FAILURE
    })
}

/// `ferry demo`
pub fn demo(invocation: Invocation) -> anyhow::Result<ExitCode> {
    const BY_DEFAULT: &str = "nftables";
    invocation.no_arguments()?;
    let typed = &invocation.typed;
    let name = if typed.config.mode.is_blank() {
        BY_DEFAULT
    } else {
        typed.config.mode.as_str()
    };
    let shown = Mode::ALL.iter().filter(|mode| mode.demo.is_some());
    let Some(mode) = shown.clone().find(|mode| mode.name == name) else {
        let names: Vec<&str> = shown.map(|mode| mode.name).collect();
        let why = format!("the demo shows one of {}", names.join(", "));
        return Err(invalid("--mode", name, &why).into());
    };
    let afterwards = if typed.extra.keep {
        Afterwards::Keep
    } else {
        Afterwards::CleanUp
    };
    demo::run(*mode, afterwards)?;
    Ok(ExitCode::SUCCESS)
}

fn print<T: std::fmt::Display + serde::Serialize>(output: Output, report: &T) -> anyhow::Result<ExitCode> {
    let text = match output {
        Output::Text => report.to_string(),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    Ok(crate::cli::print(&text))
}

/// Whose decisions are shown: the running daemon's, to be asked, or those that were made here.
enum Decided {
    Running(PathBuf),
    Here {
        settings: Box<Settings>,
        loaded: Box<Loaded>,
    },
}

/// Plans what files, a server or a bundle say; leaves the running daemon to be asked.
fn decided(origin: Origin) -> anyhow::Result<Decided> {
    Ok(match origin {
        Origin::Running(socket) => Decided::Running(socket),
        Origin::Objects(settings) => {
            let loaded = Box::new(load(&settings)?);
            Decided::Here { settings, loaded }
        }
        Origin::Bundle(path, mode) => {
            let facts = crate::bundle::facts(&path)?;
            let settings = Box::new(facts.settings(mode)?);
            let loaded = Box::new(Loaded {
                planner: facts.plan(&settings, AddressSource::Host)?,
                addresses_from: AddressSource::Host,
                skipped: facts.skipped,
            });
            Decided::Here { settings, loaded }
        }
    })
}

/// What a source told, planned.
struct Loaded {
    planner: Planner,
    addresses_from: AddressSource,
    /// What is not served, and why.
    skipped: Vec<String>,
}

/// Lists everything once and plans it, as a daemon with these settings on the node would. This may be another machine, so
/// the node's addresses are those of the Node object.
fn load(settings: &Settings) -> anyhow::Result<Loaded> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let name = daemon::node_name(settings)?;
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    let _following = daemon::follow(settings, &name, &mailbox, &runtime)?;
    let until = Instant::now() + LIST_TIMEOUT;
    while !mailbox.is_open() {
        if !mailbox.wait(Some(until)) {
            let missing: Vec<&str> = mailbox.missing().into_iter().map(Kind::as_str).collect();
            let problems: Vec<String> = status::problems(&mailbox);
            bail!(
                "no complete list of {} within {LIST_TIMEOUT:?}: {}",
                missing.join(", "),
                problems.join("; ")
            );
        }
    }
    let mail = mailbox.take();
    let mut planner = Planner::new(daemon::plan_options(settings, name));
    let node = mailbox.node().node;
    let addresses_from = if node.is_some() {
        AddressSource::NodeObject
    } else {
        AddressSource::Unknown
    };
    let host = host_of(&mail.events);
    planner.update(mail.events.into_iter().chain([Event::Host(Arc::new(host))]));
    let skipped = mailbox.skipped().into_iter().chain(planner.plan().skipped());
    let skipped = skipped.map(|skipped| skipped.to_string());
    let skipped = skipped.chain(status::problems(&mailbox)).collect();
    runtime.shutdown_background();
    Ok(Loaded {
        planner,
        addresses_from,
        skipped,
    })
}
