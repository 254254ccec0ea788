//! TCP: accepting, finding an endpoint that answers, and letting the bytes flow.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ferry_model::{Action, Scope};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::error::Elapsed;

use super::balancer::Lease;
use super::proxy_protocol;
use super::pump::Pump;
use super::{Door, Shared, is_exhaustion, reset_on_close, sockets};

/// How long accepting pauses when the process or the machine is out of files or memory; doubled up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections for as long as the returned future runs.
pub(super) fn accept(
    listener: std::net::TcpListener,
    door: Arc<Door>,
    shared: Arc<Shared>,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(async move {
        let mut pause = FIRST_PAUSE;
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    pause = FIRST_PAUSE;
                    // At the limit, the next clients wait in the kernel's queue: they are not refused.
                    let Ok(permit) = shared.connections.clone().acquire_owned().await else {
                        return;
                    };
                    tokio::spawn(serve(stream, client, door.clone(), shared.clone(), permit));
                    // What was accepted comes before what waits: a busy thread leaves clients to the others.
                    tokio::task::yield_now().await;
                }
                Err(error) if is_exhaustion(&error) => {
                    tracing::warn!(%error, "pausing to accept connections");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                // The client went away while it waited.
                Err(error) => tracing::debug!(%error, "a connection was lost before it was accepted"),
            }
        }
    })
}

/// One connection from its first to its last byte.
async fn serve(
    stream: TcpStream,
    client: SocketAddr,
    door: Arc<Door>,
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
) {
    let port = &door.port;
    let local = || stream.local_addr().ok().map(|address| address.ip());
    let Action::Forward { scope, .. } = door.access().action(client.ip(), local) else {
        port.counters.refused.fetch_add(1, Relaxed);
        return reset_on_close(&stream);
    };
    let Some((server, lease)) = dial(&door, &shared, scope, client).await else {
        port.counters.failed.fetch_add(1, Relaxed);
        return reset_on_close(&stream);
    };
    port.counters.opened.fetch_add(1, Relaxed);
    let end = relay(stream, client, server, &lease, &door, &shared).await;
    port.counters.closed.fetch_add(1, Relaxed);
    if let Err(error) = end {
        tracing::trace!(%client, endpoint = %lease.0.address, %error, "a connection ended early");
    }
}

async fn relay(
    stream: TcpStream,
    client: SocketAddr,
    mut server: TcpStream,
    lease: &Lease,
    door: &Door,
    shared: &Shared,
) -> io::Result<()> {
    if door.port.options().proxy_protocol {
        server
            .write_all(&proxy_protocol::header(client, destination(&stream)?))
            .await?;
    }
    let mut pump = Pump::new(stream, server, &shared.pipes, &door.port.counters);
    tokio::select! {
        biased;
        end = &mut pump => {
            if end.is_err() {
                pump.reset();
            }
            end
        }
        () = lease.0.cut() => {
            pump.reset();
            Err(io::Error::new(io::ErrorKind::TimedOut, "the endpoint was removed some time ago"))
        }
    }
}

/// Where the client meant to go: before any redirection by rules, if there was one.
fn destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let local = stream.local_addr()?;
    let original = match local {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    Ok(original
        .ok()
        .and_then(|address| address.as_socket())
        .unwrap_or(local))
}

/// Finds an endpoint that answers. Each attempt goes to another endpoint while there is one that was not tried, and
/// may take longer than the one before.
async fn dial(door: &Door, shared: &Shared, scope: Scope, client: SocketAddr) -> Option<(TcpStream, Lease)> {
    let mut tried = Vec::new();
    for limit in &shared.settings.dial {
        let balancer = &door.port.balancer;
        let lease = Lease::new(balancer.pick(scope, client.ip().to_canonical(), &tried, Instant::now())?);
        let address = lease.0.address;
        match attempt(address, *limit).await {
            Ok(Ok(server)) => {
                lease.0.answered();
                return Some((server, lease));
            }
            // Not the endpoint's fault: wait for what this attempt may take, as if it had not answered.
            Ok(Err(error)) if is_exhaustion(&error) => {
                tracing::warn!(%error, "no socket left to reach an endpoint with");
                tokio::time::sleep(*limit).await;
                continue;
            }
            Ok(Err(error)) => tracing::debug!(endpoint = %address, %error, "an endpoint refused"),
            Err(_elapsed) => tracing::debug!(endpoint = %address, "an endpoint did not answer"),
        }
        lease.0.failed(Instant::now());
        tried.push(address);
    }
    None
}

/// Connects within a time. An endpoint on this node has answered when the thread next looks at its sockets; a timer,
/// and waking the poller for it, would cost as much as the connection does.
async fn attempt(address: SocketAddr, limit: Duration) -> Result<io::Result<TcpStream>, Elapsed> {
    let mut connecting = pin!(connect(address));
    tokio::select! {
        biased;
        result = &mut connecting => return Ok(result),
        () = tokio::task::yield_now() => {}
    }
    tokio::time::timeout(limit, connecting).await
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    sockets::tune_tcp(&SockRef::from(&socket))?;
    socket.connect(address).await
}
