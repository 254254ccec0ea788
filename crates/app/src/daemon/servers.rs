//! Opens the HTTP servers, tries again where a port is taken, and gives up where the operator wants that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::events::{Event, Recorder};
use crate::servers::listen::ListenError;
use crate::servers::serve::Server;
use crate::sync::{Signal, Stop};

/// How long until a port that was taken is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long the last event of a dying daemon may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What happens when a server cannot be opened.
#[derive(Debug, Clone)]
pub(super) struct OnFailure {
    /// End the daemon instead of trying again.
    pub(super) hard: bool,
    /// Whom to tell.
    pub(super) recorder: Recorder,
    /// The loop to end.
    pub(super) signal: Arc<Signal>,
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// `/healthz` and `/livez`.
    Health,
    /// `/metrics` and more.
    Metrics,
}

/// Keeps a server open on `address` for the life of the runtime.
pub(super) fn keep_open(
    which: Which,
    address: SocketAddr,
    node: Arc<str>,
    on_failure: OnFailure,
    runtime: &Handle,
    open: impl Fn() -> Result<Server, ListenError> + Send + 'static,
) {
    runtime.spawn(async move {
        loop {
            match open() {
                Ok(server) => {
                    tracing::info!(server = which.name(), address = %server.address(), "Serving");
                    // Holds the server for as long as the runtime lives.
                    return std::future::pending::<()>().await;
                }
                Err(error) if on_failure.hard => {
                    return give_up(which, address, &node, &on_failure, &error).await;
                }
                Err(error) => {
                    tracing::error!(server = which.name(), err = %error, "Can't serve; will try again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
}

async fn give_up(
    which: Which,
    address: SocketAddr,
    node: &Arc<str>,
    on_failure: &OnFailure,
    error: &ListenError,
) {
    let (event, reason) = match which {
        Which::Health => {
            let note = format!("failed to start proxy healthz on {address}: {error}");
            let reason = format!("healthz server failed: {note}");
            (Event::healthz_failed(node, note), reason)
        }
        Which::Metrics => (Event::metrics_failed(node, error.to_string()), error.to_string()),
    };
    on_failure.recorder.record(event);
    on_failure.recorder.flush(LAST_WORDS).await;
    on_failure.signal.stop(Stop::Failed(reason));
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Metrics => "metrics",
        }
    }
}
