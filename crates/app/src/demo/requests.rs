//! A client that asks the service over and over, from outside the cluster, and writes down who answered.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferry_host::netns::Namespace;

const PATIENCE: Duration = Duration::from_secs(3);
/// Where the question is when, a lost packet must not wait for its retransmission.
const IMPATIENCE: Duration = Duration::from_millis(200);
const PACE: Duration = Duration::from_millis(3);

/// Who answered how often, and what went wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    pub(super) by_pod: BTreeMap<String, usize>,
    pub(super) failures: BTreeMap<String, usize>,
}

impl Answers {
    pub(super) fn count(&self) -> usize {
        self.by_pod.values().sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.failures.values().sum()
    }

    fn note(&mut self, answer: std::io::Result<String>) {
        match answer {
            Ok(pod) => *self.by_pod.entry(pod).or_default() += 1,
            Err(error) => *self.failures.entry(error.kind().to_string()).or_default() += 1,
        }
    }
}

impl std::fmt::Display for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pods = self.by_pod.iter().map(|(pod, count)| format!("{pod} {count}"));
        let failures = self
            .failures
            .iter()
            .map(|(failure, count)| format!("{failure} {count}"));
        f.write_str(&pods.chain(failures).collect::<Vec<_>>().join(", "))
    }
}

fn ask(service: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&service, timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Asks a number of times, one after the other.
pub(super) fn ask_times(client: &Namespace, service: SocketAddr, times: usize) -> Result<Answers> {
    let mut answers = Answers::default();
    client.run(|| (0..times).for_each(|_| answers.note(ask(service, PATIENCE))))?;
    Ok(answers)
}

/// Asks until `enough`; how long that took, or `None` if it never was within the limit.
pub(super) fn ask_until(
    client: &Namespace,
    service: SocketAddr,
    limit: Duration,
    enough: impl Fn(&std::io::Result<String>) -> bool + Send + Sync,
) -> Result<Option<Duration>> {
    let start = Instant::now();
    let reached = client.run(|| {
        while start.elapsed() < limit {
            if enough(&ask(service, IMPATIENCE)) {
                return true;
            }
            thread::sleep(PACE);
        }
        false
    })?;
    Ok(reached.then(|| start.elapsed()))
}

/// A client that goes on asking in the background.
#[derive(Debug)]
pub(super) struct Stream {
    stop: Arc<AtomicBool>,
    answers: Arc<Mutex<Answers>>,
    thread: JoinHandle<()>,
}

impl Stream {
    pub(super) fn start(client: &Namespace, service: SocketAddr) -> Result<Self> {
        let (stop, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Answers::default())),
        );
        let (stopped, noted) = (Arc::clone(&stop), Arc::clone(&answers));
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                let answer = ask(service, PATIENCE);
                if let Ok(mut answers) = noted.lock() {
                    answers.note(answer);
                }
                thread::sleep(PACE);
            }
        };
        // A thread inherits the namespace of the one that starts it.
        let thread = client.run(|| thread::Builder::new().name("requests".into()).spawn(work))?;
        Ok(Stream {
            stop,
            answers,
            thread: thread.context("starting a thread for requests")?,
        })
    }

    /// What was answered since the last call.
    pub(super) fn take(&self) -> Answers {
        self.answers
            .lock()
            .map(|mut answers| std::mem::take(&mut *answers))
            .unwrap_or_default()
    }

    /// Waits until something was answered since the last [`Stream::take`].
    pub(super) fn wait_for_answer(&self, limit: Duration) {
        let start = Instant::now();
        let answered = || self.answers.lock().is_ok_and(|answers| answers.count() > 0);
        while !answered() && start.elapsed() < limit {
            thread::sleep(PACE);
        }
    }

    pub(super) fn stop(self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        // A panic in it would have been printed; its answers so far still count.
        let _ = self.thread.join();
        self.answers
            .lock()
            .map(|answers| answers.clone())
            .unwrap_or_default()
    }
}
