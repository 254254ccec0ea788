//! How the daemon ends: connections that go through this process are not cut without need.
//!
//! In userspace mode traffic lives in the process. A process that is to end, or whose sockets a successor has, stays
//! until its connections are over, within limits. A changed configuration cannot simply replace the program in place:
//! another process stands in, takes the sockets over and serves by the new configuration, while this one waits for
//! its connections to end. Then the program is replaced, under the process id that service managers know, and takes
//! the sockets back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use ferry_backends::Backend;
use ferry_host::process::{self, StandIn};
use tokio::signal::unix::SignalKind;

use crate::modes::Mode;
use crate::sync::{Signal, Stop};

/// How long connections that go through this process may go on after SIGTERM; a pod has 30 s by default.
const LINGER: Duration = Duration::from_secs(25);
/// How long they may go on after a successor has taken over: as long as those to a removed endpoint.
const LINGER_BEHIND_SUCCESSOR: Duration = Duration::from_secs(3600);
/// How long what is under way may take to end after a signal where no connection goes through this process. Whatever is
/// cut off is put right by the next start.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is left to do.
#[derive(Debug)]
pub(super) enum Ending {
    /// Nothing.
    Over(Stop),
    /// To start over in place, while another process may stand in.
    Again(Option<StandIn>),
}

/// The signals that ask the daemon to end.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    first: OnceLock<(&'static str, Instant)>,
    /// What goes through this process is worth waiting for.
    relaying: AtomicBool,
    /// Whoever waits for connections to end knows the signal.
    finishing: AtomicBool,
}

impl Interrupts {
    /// Listens, on a thread of its own: signals count also when everything else has stopped. As the first process of a
    /// container the daemon would ignore them otherwise. A second signal ends the daemon at once, and so does the first
    /// where what is under way, such as a hung program or server, does not end in time. SIGUSR1 and SIGUSR2 mean
    /// nothing, but would end a process that does not listen to them.
    pub(super) fn listen(signal: &Arc<Signal>) -> anyhow::Result<Arc<Self>> {
        let interrupts = Arc::new(Self::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("listening for signals")?;
        let listen = |kind| {
            let _in_runtime = runtime.enter();
            tokio::signal::unix::signal(kind).context("listening for signals")
        };
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let (mut user1, mut user2) = (
            listen(SignalKind::user_defined1())?,
            listen(SignalKind::user_defined2())?,
        );
        let (told, signal) = (Arc::clone(&interrupts), Arc::clone(signal));
        let follow = async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = user1.recv() => continue,
                    _ = user2.recv() => continue,
                    () = told.overdue() => {
                        tracing::warn!("Ending in the middle of what is under way");
                        std::process::exit(0);
                    }
                };
                if told.first.set((name, Instant::now())).is_err() {
                    std::process::exit(0);
                }
                // Whoever waits for a program, waits no longer.
                process::end_children();
                signal.stop(Stop::Signal(name));
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || runtime.block_on(follow))?;
        Ok(interrupts)
    }

    /// From now on connections go through this process.
    pub(super) fn relaying(&self) {
        self.relaying.store(true, Ordering::Relaxed);
    }

    /// Resolves when a signal has been there for too long without anybody acting on it.
    async fn overdue(&self) {
        let Some((_, since)) = self.first.get() else {
            return std::future::pending().await;
        };
        let limit = if self.relaying.load(Ordering::Relaxed) {
            LINGER
        } else {
            STOP_TIMEOUT
        };
        tokio::time::sleep_until((*since + limit).into()).await;
        if self.finishing.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    fn first(&self) -> Option<&'static str> {
        self.first.get().map(|(name, _)| *name)
    }

    /// A deadline, or an earlier one after a signal: SIGTERM leaves some time, SIGINT none.
    fn bring_forward(&self, deadline: Instant) -> Instant {
        match self.first.get() {
            None => deadline,
            Some(("SIGTERM", at)) => deadline.min(*at + LINGER),
            Some((_, at)) => *at,
        }
    }

    /// Waits until it is done, for so long at most.
    fn wait(&self, limit: Duration, mut done: impl FnMut() -> bool) {
        self.finishing.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + limit;
        while !done() && Instant::now() < self.bring_forward(deadline) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Lets what goes through this process end by itself, as far as the reason to stop allows.
pub(super) fn finish(stop: Stop, mode: Mode, backend: &dyn Backend, interrupts: &Interrupts) -> Ending {
    let limit = match stop {
        Stop::Reconfigure(next) if mode.relays => return hand_on(next, backend, interrupts),
        Stop::Reconfigure(_) => return Ending::Again(None),
        Stop::Failed(_) => return Ending::Over(stop),
        Stop::Signal(_) => LINGER,
        Stop::Succeeded => LINGER_BEHIND_SUCCESSOR,
    };
    if backend.open_connections() > 0 {
        tracing::info!(
            connections = backend.open_connections(),
            "Waiting for open connections to end; another signal ends them"
        );
    }
    interrupts.wait(limit, || backend.open_connections() == 0);
    tell_what_is_left(backend);
    Ending::Over(stop)
}

/// Lets another process stand in, by the new configuration, until nothing goes through this one any more.
fn hand_on(next: Mode, backend: &dyn Backend, interrupts: &Interrupts) -> Ending {
    let mut stand_in = match process::stand_in() {
        Ok(stand_in) => stand_in,
        Err(error) => {
            tracing::warn!(err = %error, "No other process can stand in: starting again cuts connections");
            return Ending::Again(None);
        }
    };
    tracing::info!(
        connections = backend.open_connections(),
        "Another process stands in until the connections through this one have ended"
    );
    // In another mode there are no sockets to take over.
    let is_handed_on = || backend.is_retired() || !next.relays;
    interrupts.wait(LINGER_BEHIND_SUCCESSOR, || {
        let quiet = is_handed_on() && backend.open_connections() == 0;
        quiet || stand_in.has_ended() || interrupts.first().is_some()
    });
    if let Some(name) = interrupts.first() {
        return end_both(name, stand_in, backend, interrupts);
    }
    tell_what_is_left(backend);
    if stand_in.has_ended() {
        tracing::warn!("The process that stood in has ended");
        return Ending::Again(None);
    }
    if process::is_stand_in() {
        // The first process will come back and take over from the last.
        interrupts.wait(3 * LINGER_BEHIND_SUCCESSOR, || {
            stand_in.has_ended() || interrupts.first().is_some()
        });
        return match interrupts.first() {
            Some(name) => end_both(name, stand_in, backend, interrupts),
            None => Ending::Over(Stop::Succeeded),
        };
    }
    if !next.relays {
        // What it wrote stays in force.
        stand_in.terminate();
        interrupts.wait(LINGER, || stand_in.has_ended());
        return Ending::Again(None);
    }
    Ending::Again(Some(stand_in))
}

fn end_both(
    name: &'static str,
    mut stand_in: StandIn,
    backend: &dyn Backend,
    interrupts: &Interrupts,
) -> Ending {
    stand_in.terminate();
    interrupts.wait(LINGER, || stand_in.has_ended() && backend.open_connections() == 0);
    tell_what_is_left(backend);
    Ending::Over(Stop::Signal(name))
}

fn tell_what_is_left(backend: &dyn Backend) {
    let left = backend.open_connections();
    if left > 0 {
        tracing::warn!(connections = left, "Ending with connections still open");
    }
}
