//! One request to the API server: paced, counted, bounded in time, and with errors that a person can act on.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use tokio::time::{Instant, timeout};

use super::backoff::Limiter;
use super::client::{Body, Client};
use super::frame::{Encoding, excerpt};
use super::protocol::Status;
use super::requests::{Measure, Requests};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How much of an error's text is read.
const MAX_STATUS: usize = 64 << 10;

/// A connection to an API server, ready to be asked; cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: Client,
    server: Arc<str>,
    limiter: Arc<Option<Limiter>>,
    requests: Arc<Requests>,
    preferred: Encoding,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// What went wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("no answer from {url} within {} s", .within.as_secs_f32())]
    Slow { url: String, within: Duration },
    #[error("{url} answered {code}: {reason}")]
    Status {
        url: String,
        code: u16,
        reason: String,
        retry_after: Option<Duration>,
    },
    #[error("{url} answered with something that is no use: {reason}")]
    Garbage { url: String, reason: String },
}

impl Api {
    pub(super) fn new(
        client: Client,
        requests: Arc<Requests>,
        preferred: Encoding,
        qps: f32,
        burst: u32,
    ) -> Self {
        Api {
            server: client.server().into(),
            client,
            limiter: Arc::new(Limiter::new(qps, burst)),
            requests,
            preferred,
        }
    }

    /// The server's address, as errors show it.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// How objects are asked for.
    pub(super) fn preferred(&self) -> Encoding {
        self.preferred
    }

    /// Counters for the metrics.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Sends a request when its turn has come; `within` bounds the time until the answer begins. An answer that is
    /// not a success is an error with the server's reason.
    pub async fn send(&self, request: Request<Bytes>, within: Duration) -> Result<Response<Body>, Trouble> {
        let method = request.method().clone();
        if let Some(limiter) = self.limiter.as_ref() {
            let waited = limiter.turn().await;
            self.requests
                .note_measure(Measure::RateLimit, method.as_str(), waited.as_secs_f64());
        }
        let url = format!("{}{}", self.server, request.uri());
        let size = request.body().len() as f64;
        self.requests
            .note_measure(Measure::RequestSize, method.as_str(), size);
        let started = Instant::now();
        let answer = timeout(within, self.client.send(&request)).await;
        let code = answer
            .as_ref()
            .ok()
            .and_then(|sent| sent.as_ref().ok())
            .map(|answer| answer.status().as_u16());
        self.requests.note(method.as_str(), code, started.elapsed());
        match answer {
            Err(_) => Err(Trouble::Slow { url, within }),
            Ok(Err(reason)) => Err(Trouble::Unreachable { url, reason }),
            Ok(Ok(answer)) if answer.status().is_success() => Ok(answer),
            Ok(Ok(answer)) => Err(refusal(url, answer, within).await),
        }
    }

    /// Asks for objects. A server that cannot write them as is preferred may answer in JSON.
    pub(super) async fn get(
        &self,
        path: &str,
        preferred: Encoding,
        within: Duration,
    ) -> Result<Answer, Trouble> {
        let accepted = match preferred {
            Encoding::Json => JSON.to_owned(),
            Encoding::Protobuf => format!("{PROTOBUF}, {JSON};q=0.9"),
        };
        let request = Request::builder()
            .method(Method::GET)
            .uri(path)
            .header(header::ACCEPT, accepted)
            .body(Bytes::new())
            .map_err(|error| Trouble::Unreachable {
                url: path.to_owned(),
                reason: error.to_string(),
            })?;
        let response = self.send(request, within).await?;
        Ok(Answer {
            url: format!("{}{path}", self.server),
            encoding: encoding(response.headers()),
            body: response.into_body(),
        })
    }
}

/// How an answer is written, by what it says of itself.
fn encoding(headers: &HeaderMap) -> Encoding {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(PROTOBUF.as_bytes())) {
        Encoding::Protobuf
    } else {
        Encoding::Json
    }
}

/// A successful answer whose body arrives piece by piece.
pub(super) struct Answer {
    pub(super) url: String,
    pub(super) encoding: Encoding,
    body: Body,
}

/// What a body brought.
pub(super) enum Piece {
    Data(Bytes),
    End,
    /// Nothing, for as long as was allowed.
    Silence,
}

impl Answer {
    pub(super) async fn piece(&mut self, within: Duration) -> Result<Piece, Trouble> {
        match timeout(within, self.body.next()).await {
            Err(_) => Ok(Piece::Silence),
            Ok(None) => Ok(Piece::End),
            Ok(Some(Ok(data))) => Ok(Piece::Data(data)),
            Ok(Some(Err(reason))) => Err(Trouble::Unreachable {
                url: self.url.clone(),
                reason: format!("the answer broke off: {reason}"),
            }),
        }
    }

    pub(super) fn garbage(&self, reason: impl ToString) -> Trouble {
        Trouble::Garbage {
            url: self.url.clone(),
            reason: reason.to_string(),
        }
    }
}

async fn refusal(url: String, answer: Response<Body>, within: Duration) -> Trouble {
    let code = answer.status();
    let seconds = answer
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let mut answer = Answer {
        url,
        encoding: encoding(answer.headers()),
        body: answer.into_body(),
    };
    let mut text = Vec::new();
    while let Ok(Piece::Data(data)) = answer.piece(within).await {
        text.extend_from_slice(&data[..data.len().min(MAX_STATUS - text.len())]);
        if text.len() == MAX_STATUS {
            break;
        }
    }
    let reason = match Status::read_answer(&text, answer.encoding) {
        Some(status) => status.text(),
        None if text.is_empty() => reason_phrase(code).to_owned(),
        None => excerpt(&text),
    };
    Trouble::Status {
        url: answer.url,
        code: code.as_u16(),
        reason,
        retry_after: seconds.map(Duration::from_secs),
    }
}

fn reason_phrase(code: StatusCode) -> &'static str {
    code.canonical_reason().unwrap_or("no reason given")
}

/// An error with its causes; client libraries keep the useful part in the innermost.
pub(super) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
