//! Traffic that goes on while something else happens.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferry_lab::netns::{Answer, Network, Probe, Proto, Reply, Sockets};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

/// One connection or datagram of a stream of them.
#[derive(Debug, Clone)]
pub struct Shot {
    pub sent: Instant,
    pub answered: Instant,
    pub reply: Reply,
}

impl Shot {
    pub fn is_ok(&self) -> bool {
        self.reply.answer == Answer::Ok
    }

    pub fn is_timeout(&self) -> bool {
        self.reply.answer == Answer::Timeout
    }

    /// Who answered.
    pub fn backend(&self) -> Option<IpAddr> {
        self.reply.seen.as_ref().map(|(at, _)| at.ip())
    }
}

/// The same probe at a constant rate, each with a new connection, until [`Stream::stop`]. A shot that waits for
/// its answer does not hold up the next.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Shot>>,
    runtime: Arc<Runtime>,
}

impl Stream {
    /// Starts, with a shot every `pause`.
    pub fn start(network: &Network, probe: Probe, pause: Duration) -> Result<Stream> {
        let sockets = network.sockets(probe.sender())?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let task = network.runtime().spawn(async move {
            let mut flying = JoinSet::new();
            while !flag.load(Ordering::Relaxed) {
                let (probe, sockets) = (probe.clone(), sockets.clone());
                flying.spawn(async move {
                    let sent = Instant::now();
                    let reply = probe.once(&sockets).await;
                    Shot {
                        sent,
                        answered: Instant::now(),
                        reply,
                    }
                });
                tokio::time::sleep(pause).await;
            }
            let mut shots = flying.join_all().await;
            shots.sort_by_key(|shot| shot.sent);
            shots
        });
        Ok(Stream {
            stop,
            task,
            runtime: Arc::clone(network.runtime()),
        })
    }

    /// Ends it and gives every shot.
    pub fn stop(self) -> Result<Vec<Shot>> {
        self.stop.store(true, Ordering::Relaxed);
        let shots = self
            .runtime
            .block_on(self.task)
            .context("the traffic broke off")?;
        if shots.is_empty() {
            bail!("no traffic was sent");
        }
        Ok(shots)
    }
}

/// A connection that stays open, and is talked over all the time.
#[derive(Debug)]
pub struct Conversation {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<u64>>,
    runtime: Arc<Runtime>,
}

impl Conversation {
    /// Connects and begins to talk.
    pub fn start(network: &Network, from: &str, to: SocketAddr) -> Result<Conversation> {
        let sockets = network.sockets(from)?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let runtime = Arc::clone(network.runtime());
        let mut stream = runtime.block_on(open(&sockets, to))?;
        let task = runtime.spawn(async move {
            let mut said = 0;
            while !flag.load(Ordering::Relaxed) {
                stream
                    .write_all(b"ping")
                    .await
                    .context("the connection is lost (write)")?;
                let mut back = [0; 4];
                let read = tokio::time::timeout(Duration::from_secs(10), stream.read_exact(&mut back)).await;
                read.context("the connection is lost (no echo)")?
                    .context("the connection is lost (read)")?;
                said += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(said)
        });
        Ok(Conversation { stop, task, runtime })
    }

    /// Ends it; an error if the connection had not lived all the time.
    pub fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.runtime
            .block_on(self.task)
            .context("the conversation broke off")?
    }
}

async fn open(sockets: &Sockets, to: SocketAddr) -> Result<tokio::net::TcpStream> {
    let socket = sockets.get(to.is_ipv6(), Proto::Tcp).await?;
    let connect = TcpSocket::from_std_stream(socket.into()).connect(to);
    let limit = Duration::from_secs(5);
    let mut stream = tokio::time::timeout(limit, connect)
        .await
        .context("no connection in time")??;
    let mut greeting = [0; 512];
    let n = tokio::time::timeout(limit, stream.read(&mut greeting))
        .await
        .context("no greeting")??;
    if n == 0 {
        bail!("the server closed at once");
    }
    Ok(stream)
}
