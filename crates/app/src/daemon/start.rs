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
use tokio::runtime::Runtime;

use super::ending::{self, Ending, Interrupts};
use super::servers::{OnFailure, Which, keep_open};
use super::source::{self, Following};
use super::{addresses, collectors, flows, node, options, platform, reload, takeover, tuning};
use crate::config::{NodeFacts, Settings, sanity};
use crate::events::Event;
use crate::metrics::Metrics;
use crate::modes::{Conntrack, Mode};
use crate::servers::health::{self, Health};
use crate::servers::metrics::{self, Exposed};
use crate::servers::service_health::ServiceHealth;
use crate::status;
use crate::sync::{Board, Loop, Parts, Signal, Stop, Sweeper};

/// What exists once the Node is known and the platform is good.
struct Prepared {
    settings: Settings,
    name: Arc<str>,
    runtime: Runtime,
    mailbox: Arc<Mailbox>,
    signal: Arc<Signal>,
    interrupts: Arc<Interrupts>,
    metrics: Arc<Metrics>,
    following: Following,
    families: BTreeSet<Family>,
}

/// `--init-only`: everything that needs privileges, then nothing more.
pub(super) fn prepare_only(settings: Settings) -> anyhow::Result<()> {
    let Ok(prepared) = prepare(settings)? else {
        return Ok(());
    };
    let mut planner = Planner::new(options::plan_options(
        &prepared.settings,
        Arc::clone(&prepared.name),
    ));
    planner.update([Fact::Node(prepared.mailbox.node().node)]);
    open_backend(&prepared)?.prepare(planner.plan())?;
    takeover::clean_up_other_modes(&prepared.settings);
    tracing::info!("System initialized and --init-only specified");
    Ok(())
}

/// Serves until told to stop.
pub(super) fn serve(settings: Settings) -> anyhow::Result<Ending> {
    let started = SystemTime::now();
    process::reap_stand_in();
    process::raise_open_files_limit();
    let prepared = match prepare(settings)? {
        Ok(prepared) => prepared,
        Err(Stop::Reconfigure(_)) => return Ok(Ending::Again(None)),
        Err(stop) => return Ok(Ending::Over(stop)),
    };
    let mut backend = open_backend(&prepared)?;
    if let Err(error) = process::set_oom_score_adj(prepared.settings.oom_score_adj) {
        tracing::debug!(err = %error, "Failed to apply OOM score");
    }
    let Prepared {
        settings,
        name,
        runtime,
        mailbox,
        signal,
        interrupts,
        metrics,
        following,
        families,
    } = prepared;
    let health = Arc::new(Health::new(settings.sync_period * 2));
    let recorder = following.recorder(&metrics, runtime.handle());
    let board = Arc::new(Board::default());
    let on_failure = OnFailure {
        hard: settings.bind_address_hard_fail,
        recorder: recorder.clone(),
        signal: Arc::clone(&signal),
    };
    open_health(
        &settings,
        &name,
        &health,
        &metrics,
        &mailbox,
        &on_failure,
        &runtime,
    );
    open_metrics(&settings, &name, started, &metrics, &on_failure, &runtime);
    collectors::register(&settings, &metrics, &mailbox, &families, &following, &signal);
    status::serve(
        &settings,
        &name,
        started,
        &mailbox,
        &board,
        &signal,
        runtime.handle(),
    );
    reload::watch(&settings, &name, &metrics, &recorder, &signal)?;
    addresses::watch(Arc::clone(&signal))?;
    recorder.record(Event::starting(&name));
    if let Some(announcement) = settings.mode.announcement {
        recorder.record(announcement(&name));
    }
    if let Some(mixed) = backend.mixed() {
        recorder.record(Event::mixed_iptables(&name, mixed));
    }
    let mode = settings.mode;
    let sweeper = sweeper(mode, &metrics)?;
    let parts = Parts {
        mailbox,
        signal,
        planner: Planner::new(options::plan_options(&settings, Arc::clone(&name))),
        backend,
        families,
        rhythm: options::rhythm(&settings),
        health: Arc::clone(&health),
        metrics,
        recorder: recorder.clone(),
        service_health: ServiceHealth::new(runtime.handle().clone(), health, recorder, name),
        sweeper,
        board,
        after_first_sync: Some(Box::new(move || takeover::clean_up_aside(settings))),
    };
    let (stop, backend) = Loop::new(parts).run();
    drop(following);
    // A successor wants the ports of our servers.
    runtime.shutdown_background();
    Ok(ending::finish(stop, mode, &*backend, &interrupts))
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

fn open_health(
    settings: &Settings,
    name: &Arc<str>,
    health: &Arc<Health>,
    metrics: &Arc<Metrics>,
    mailbox: &Arc<Mailbox>,
    on_failure: &OnFailure,
    runtime: &Runtime,
) {
    let Some(address) = settings.healthz_bind_address else {
        return;
    };
    let (health, metrics, mailbox) = (Arc::clone(health), Arc::clone(metrics), Arc::clone(mailbox));
    let handle = runtime.handle().clone();
    let open = move || {
        let mailbox = Arc::clone(&mailbox);
        let eligible = move || mailbox.node().node.is_some_and(|node| node.eligible);
        health::start(
            address,
            Arc::clone(&health),
            eligible,
            Arc::clone(&metrics),
            &handle,
        )
    };
    keep_open(
        Which::Health,
        address,
        Arc::clone(name),
        on_failure.clone(),
        runtime.handle(),
        open,
    );
}

fn open_metrics(
    settings: &Settings,
    name: &Arc<str>,
    started: SystemTime,
    metrics: &Arc<Metrics>,
    on_failure: &OnFailure,
    runtime: &Runtime,
) {
    let Some(address) = settings.metrics_bind_address else {
        return;
    };
    let exposed = Arc::new(Exposed {
        mode: settings.mode,
        metrics: Arc::clone(metrics),
        configz: settings.configz.clone(),
        flags: settings.flagz.clone(),
        flagz: settings.gates.enabled("ComponentFlagz"),
        statusz: settings.gates.enabled("ComponentStatusz"),
        profiling: settings.profiling,
        started,
        set_verbosity: Box::new(crate::logging::set_verbosity),
    });
    let handle = runtime.handle().clone();
    let open = move || metrics::start(address, Arc::clone(&exposed), &handle);
    keep_open(
        Which::Metrics,
        address,
        Arc::clone(name),
        on_failure.clone(),
        runtime.handle(),
        open,
    );
}

/// Steps 3 to 13 of the start: name, client, Node, kernel parameters, checks. `Err(stop)` inside if told to stop.
fn prepare(settings: Settings) -> anyhow::Result<Result<Prepared, Stop>> {
    let name = node::name(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("io")
        .enable_all()
        .build()
        .context("starting the runtime")?;
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
    let following = source::follow(&settings, &name, &mailbox, &runtime)?;
    let node = match node::wait(&settings, &name, &mailbox, &signal)? {
        Ok(node) => node,
        Err(node::Interrupted) => {
            return Ok(Err(signal.stopping().unwrap_or(Stop::Signal("unknown"))));
        }
    };
    tune(&settings)?;
    let families = check_platform(&settings, node.as_deref())?;
    Ok(Ok(Prepared {
        settings,
        name,
        runtime,
        mailbox,
        signal,
        interrupts,
        metrics,
        following,
        families,
    }))
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
    let facts = NodeFacts {
        primary: identity.primary,
        dual_stack: families.len() == 2,
        pod_cidrs,
        node_port_cidrs: &node::node_port_cidrs(settings, node),
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
