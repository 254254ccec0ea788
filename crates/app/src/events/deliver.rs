//! Getting a delivery to the API server.

use std::future::Future;
use std::time::{Duration, SystemTime};

use ferry_sources::kube::{Api, Trouble};
use http::Request;

use super::book::Delivery;

/// How often a server that cannot be reached is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retries {
    tries: u32,
    /// Between tries, before jitter.
    pause: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            tries: 12,
            pause: Duration::from_secs(10),
        }
    }
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivered {
    /// The server has it.
    Yes,
    /// The server does not want it; trying again would not help.
    Rejected(String),
    /// The server could not be asked.
    Unreachable(String),
}

/// Where events go.
pub trait Sink: Send + Sync + 'static {
    /// Makes one request.
    fn deliver(&self, request: Request<Vec<u8>>) -> impl Future<Output = Delivered> + Send;
}

/// The API server.
#[derive(Clone, Debug)]
pub struct ApiSink(pub Api);

/// How long the server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

impl Sink for ApiSink {
    async fn deliver(&self, request: Request<Vec<u8>>) -> Delivered {
        match self.0.send(request.map(Into::into), ANSWER_TIMEOUT).await {
            Ok(answer) => {
                // It echoes the event. Read to its end, so that it is counted and the connection can be used again.
                let mut body = answer.into_body();
                let rest = async { while let Some(Ok(_)) = body.next().await {} };
                let _ = tokio::time::timeout(ANSWER_TIMEOUT, rest).await;
                Delivered::Yes
            }
            // The server is overloaded or restarting, which passes.
            Err(
                trouble @ Trouble::Status {
                    code: 429 | 500.., ..
                },
            ) => Delivered::Unreachable(trouble.to_string()),
            Err(trouble @ (Trouble::Status { .. } | Trouble::Garbage { .. })) => {
                Delivered::Rejected(trouble.to_string())
            }
            Err(trouble @ (Trouble::Unreachable { .. } | Trouble::Slow { .. })) => {
                Delivered::Unreachable(trouble.to_string())
            }
        }
    }
}

/// The event is lost.
#[derive(Debug)]
pub(super) struct Lost;

pub(super) async fn with_retries(
    sink: &impl Sink,
    delivery: &Delivery,
    retries: Retries,
) -> Result<(), Lost> {
    for attempt in 1..=retries.tries {
        let Ok(request) = request(delivery) else {
            return Err(Lost);
        };
        match sink.deliver(request).await {
            Delivered::Yes => return Ok(()),
            Delivered::Rejected(reason) => {
                tracing::error!(err = reason, "Server rejected event (will not retry!)");
                return Err(Lost);
            }
            Delivered::Unreachable(reason) => {
                tracing::debug!(
                    err = reason,
                    attempt,
                    "Unable to write event (may retry after sleeping)"
                );
            }
        }
        if attempt < retries.tries {
            tokio::time::sleep(retries.pause.mul_f64(jitter())).await;
        }
    }
    tracing::error!("Unable to write event (retry limit exceeded!)");
    Err(Lost)
}

/// Up to a quarter longer, so that a cluster of nodes does not ask at once.
fn jitter() -> f64 {
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .subsec_nanos();
    1.0 + 0.25 * f64::from(nanos % 1000) / 1000.0
}

fn request(delivery: &Delivery) -> http::Result<Request<Vec<u8>>> {
    match delivery {
        Delivery::Create { namespace, object } => {
            Request::post(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(object.to_string().into_bytes())
        }
        Delivery::Patch {
            namespace,
            name,
            patch,
        } => Request::patch(format!(
            "/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}"
        ))
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Event, Recorder};
    use crate::metrics::{Build, Metrics};
    use crate::modes::Mode;
    use std::sync::{Arc, Mutex};

    /// Answers from a script, then `Yes`; remembers the requests.
    #[derive(Clone, Default)]
    struct Script {
        answers: Arc<Mutex<Vec<Delivered>>>,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl Sink for Script {
        async fn deliver(&self, request: Request<Vec<u8>>) -> Delivered {
            self.requests
                .lock()
                .unwrap()
                .push(format!("{} {}", request.method(), request.uri()));
            self.answers.lock().unwrap().pop().unwrap_or(Delivered::Yes)
        }
    }

    fn recorder(script: Script, metrics: &Arc<Metrics>, pause: Duration) -> Recorder {
        let retries = Retries { tries: 12, pause };
        Recorder::start_with(
            retries,
            script,
            "h",
            Arc::clone(metrics),
            &tokio::runtime::Handle::current(),
        )
    }

    #[tokio::test]
    async fn an_unreachable_server_is_tried_again_and_a_rejection_is_not() {
        let metrics = Arc::new(Metrics::new(Mode::named("nftables").unwrap(), Build::default()));
        let script = Script::default();
        let answers = [
            Delivered::Rejected("no".into()),
            Delivered::Unreachable("down".into()),
            Delivered::Unreachable("down".into()),
        ];
        *script.answers.lock().unwrap() = answers.to_vec();
        let recorder = recorder(script.clone(), &metrics, Duration::from_millis(1));
        let node: Arc<str> = "n".into();
        recorder.record(Event::ipvs_deprecation(&node));
        recorder.record(Event::starting(&node));
        recorder.flush(Duration::from_secs(60)).await;
        let requests = script.requests.lock().unwrap().clone();
        assert_eq!(
            requests,
            ["POST /apis/events.k8s.io/v1/namespaces/default/events"; 4]
        );
        assert_eq!(metrics.events_lost.get(&[]).unwrap().0, 1.0, "the rejected one");
    }

    #[tokio::test]
    async fn a_server_that_stays_away_is_given_up_after_twelve_tries() {
        let metrics = Arc::new(Metrics::new(Mode::named("nftables").unwrap(), Build::default()));
        let script = Script::default();
        *script.answers.lock().unwrap() = vec![Delivered::Unreachable("down".into()); 100];
        let recorder = recorder(script.clone(), &metrics, Duration::from_millis(1));
        recorder.record(Event::starting(&"n".into()));
        recorder.flush(Duration::from_secs(60)).await;
        assert_eq!(script.requests.lock().unwrap().len(), 12);
        assert_eq!(metrics.events_lost.get(&[]).unwrap().0, 1.0);
    }

    #[tokio::test]
    async fn flushing_does_not_wait_for_ever() {
        let metrics = Arc::new(Metrics::new(Mode::named("nftables").unwrap(), Build::default()));
        let script = Script::default();
        *script.answers.lock().unwrap() = vec![Delivered::Unreachable("down".into()); 100];
        let recorder = recorder(script, &metrics, Duration::from_secs(60));
        recorder.record(Event::starting(&"n".into()));
        let before = std::time::Instant::now();
        recorder.flush(Duration::from_millis(50)).await;
        assert!(before.elapsed() < Duration::from_secs(30));
    }
}
