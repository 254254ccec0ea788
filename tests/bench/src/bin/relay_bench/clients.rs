//! The clients: they run in this process, on two threads.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// What a client sends first: how many bytes it wants. Zero keeps the connection open, to be asked byte by byte.
pub(crate) const REQUEST: usize = 8;
const SMALL: u64 = 512;

pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) worst: f64,
}

fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the clients")
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

async fn ask(port: u16, bytes: u64) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(at(port)).await.context("connect")?;
    stream.set_nodelay(true)?;
    stream.write_all(&bytes.to_be_bytes()).await?;
    Ok(stream)
}

/// Short connections, so many at a time: connect, ask, get a small answer, end.
pub(crate) fn rate(port: u16, clients: usize, time: Duration) -> Result<Rate> {
    runtime()?.block_on(async {
        let (start, mut tasks) = (Instant::now(), Vec::new());
        for _ in 0..clients {
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::new();
                let mut answer = Vec::with_capacity(SMALL as usize);
                while start.elapsed() < time {
                    let began = Instant::now();
                    answer.clear();
                    ask(port, SMALL).await?.read_to_end(&mut answer).await?;
                    ensure!(
                        answer.len() as u64 == SMALL,
                        "an answer of {} bytes",
                        answer.len()
                    );
                    times.push(began.elapsed().as_micros() as u64);
                }
                Ok(times)
            }));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await??);
        }
        let took = start.elapsed();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64;
        let count = times.len() as u64;
        Ok(Rate {
            count,
            per_second: count as f64 / took.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            worst: at(1.0),
        })
    })
}

/// Endless answers on a few connections; returns the bytes that came.
pub(crate) fn throughput(port: u16, clients: usize, time: Duration) -> Result<u64> {
    runtime()?.block_on(async {
        let (total, start, mut tasks) = (Arc::new(AtomicU64::new(0)), Instant::now(), Vec::new());
        for _ in 0..clients {
            let total = total.clone();
            tasks.push(tokio::spawn(async move {
                let mut stream = ask(port, u64::MAX).await?;
                let mut buffer = vec![0; 1 << 18];
                while start.elapsed() < time {
                    let count = stream.read(&mut buffer).await?;
                    ensure!(count > 0, "the stream ended early");
                    total.fetch_add(count as u64, Relaxed);
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(total.load(Relaxed))
    })
}

/// Clients that hurt: some ask for endless answers and read nothing of them, the others try again and again to get to
/// an endpoint that does not answer. They do so until the value is dropped.
pub(crate) struct Pests {
    runtime: Option<Runtime>,
}

impl Pests {
    pub(crate) fn start(port: u16, slow: usize, dead_port: u16, dialling: usize) -> Result<Pests> {
        let runtime = runtime()?;
        let stuck = runtime.block_on(async {
            let mut stuck = Vec::new();
            for _ in 0..slow {
                stuck.push(ask(port, u64::MAX).await?);
            }
            anyhow::Ok(stuck)
        })?;
        runtime.spawn(async move {
            let _stuck = stuck;
            std::future::pending::<()>().await;
        });
        for _ in 0..dialling {
            runtime.spawn(async move {
                loop {
                    // Reset when the last attempt has failed.
                    if let Ok(mut stream) = ask(dead_port, SMALL).await {
                        let _ = stream.read(&mut [0]).await;
                    }
                }
            });
        }
        Ok(Pests {
            runtime: Some(runtime),
        })
    }
}

impl Drop for Pests {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Opens `count` connections, with something done half way, calls `meanwhile` when all are open and have answered, and
/// asks each of them again.
pub(crate) fn hold(
    port: u16,
    count: usize,
    halfway: impl FnOnce() -> Result<()>,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    runtime()?.block_on(async {
        let start = Instant::now();
        let mut streams = open(port, count / 2).await?;
        halfway()?;
        streams.extend(open(port, count - count / 2).await?);
        meanwhile()?;
        for stream in &mut streams {
            ping(stream).await?;
        }
        Ok(start.elapsed())
    })
}

async fn open(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    let opening = Arc::new(Semaphore::new(256));
    let mut tasks = Vec::new();
    for _ in 0..count {
        let permit = opening.clone().acquire_owned().await?;
        tasks.push(tokio::spawn(async move {
            let mut stream = ask(port, 0).await?;
            ping(&mut stream).await?;
            drop(permit);
            anyhow::Ok(stream)
        }));
    }
    let mut streams = Vec::new();
    for task in tasks {
        streams.push(task.await??);
    }
    Ok(streams)
}

async fn ping(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"?").await?;
    let mut answer = [0];
    stream
        .read_exact(&mut answer)
        .await
        .context("a held connection does not answer")?;
    ensure!(answer == *b"!", "a held connection answers something else");
    Ok(())
}
