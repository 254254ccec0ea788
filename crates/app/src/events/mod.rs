//! Events for the API server (`events.k8s.io/v1`): what an operator sees with `kubectl events`.
//! May talk to the API server through the client it is given; without one, events are only logged.
//! Recording never blocks and never fails: what cannot be delivered is counted and forgotten.

mod book;
mod deliver;
mod reasons;

pub use deliver::{ApiSink, Delivered, Sink};
pub use reasons::{REASONS, Reason};

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_model::{Contest, ObjectRef, ServiceName, Skipped};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::metrics::Metrics;
use book::Book;
use deliver::Retries;

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// Our node.
    Node(Arc<str>),
    /// A Service.
    Service(ServiceName),
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub regarding: Regarding,
    /// How serious it is.
    pub severity: Severity,
    /// One word, for machines.
    pub reason: &'static str,
    /// What was being done.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

impl Event {
    fn of(reason: &Reason, regarding: Regarding, note: String) -> Self {
        Self {
            regarding,
            severity: reason.severity,
            reason: reason.name,
            action: reason.action,
            note,
        }
    }

    fn node(reason: &Reason, node: &Arc<str>, note: String) -> Self {
        Self::of(reason, Regarding::Node(Arc::clone(node)), note)
    }

    /// The daemon serves.
    pub fn starting(node: &Arc<str>) -> Self {
        Self::node(&reasons::STARTING, node, String::new())
    }

    /// ipvs mode is used.
    pub fn ipvs_deprecation(node: &Arc<str>) -> Self {
        let note = "The ipvs proxier is now deprecated and may be removed in a future release. \
                    Please use 'nftables' instead.";
        Self::node(&reasons::IPVS_DEPRECATION, node, note.to_owned())
    }

    /// The health server could not be opened, and must.
    pub fn healthz_failed(node: &Arc<str>, note: String) -> Self {
        Self::node(&reasons::HEALTHZ_FAILED, node, note)
    }

    /// The metrics server could not be opened, and must.
    pub fn metrics_failed(node: &Arc<str>, note: String) -> Self {
        Self::node(&reasons::METRICS_FAILED, node, note)
    }

    /// A service's health-check node port could not be opened.
    pub fn service_health_check_failed(service: &ServiceName, note: String) -> Self {
        let service = Regarding::Service(service.clone());
        Self::of(&reasons::SERVICE_HEALTH_CHECK_FAILED, service, note)
    }

    /// A port of a service could not be kept from processes on this node.
    pub fn port_taken(service: &ServiceName, note: String) -> Self {
        Self::of(&reasons::PORT_TAKEN, Regarding::Service(service.clone()), note)
    }

    /// An object, or a part of it, is not served.
    pub fn not_served(node: &Arc<str>, skipped: &Skipped) -> Self {
        let regarding = match &skipped.object {
            ObjectRef::Service(service) => Regarding::Service(service.clone()),
            ObjectRef::Other { .. } => Regarding::Node(Arc::clone(node)),
        };
        Self::of(&reasons::NOT_SERVED, regarding, skipped.to_string())
    }

    /// A frontend that two services ask for: the first event is for the one that goes without, the other for the one that
    /// has it.
    pub fn contested(contest: &Contest) -> [Self; 2] {
        let Contest {
            key,
            kind,
            loser,
            winner,
        } = contest;
        let lost = format!("{key} is not served as {kind} of {loser}: {winner} has it");
        let kept = format!("{key} stays with {winner}: {loser} asks for it too, as {kind}");
        [(loser, lost), (winner, kept)].map(|(port, note)| {
            let service = Regarding::Service(port.service.clone());
            Self::of(&reasons::CONTESTED, service, note)
        })
    }

    /// Somebody else changed our rules and they were put right.
    pub fn repaired(node: &Arc<str>, note: String) -> Self {
        Self::node(&reasons::REPAIRED, node, note)
    }

    /// Both variants of iptables hold rules.
    pub fn mixed_iptables(node: &Arc<str>, note: String) -> Self {
        Self::node(&reasons::MIXED_IPTABLES, node, note)
    }

    /// A changed configuration file is not valid and was not taken.
    pub fn config_refused(node: &Arc<str>, note: String) -> Self {
        Self::node(&reasons::CONFIG_REFUSED, node, note)
    }
}

/// Records events; cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Events waiting for delivery; more than these are lost.
const QUEUE: usize = 1000;
/// How often series are looked at.
const SERIES_INTERVAL: Duration = Duration::from_secs(60);

impl Recorder {
    /// Delivers to `sink`, on the given runtime, as the reporter of this host.
    pub fn start(sink: impl Sink, host_name: &str, metrics: Arc<Metrics>, runtime: &Handle) -> Self {
        Self::start_with(Retries::default(), sink, host_name, metrics, runtime)
    }

    fn start_with(
        retries: Retries,
        sink: impl Sink,
        host_name: &str,
        metrics: Arc<Metrics>,
        runtime: &Handle,
    ) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        let book = Book::new(format!("kube-proxy-{host_name}"));
        runtime.spawn(work(messages, book, sink, retries, Arc::clone(&metrics)));
        Self { queue, metrics }
    }

    /// Only logs.
    pub fn log_only(metrics: Arc<Metrics>) -> Self {
        let (queue, _) = mpsc::channel(1);
        Self { queue, metrics }
    }

    /// Tells the log and, some time later, the API server.
    pub fn record(&self, event: Event) {
        let Event {
            reason, action, note, ..
        } = &event;
        match event.severity {
            Severity::Normal => tracing::debug!(reason, action, note, "Event"),
            Severity::Warning => tracing::warn!(reason, action, note, "Event"),
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(Message::Event(event)) {
            self.metrics.events_lost.increment(&[]);
        }
    }

    /// Waits until everything recorded was delivered, but not for long: for those who are about to exit.
    pub async fn flush(&self, limit: Duration) {
        let (done, delivered) = oneshot::channel();
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(limit, delivered).await;
        }
    }
}

async fn work(
    mut messages: mpsc::Receiver<Message>,
    mut book: Book,
    sink: impl Sink,
    retries: Retries,
    metrics: Arc<Metrics>,
) {
    let mut tick = tokio::time::interval(SERIES_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let deliveries = tokio::select! {
            message = messages.recv() => match message {
                None => return,
                Some(Message::Event(event)) => {
                    Vec::from_iter(book.record(&event, Instant::now(), SystemTime::now()))
                }
                Some(Message::Flush(done)) => {
                    let _ = done.send(());
                    Vec::new()
                }
            },
            _ = tick.tick() => book.tick(Instant::now()),
        };
        for delivery in deliveries {
            if deliver::with_retries(&sink, &delivery, retries).await.is_err() {
                metrics.events_lost.increment(&[]);
            }
        }
    }
}
