//! HTTP/1.1 over a listening socket: the accept loop, its limits, and the replies that servers share.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A complete answer.
pub type Reply = Response<Full<Bytes>>;

/// Connections served at a time; more wait in the kernel's backlog.
const CONNECTIONS: usize = 256;
/// How long a client may take to send its request's head.
const HEAD: Duration = Duration::from_secs(30);

/// Plain text as most endpoints answer.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// JSON.
pub const JSON: &str = "application/json";

/// A running server. Dropping it closes the listener and cuts every connection.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Serves `answer` on `listener`, on the given runtime.
    pub fn start<A, F>(listener: TcpListener, runtime: &Handle, answer: A) -> std::io::Result<Self>
    where
        A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let address = listener.local_addr()?;
        let _in_runtime = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let task = runtime.spawn(accept(listener, answer));
        Ok(Self { address, task })
    }

    /// Where it listens; the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<A, F>(listener: tokio::net::TcpListener, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // Owned here, so that the connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "accept failed");
                // Out of file descriptors, most likely: let some come back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let reply = answer(request);
                async move { Ok::<_, std::convert::Infallible>(reply.await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = pin!(connection).await {
                tracing::trace!(%error, "connection ended");
            }
            drop(place);
        });
    }
}

/// A reply with the given status, content type and body that browsers must not second-guess.
pub fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

/// What any unknown path gets.
pub fn not_found() -> Reply {
    reply(StatusCode::NOT_FOUND, TEXT, "404 page not found\n")
}
