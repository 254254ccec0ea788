//! Servers that tell the client who answered and whom they saw.
//!
//! Every server answers with `{"local":"ADDRESS|PORT","peer":"ADDRESS"}`: a UDP server to each datagram, a TCP
//! or SCTP server once at the start. After that a stream echoes, so that a test can hold a connection open.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use super::{Proto, Sockets};

/// A stream whose client says nothing for so long is closed.
const IDLE: Duration = Duration::from_secs(120);

/// Running servers; dropping the value ends them and closes their sockets.
#[derive(Debug, Default)]
pub struct Servers {
    tasks: JoinSet<()>,
}

impl Servers {
    /// Starts a server at that address; its socket listens when this returns.
    pub async fn listen(&mut self, sockets: &Sockets, proto: Proto, at: SocketAddr) -> Result<()> {
        let bound = self.bind(sockets, proto, at).await;
        bound.with_context(|| format!("cannot serve {at}/{proto}"))
    }

    async fn bind(&mut self, sockets: &Sockets, proto: Proto, at: SocketAddr) -> io::Result<()> {
        let socket = sockets.get(at.is_ipv6(), proto).await?;
        match proto {
            Proto::Tcp | Proto::Sctp => {
                socket.set_reuse_address(true)?;
                socket.bind(&at.into())?;
                socket.listen(1024)?;
                let listener = TcpListener::from_std(socket.into())?;
                self.tasks.spawn(streams(listener, at));
            }
            Proto::Udp => {
                socket.bind(&at.into())?;
                let socket = UdpSocket::from_std(socket.into())?;
                self.tasks.spawn(datagrams(socket, at));
            }
        }
        Ok(())
    }
}

fn answer(at: SocketAddr, peer: IpAddr) -> String {
    format!(r#"{{"local":"{}|{}","peer":"{}"}}"#, at.ip(), at.port(), peer)
}

async fn datagrams(socket: UdpSocket, at: SocketAddr) {
    let mut buffer = [0; 2048];
    loop {
        // an ICMP error of an earlier answer may surface here; the socket is as good as before
        if let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(answer(at, peer.ip()).as_bytes(), peer).await;
        }
    }
}

async fn streams(listener: TcpListener, at: SocketAddr) {
    let listener = Arc::new(listener);
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                open.spawn(greet_and_echo(stream, at, peer.ip()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn greet_and_echo(mut stream: TcpStream, at: SocketAddr, peer: IpAddr) {
    let mut buffer = [0; 2048];
    if stream.write_all(answer(at, peer).as_bytes()).await.is_err() {
        return;
    }
    while let Ok(Ok(n @ 1..)) = tokio::time::timeout(IDLE, stream.read(&mut buffer)).await {
        if stream.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
