//! Opens the HTTP servers, tries again where a port is taken, and gives up where the operator wants that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferry_sources::Mailbox;
use tokio::runtime::Handle;

use crate::config::Settings;
use crate::events::{Event, Recorder};
use crate::metrics::Metrics;
use crate::servers::health::{self, Health};
use crate::servers::listen::ListenError;
use crate::servers::metrics::{self, Exposed};
use crate::servers::serve::Server;
use crate::sync::{Signal, Stop};

/// How long until a port that was taken is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long the last event of a dying daemon may take.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the servers show, and what happens when one cannot be opened.
pub(super) struct Servers<'a> {
    pub(super) settings: &'a Settings,
    pub(super) node: &'a Arc<str>,
    pub(super) runtime: &'a Handle,
    pub(super) mailbox: &'a Arc<Mailbox>,
    pub(super) health: &'a Arc<Health>,
    pub(super) metrics: &'a Arc<Metrics>,
    /// Who is told of a port that cannot be opened and must.
    pub(super) recorder: &'a Recorder,
    /// Ends the daemon then.
    pub(super) signal: &'a Arc<Signal>,
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// `/healthz` and `/livez`.
    Health,
    /// `/metrics` and more.
    Metrics,
}

impl Servers<'_> {
    /// Opens them on their configured addresses, for the life of the runtime.
    pub(super) fn open(&self, started: SystemTime) {
        if let Some(address) = self.settings.healthz_bind_address {
            self.open_health(address);
        }
        if let Some(address) = self.settings.metrics_bind_address {
            self.open_metrics(address, started);
        }
    }

    fn open_health(&self, address: SocketAddr) {
        let (health, metrics) = (Arc::clone(self.health), Arc::clone(self.metrics));
        let (mailbox, runtime) = (Arc::clone(self.mailbox), self.runtime.clone());
        let open = move || {
            let mailbox = Arc::clone(&mailbox);
            let eligible = move || mailbox.node().node.is_some_and(|node| node.eligible);
            let (health, metrics) = (Arc::clone(&health), Arc::clone(&metrics));
            health::start(address, health, eligible, metrics, &runtime)
        };
        self.keep_open(Which::Health, address, open);
    }

    fn open_metrics(&self, address: SocketAddr, started: SystemTime) {
        let settings = self.settings;
        let exposed = Arc::new(Exposed {
            mode: settings.mode,
            metrics: Arc::clone(self.metrics),
            configz: settings.configz.clone(),
            flags: settings.flagz.clone(),
            flagz: settings.gates.enabled("ComponentFlagz"),
            statusz: settings.gates.enabled("ComponentStatusz"),
            profiling: settings.profiling,
            started,
            set_verbosity: Box::new(crate::logging::set_verbosity),
        });
        let runtime = self.runtime.clone();
        let open = move || metrics::start(address, Arc::clone(&exposed), &runtime);
        self.keep_open(Which::Metrics, address, open);
    }

    /// Tries until the server is open, or gives up at once where the settings say so.
    fn keep_open(
        &self,
        which: Which,
        address: SocketAddr,
        open: impl Fn() -> Result<Server, ListenError> + Send + 'static,
    ) {
        let (node, must_open) = (Arc::clone(self.node), self.settings.bind_address_hard_fail);
        let (recorder, signal) = (self.recorder.clone(), Arc::clone(self.signal));
        self.runtime.spawn(async move {
            loop {
                match open() {
                    Ok(server) => {
                        tracing::info!(server = which.name(), address = %server.address(), "Serving");
                        // Holds the server for as long as the runtime lives.
                        return std::future::pending::<()>().await;
                    }
                    Err(error) if must_open => {
                        let (event, reason) = last_words(which, address, &node, &error);
                        recorder.record(event);
                        recorder.flush(LAST_EVENT_TIMEOUT).await;
                        return signal.stop(Stop::Failed(reason));
                    }
                    Err(error) => {
                        tracing::error!(server = which.name(), err = %error, "Can't serve; will try again");
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        });
    }
}

/// What is told of a server that could not be opened: to the API server, and as the reason for the end.
fn last_words(which: Which, address: SocketAddr, node: &Arc<str>, error: &ListenError) -> (Event, String) {
    match which {
        Which::Health => {
            let note = format!("failed to start proxy healthz on {address}: {error}");
            let reason = format!("healthz server failed: {note}");
            (Event::healthz_failed(node, note), reason)
        }
        Which::Metrics => (Event::metrics_failed(node, error.to_string()), error.to_string()),
    }
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Metrics => "metrics",
        }
    }
}
