//! Short connections as fast as they go, and what the kernel counts meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferry_lab::netns::{Namespace, Network};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

/// As many as there are cores on a small machine; more would measure the scheduler.
const CLIENTS: u32 = 2;
const REQUEST: [u8; 64] = [b'r'; 64];
const ANSWER: [u8; 128] = [b'a'; 128];
/// Before this a connection was not lost, only slow.
const LIMIT: Duration = Duration::from_secs(10);

/// Who ends a connection: that side remembers it for a minute (TIME_WAIT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closes {
    Server,
    Client,
}

/// Serves a port of a host on all of its addresses, until the process ends: one request, one answer.
pub(crate) fn serve(host: &Namespace, port: u16, closes: Closes) -> Result<()> {
    let at = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listener = host.run(|| listen(at))??;
    for _ in 0..CLIENTS {
        let listener = listener.try_clone()?;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // what becomes of a connection is for its client to say
                let _ = stream.and_then(|stream| answer(stream, closes));
            }
        });
    }
    Ok(())
}

fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn answer(mut stream: TcpStream, closes: Closes) -> std::io::Result<()> {
    stream.read_exact(&mut [0; REQUEST.len()])?;
    stream.write_all(&ANSWER)?;
    match closes {
        Closes::Server => Ok(()),
        Closes::Client => stream.read_to_end(&mut Vec::new()).map(drop),
    }
}

/// Where connections come from and go to.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) from: &'static str,
    pub(crate) to: SocketAddr,
    pub(crate) closes: Closes,
    /// Addresses and ports to come from in turn; none: the host's own.
    pub(crate) sources: Vec<SocketAddr>,
}

/// What a while of connections came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) connections: u32,
    pub(crate) failed: u32,
    pub(crate) seconds: f64,
    /// Of all clients and servers, what the kernel does on their behalf included.
    pub(crate) cpu: f64,
    pub(crate) kernel: Counters,
}

impl Count {
    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.connections) / self.seconds
    }

    /// CPU of one connection, in microseconds.
    pub(crate) fn cpu_each(&self) -> f64 {
        self.cpu * 1e6 / f64::from(self.connections.max(1))
    }
}

/// What the kernel counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// SYNs that a client had to repeat.
    pub(crate) repeated: u64,
    /// SYNs that the endpoint dropped because they looked older than the connection it remembers; 6.12 and later tell.
    pub(crate) old: u64,
    /// Connections whose translation another one had taken meanwhile.
    pub(crate) insert_failed: u64,
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            repeated: self.repeated - before.repeated,
            old: self.old - before.old,
            insert_failed: self.insert_failed - before.insert_failed,
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.repeated += other.repeated;
        self.old += other.old;
        self.insert_failed += other.insert_failed;
    }
}

/// Connects for that long.
pub(crate) fn run(network: &Network, way: &Way, length: Duration) -> Result<Count> {
    let host = network.host(way.from)?;
    let (connections, failed, turn) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let before = counters(network, way.from)?;
    let (begin, cpu) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        let client = || {
            host.enter()?;
            while begin.elapsed() < length {
                let turn = turn.fetch_add(1, Ordering::Relaxed) as usize;
                let source = way.sources.get(turn % way.sources.len().max(1));
                let counter = match connect(way, source.copied()) {
                    Ok(()) => &connections,
                    Err(_) => &failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            let panicked = |panic| std::panic::resume_unwind(panic);
            client.join().unwrap_or_else(panicked)
        };
        clients.into_iter().try_for_each(join)
    })?;
    Ok(Count {
        connections: connections.into_inner(),
        failed: failed.into_inner(),
        seconds: begin.elapsed().as_secs_f64(),
        cpu: cpu_time() - cpu,
        kernel: counters(network, way.from)? - before,
    })
}

fn connect(way: &Way, source: Option<SocketAddr>) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(way.to), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.set_reuse_address(true)?;
        socket.bind(&source.into())?;
    }
    socket.set_read_timeout(Some(LIMIT))?;
    socket.connect_timeout(&way.to.into(), LIMIT)?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(&REQUEST)?;
    stream.read_exact(&mut [0; ANSWER.len()])?;
    match way.closes {
        Closes::Server => stream.read_to_end(&mut Vec::new()).map(drop),
        Closes::Client => stream.shutdown(Shutdown::Both),
    }
}

fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn counters(network: &Network, client: &str) -> Result<Counters> {
    let tcp = |host: &str, name: &str| {
        let text = network
            .host(host)?
            .run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))??;
        anyhow::Ok(counter(&text, name))
    };
    let tracked = || std::fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").unwrap_or_default();
    Ok(Counters {
        repeated: tcp(client, "TCPSynRetrans")?.context("the kernel does not count repeated SYNs")?,
        old: tcp("pod1", "PAWSTimewait")?.unwrap_or(0),
        insert_failed: insert_failed(&network.node().run(tracked)?),
    })
}

/// A number of `/proc/net/netstat`: lines in pairs, names and values.
fn counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    let named = |pair: &[&str]| {
        let mut fields = pair[0].split(' ').zip(pair[1].split(' '));
        fields.find(|(field, _)| *field == name)?.1.parse().ok()
    };
    lines.chunks_exact(2).find_map(named)
}

/// The sum over all CPUs, whose lines of hexadecimal numbers follow one of names.
fn insert_failed(text: &str) -> u64 {
    let mut lines = text.lines();
    let names = lines.next().unwrap_or_default();
    let place = names.split_whitespace().position(|name| name == "insert_failed");
    let value = |line: &str| u64::from_str_radix(line.split_whitespace().nth(place?)?, 16).ok();
    lines.filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let netstat = "TcpExt: SyncookiesSent TCPSynRetrans\nTcpExt: 0 17\nIpExt: InOctets\nIpExt: 5\n";
        assert_eq!(counter(netstat, "TCPSynRetrans"), Some(17));
        assert_eq!(counter(netstat, "InOctets"), Some(5));
        assert_eq!(counter(netstat, "PAWSTimewait"), None);
        let stat =
            "entries  insert insert_failed drop\n00000002 00000000 0000000a 00\n00000002 00 00000001 00\n";
        assert_eq!(insert_failed(stat), 11);
    }
}
