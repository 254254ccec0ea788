//! HTTP/1.1 over a listening socket: the accept loop, its limits, and the replies that servers share.

use std::future::Future;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::connections::{Connections, Limits, Seat};

/// A complete answer.
pub type Reply = Response<Full<Bytes>>;

/// A server lets in no more clients than these at a time.
const MAX_CONNECTIONS: usize = 1024;
/// How long a client may take to send a request's head, the time before its first byte included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted.
pub(crate) const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How long a client may leave an answer unread.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Plain text as most endpoints answer.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// JSON.
pub const JSON: &str = "application/json";

/// A running server. Dropping it closes the listener at once, and every connection soon.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    listener: Arc<tokio::net::TcpListener>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Serves `answer` on `listener`, on the given runtime, to as many clients as a server has room for.
    pub fn start<A, F>(
        name: &'static str,
        listener: TcpListener,
        runtime: &Handle,
        answer: A,
    ) -> std::io::Result<Self>
    where
        A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        Self::start_among(room_for_clients(name), listener, runtime, answer)
    }

    /// The same, sharing the room for clients with other servers.
    pub fn start_among<A, F>(
        connections: Arc<Connections>,
        listener: TcpListener,
        runtime: &Handle,
        answer: A,
    ) -> std::io::Result<Self>
    where
        A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let address = listener.local_addr()?;
        let _in_runtime = runtime.enter();
        let listener = Arc::new(tokio::net::TcpListener::from_std(listener)?);
        let task = runtime.spawn(accept(Arc::clone(&listener), connections, answer));
        Ok(Self {
            address,
            listener,
            task,
        })
    }

    /// Where it listens; the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The task ends when the runtime gets to it; who wants to bind the port again must not have to wait for that.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        self.task.abort();
    }
}

/// Room for the clients of a server, or of several that share it. All servers together leave most of the files that
/// may be open to the rest of the daemon.
pub fn room_for_clients(name: &'static str) -> Arc<Connections> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let total = files.map_or(MAX_CONNECTIONS, |files| {
        (files as usize / 16).clamp(4, MAX_CONNECTIONS)
    });
    let limits = Limits {
        total,
        per_address: (total / 8).max(2),
    };
    Connections::new(name, limits)
}

async fn accept<A, F>(listener: Arc<tokio::net::TcpListener>, connections: Arc<Connections>, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    // Owned here, so that the connections end with this task.
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, client)) => {
                let seat = connections.admit(Some(client.ip()));
                clients.spawn(converse(stream, seat, answer.clone()));
                // Whoever has sent a request is heard before more are let in and may displace it.
                tokio::task::yield_now().await;
            }
            // Closed by whoever had the server.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::debug!(err = %error, "Can't accept a connection");
                // Out of file descriptors, most likely: let some come back.
                connections.make_room();
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

/// Serves one client until it leaves or its place is wanted for another.
async fn converse<A, F>(stream: TcpStream, seat: Seat, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Send,
    F: Future<Output = Reply> + Send,
{
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
    let seat = &seat;
    let service = service_fn(|request| {
        seat.answering();
        let reply = answer(request);
        async move {
            let reply = reply.await;
            seat.waiting();
            Ok::<_, std::convert::Infallible>(reply)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::trace!(err = %error, "Connection ended");
            }
        }
        () = seat.taken() => {}
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
