//! When what a proxy wrote is in force, seen from outside and without asking the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferry_host::nftables::{Monitor, Received};
use ferry_lab::netns::Namespace;

use crate::process;

/// How often a process is looked at, and the longest wait for a notification before looking whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(200);

/// A thread that tells when something was committed.
#[derive(Debug)]
pub(crate) struct Commits {
    told: Receiver<Result<Instant>>,
    stop: Arc<AtomicBool>,
    /// After this long without a commit, a change is done.
    calm: Duration,
}

impl Commits {
    /// nf_tables tells of every transaction, and iptables-nft writes there too.
    pub(crate) fn of_nf_tables(node: &Namespace) -> Result<Commits> {
        let path = node.path();
        let (ready, opened) = mpsc::channel();
        let commits = Commits::start(Duration::from_millis(100), move |tell, stop| {
            let open = || -> Result<Monitor> {
                ferry_lab::netns::enter(&path)?;
                // Which objects change is of no interest, so no table is named.
                let mut monitor = Monitor::open("")?;
                monitor.subscribe()?;
                Ok(monitor)
            };
            let mut monitor = match open() {
                Ok(monitor) => monitor,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok(()));
            while !stop.load(Ordering::Relaxed) {
                let received = monitor.receive(WAIT, |_| {
                    let _ = tell.send(Ok(Instant::now()));
                });
                let trouble = match received {
                    Ok(Received::Some | Received::Nothing) => continue,
                    Ok(Received::Lost) => anyhow::anyhow!("notifications were lost"),
                    Err(error) => error.into(),
                };
                let _ = tell.send(Err(trouble));
                return;
            }
        });
        opened.recv().context("the watch ended")??;
        Ok(commits)
    }

    /// x_tables tells nothing: a change is in force when the program that made it has ended, which shows in the time
    /// that the proxy's ended children took.
    pub(crate) fn of_children(pid: u32) -> Commits {
        Commits::start(Duration::from_millis(300), move |tell, stop| {
            let mut last = None;
            while !stop.load(Ordering::Relaxed) {
                match process::child_ticks(pid) {
                    Ok(now) if last.replace(now).is_some_and(|before| before != now) => {
                        let _ = tell.send(Ok(Instant::now()));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                }
                thread::sleep(LOOK_EVERY);
            }
        })
    }

    fn start(
        calm: Duration,
        work: impl FnOnce(Sender<Result<Instant>>, Arc<AtomicBool>) + Send + 'static,
    ) -> Commits {
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        thread::spawn(move || work(tell, stopped));
        Commits { told, stop, calm }
    }

    /// Waits until nothing has been committed for a while; gives the last commit, if there was any.
    pub(crate) fn settle(&self) -> Result<Option<Instant>> {
        let (begin, mut last) = (Instant::now(), None);
        while begin.elapsed() < Duration::from_secs(120) {
            match self.told.recv_timeout(self.calm) {
                Ok(at) => last = Some(at?),
                Err(RecvTimeoutError::Timeout) => return Ok(last),
                Err(RecvTimeoutError::Disconnected) => bail!("the watch for commits ended"),
            }
        }
        bail!("commits without end")
    }

    /// Waits for the next change to be in force: its last commit counts.
    pub(crate) fn next_change(&self, limit: Duration) -> Result<Instant> {
        let first = self.told.recv_timeout(limit).context("no commit in time")??;
        Ok(self.settle()?.unwrap_or(first))
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
