//! The way from settings to a running loop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use ferry_backends::{Alarm, Backend};
use ferry_host::modules::Modules;
use ferry_host::process;
use ferry_host::sysctl::Sysctls;
use ferry_model::{Event as Fact, Family, Node, Planner};
use ferry_sources::{Kind, Mailbox};
use tokio::runtime::{Handle, Runtime};

use super::ending::{self, Ending, Interrupts};
use super::servers::Servers;
use super::source::{self, Following};
use super::{Halt, addresses, collectors, flows, node, options, platform, reload, takeover, tuning};
use crate::config::{NodeFacts, Settings, sanity};
use crate::events::{Event, Recorder};
use crate::history::History;
use crate::metrics::Metrics;
use crate::modes::{Conntrack, Mode};
use crate::servers::health::Health;
use crate::servers::service_health::ServiceHealth;
use crate::status;
use crate::sync::{Board, HeldPorts, Loop, Parts, Signal, Stop, Sweeper};

/// What exists once the Node is known and the platform is good.
struct Prepared {
    settings: Settings,
    name: Arc<str>,
    mailbox: Arc<Mailbox>,
    signal: Arc<Signal>,
    interrupts: Arc<Interrupts>,
    metrics: Arc<Metrics>,
    following: Following,
    families: BTreeSet<Family>,
}

/// What is left of a loop that has ended.
struct Served {
    stop: Stop,
    mode: Mode,
    backend: Box<dyn Backend>,
    interrupts: Arc<Interrupts>,
}

/// `--init-only`: everything that needs privileges, then nothing more.
pub(super) fn prepare_only(settings: Settings) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let prepared = prepare(settings, &runtime).and_then(|prepared| {
        let mut planner = Planner::new(options::plan_options(
            &prepared.settings,
            Arc::clone(&prepared.name),
        ));
        planner.update([Fact::Node(prepared.mailbox.node().node)]);
        open_backend(&prepared)?.prepare(planner.plan())?;
        takeover::clean_up_other_modes(&prepared.settings);
        tracing::info!("System initialized and --init-only specified");
        Ok(())
    });
    runtime.shutdown_background();
    match prepared {
        Ok(()) | Err(Halt::Stopped(_)) => Ok(()),
        Err(Halt::Failed(error)) => Err(error),
    }
}

/// Serves until told to stop.
pub(super) fn serve(settings: Settings) -> anyhow::Result<Ending> {
    let started = SystemTime::now();
    process::reap_stand_in();
    process::raise_open_files_limit();
    let runtime = runtime()?;
    let served = prepare(settings, &runtime).and_then(|prepared| run(prepared, started, runtime.handle()));
    // Before connections are waited for: a successor wants the ports of our servers. Nothing that hangs is waited for.
    runtime.shutdown_background();
    match served {
        Ok(served) => Ok(ending::finish(
            served.stop,
            served.mode,
            &*served.backend,
            &served.interrupts,
        )),
        Err(Halt::Stopped(Stop::Reconfigure(_))) => Ok(Ending::Again(None)),
        Err(Halt::Stopped(stop)) => Ok(Ending::Over(stop)),
        Err(Halt::Failed(error)) => Err(error),
    }
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("io")
        .enable_all()
        .build()
        .context("starting the runtime")
}

/// Gets to know the Node, sets kernel parameters and checks what the kernel and its programs can do.
fn prepare(settings: Settings, runtime: &Runtime) -> Result<Prepared, Halt> {
    let name = node::name(&settings)?;
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    let signal = Arc::new(Signal::new(Arc::clone(&mailbox)));
    let interrupts = Interrupts::listen(&signal)?;
    // Only now: who reads this may send a signal.
    tracing::info!(
        version = settings.reported_version,
        ferry = env!("CARGO_PKG_VERSION"),
        "Version info"
    );
    let metrics = Arc::new(Metrics::new(settings.mode, collectors::build(&settings)));
    let following = source::follow(&settings, &name, &mailbox, runtime)?;
    let node = node::wait(&settings, &name, &mailbox, &signal)?;
    tune(&settings)?;
    let families = check_platform(&settings, node.as_deref())?;
    Ok(Prepared {
        settings,
        name,
        mailbox,
        signal,
        interrupts,
        metrics,
        following,
        families,
    })
}

/// Opens the backend and the servers, watches what may change, and runs the loop.
fn run(prepared: Prepared, started: SystemTime, runtime: &Handle) -> Result<Served, Halt> {
    let mut backend = open_backend(&prepared)?;
    let Prepared {
        settings,
        name,
        mailbox,
        signal,
        interrupts,
        metrics,
        following,
        families,
    } = prepared;
    if let Err(error) = process::set_oom_score_adj(settings.oom_score_adj) {
        tracing::debug!(err = %error, "Failed to apply OOM score");
    }
    let health = Arc::new(Health::new(settings.sync_period * 2));
    let recorder = following.recorder(&metrics, runtime);
    let board = Arc::new(Board::default());
    let servers = Servers {
        settings: &settings,
        node: &name,
        runtime,
        mailbox: &mailbox,
        health: &health,
        metrics: &metrics,
        recorder: &recorder,
        signal: &signal,
    };
    servers.open(started);
    collectors::register(&settings, &metrics, &mailbox, &families, &following, &signal);
    let history = Arc::new(History::default());
    let sources = status::Sources {
        mailbox: &mailbox,
        board: &board,
        history: &history,
        signal: &signal,
    };
    status::serve(&settings, &name, started, &sources, runtime);
    reload::watch(&settings, &name, &metrics, &recorder, &signal)?;
    addresses::watch(Arc::clone(&signal))?;
    announce(settings.mode, &name, backend.mixed(), &recorder);
    let mode = settings.mode;
    // Where traffic goes through sockets of ours, they hold the ports.
    let holds_ports = settings.hold_node_ports && !mode.relays;
    if mode.relays {
        interrupts.relaying();
    }
    let parts = Parts {
        mailbox,
        signal,
        planner: Planner::new(options::plan_options(&settings, Arc::clone(&name))),
        backend,
        families,
        rhythm: options::rhythm(&settings),
        health: Arc::clone(&health),
        sweeper: sweeper(mode, &metrics)?,
        held_ports: holds_ports.then(|| HeldPorts::new(recorder.clone())),
        metrics,
        recorder: recorder.clone(),
        service_health: ServiceHealth::new(runtime.clone(), health, recorder, name),
        board,
        history,
        after_first_sync: Some(Box::new(move || takeover::clean_up_aside(settings))),
    };
    let (stop, backend) = Loop::new(parts).run();
    Ok(Served {
        stop,
        mode,
        backend,
        interrupts,
    })
}

/// Tells the cluster that the daemon serves, and what is remarkable about that.
fn announce(mode: Mode, node: &Arc<str>, mixed_iptables: Option<String>, recorder: &Recorder) {
    recorder.record(Event::starting(node));
    if let Some(announcement) = mode.announcement {
        recorder.record(announcement(node));
    }
    if let Some(mixed) = mixed_iptables {
        recorder.record(Event::mixed_iptables(node, mixed));
    }
}

fn open_backend(prepared: &Prepared) -> anyhow::Result<Box<dyn Backend>> {
    let signal = Arc::clone(&prepared.signal);
    let alarm: Alarm = Arc::new(move || signal.alarm());
    (prepared.settings.mode.open)(&prepared.settings, alarm).context("unable to create proxier")
}

/// Who removes stale flows, where there can be any.
fn sweeper(mode: Mode, metrics: &Arc<Metrics>) -> anyhow::Result<Option<Sweeper>> {
    let table = match mode.conntrack {
        Conntrack::Untouched => return Ok(None),
        Conntrack::SweptButEndpoints => flows::Table::without_endpoints(),
        Conntrack::Swept => flows::Table::default(),
    };
    Ok(Some(Sweeper::start(table, Arc::clone(metrics))?))
}

fn tune(settings: &Settings) -> anyhow::Result<()> {
    if settings.mode.conntrack == Conntrack::Untouched {
        return Ok(());
    }
    // The parameters are there once the module is; nothing may have used it yet on a node that has just booted.
    if let Err(missing) = Modules::default().ensure("nf_conntrack") {
        tracing::warn!(err = %missing, "Can't load connection tracking");
    }
    tuning::tune_conntrack(&Sysctls::default(), &settings.conntrack, process::online_cpus())
        .context("could not set conntrack parameters from kube-proxy configuration")
}

fn check_platform(settings: &Settings, node: Option<&Node>) -> anyhow::Result<BTreeSet<Family>> {
    let identity = node::identity(settings, node);
    let families = platform::families(
        identity.primary,
        settings.mode.supports,
        &platform::Kernel::default(),
    )?;
    let pod_cidrs = node.map(|node| node.pod_cidrs.as_slice()).unwrap_or_default();
    let options = options::plan_options(settings, node::name(settings)?);
    let networks = Family::BOTH.map(|family| options.node_port_networks(node, family));
    let facts = NodeFacts {
        primary: identity.primary,
        dual_stack: families.len() == 2,
        pod_cidrs,
        node_port_cidrs: &networks.concat(),
    };
    let found = sanity(settings, facts);
    for doubt in found.doubts {
        tracing::error!(
            err = doubt,
            "Kube-proxy configuration may be incomplete or incorrect"
        );
    }
    match found.fatal {
        Some(reason) => anyhow::bail!(reason),
        None => Ok(families),
    }
}
