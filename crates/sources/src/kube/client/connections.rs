//! The open connections to the server: one for everything with HTTP/2, one per request under way with HTTP/1.1.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::AbortHandle;

use super::Timing;
use super::dial::{Io, Protocol, Route};
use super::secret::Secret;
use super::tls::{Material, Tls};

/// A list should not wait for a round trip per 64 KiB.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Connections, made as they are needed.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) route: Route,
    tls: Option<Tls>,
    ping_interval: Duration,
    ping_timeout: Duration,
    open: Mutex<Open>,
    /// Held while a connection is being made, so that it is made once.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Open {
    /// What the connections below were made with.
    material: Option<Arc<Material>>,
    http2: Option<http2::SendRequest<Full<Bytes>>>,
    /// Those that nothing is under way on.
    http1: Vec<http1::SendRequest<Full<Bytes>>>,
    tasks: Vec<AbortHandle>,
}

/// Something that a request can be sent on.
pub(super) enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Whether a connection has carried requests before, and may have been closed unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Fresh,
    Used,
}

impl Connections {
    pub(super) fn new(route: Route, tls: Option<Tls>, timing: &Timing) -> Self {
        Connections {
            route,
            tls,
            ping_interval: timing.ping_interval,
            ping_timeout: timing.ping_timeout,
            open: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watches_files(&self) -> bool {
        self.tls.as_ref().is_some_and(Tls::has_files)
    }

    /// A connection that can take a request now, made if there is none.
    pub(super) async fn sender(&self, issued: Option<&(Secret, Secret)>) -> Result<(Sender, Age), String> {
        if let Some(sender) = self.lock().idle() {
            return Ok((sender, Age::Used));
        }
        let _turn = self.connecting.lock().await;
        if let Some(sender) = self.lock().idle() {
            return Ok((sender, Age::Used));
        }
        let material = self.material(issued)?;
        let tls = self
            .tls
            .as_ref()
            .zip(material.as_ref())
            .map(|(tls, material)| (Arc::clone(&material.config), tls.server_name()));
        let (stream, protocol) = self.route.connect(tls).await?;
        let sender = self.introduce(stream, protocol).await?;
        self.lock().material = material;
        Ok((sender, Age::Fresh))
    }

    /// What to connect with now. Files that are being replaced may not fit together for a moment; what was good
    /// before is used then.
    fn material(&self, issued: Option<&(Secret, Secret)>) -> Result<Option<Arc<Material>>, String> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        match (tls.load(issued), &self.lock().material) {
            (Ok(material), _) => Ok(Some(Arc::new(material))),
            (Err(reason), Some(known)) => {
                tracing::warn!(
                    err = reason,
                    "Cannot read TLS files again, using what they held before"
                );
                Ok(Some(Arc::clone(known)))
            }
            (Err(reason), None) => Err(reason),
        }
    }

    async fn introduce(&self, stream: Box<dyn Io>, protocol: Protocol) -> Result<Sender, String> {
        let stream = TokioIo::new(stream);
        let failed = |error: hyper::Error| super::describe(&error);
        match protocol {
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(self.ping_interval)
                    .keep_alive_timeout(self.ping_timeout)
                    .keep_alive_while_idle(true)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .handshake(stream)
                    .await
                    .map_err(failed)?;
                self.attend(connection);
                self.lock().http2 = Some(sender.clone());
                Ok(Sender::Http2(sender))
            }
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(stream).await.map_err(failed)?;
                self.attend(connection);
                Ok(Sender::Http1(sender))
            }
        }
    }

    fn attend(&self, connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(
                    err = super::describe(&error),
                    "A connection to the API server ended"
                );
            }
        });
        let mut open = self.lock();
        open.tasks.retain(|task| !task.is_finished());
        open.tasks.push(task.abort_handle());
    }

    /// Closes what was made with other files than there are now; tells whether there was anything to close.
    pub(super) fn renew(&self, issued: Option<&(Secret, Secret)>) -> bool {
        let Some(tls) = &self.tls else {
            return false;
        };
        let Some(used) = self.lock().material.clone() else {
            return false;
        };
        match tls.load(issued) {
            Ok(now) if now.is_same(&used) => false,
            Ok(_) => {
                tracing::info!("The TLS files have changed, connecting to the API server anew");
                self.lock().close();
                true
            }
            Err(reason) => {
                tracing::debug!(err = reason, "Cannot read TLS files again");
                false
            }
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.lock().close();
    }
}

impl Open {
    fn idle(&mut self) -> Option<Sender> {
        self.http1.retain(|sender| !sender.is_closed());
        if let Some(sender) = self.http2.as_ref().filter(|sender| !sender.is_closed()) {
            return Some(Sender::Http2(sender.clone()));
        }
        self.http1.pop().map(Sender::Http1)
    }

    fn close(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
        self.http1.clear();
        self.http2 = None;
        self.material = None;
    }
}

/// An HTTP/1.1 connection that an answer is arriving on; it is closed unless the answer is read to its end.
#[derive(Debug)]
pub(super) struct Lease {
    sender: http1::SendRequest<Full<Bytes>>,
    connections: Arc<Connections>,
}

impl Lease {
    /// Makes the connection ready for another request.
    pub(super) async fn end(mut self) {
        if self.sender.ready().await.is_ok() {
            self.connections.lock().http1.push(self.sender);
        }
    }
}

impl Sender {
    /// What an answer holds on to; an HTTP/2 connection carries others besides.
    pub(super) fn lease(self, connections: &Arc<Connections>) -> Option<Lease> {
        match self {
            Sender::Http1(sender) => Some(Lease {
                sender,
                connections: Arc::clone(connections),
            }),
            Sender::Http2(_) => None,
        }
    }

    /// HTTP/2 names the server in the request's line, HTTP/1.1 in a header.
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Sender::Http1(_) => Protocol::Http1,
            Sender::Http2(_) => Protocol::Http2,
        }
    }

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}
