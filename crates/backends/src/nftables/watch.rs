//! The watch on the table: a thread that hears the kernel's notifications and tells our own transactions from others'.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_host::nftables::{Client, Error, Family, Monitor, Received, Transaction};

use crate::Alarm;

/// How long the thread waits before it looks whether it is still wanted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for the notification of a transaction that is known to have happened.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_millis(200);

/// What others changed in the table of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForeignChange {
    /// The processes that did it, as far as the kernel told.
    pub(super) by: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct State {
    /// The last transaction that was heard of.
    heard: u32,
    changed: [Option<ForeignChange>; 2],
}

#[derive(Debug, Default)]
struct Board {
    state: Mutex<State>,
    news: Condvar,
    unwanted: AtomicBool,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches as long as it lives.
#[derive(Debug)]
pub(super) struct Watch {
    board: Arc<Board>,
}

impl Watch {
    /// Starts to watch. `generation` is the last one that is known to be good: what happened since then and before
    /// the first notification counts as a change by others.
    pub(super) fn start(
        mut monitor: Monitor,
        client: &mut Client,
        generation: Option<u32>,
        alarm: Alarm,
    ) -> Result<Self, Error> {
        monitor.subscribe()?;
        let now = client.generation()?;
        let board = Arc::new(Board::default());
        {
            let mut state = board.state();
            state.heard = now.id;
            if generation != Some(now.id) {
                state.changed = [Some(ForeignChange::default()), Some(ForeignChange::default())];
                drop(state);
                alarm();
            }
        }
        let port = client.port();
        let listener = Listener {
            monitor,
            board: Arc::clone(&board),
            own_port: port,
            alarm,
        };
        let thread = std::thread::Builder::new().name("nftables-watch".into());
        thread
            .spawn(move || listener.run())
            .map_err(|source| ferry_host::netlink::Error::Setup {
                step: "watching thread",
                source,
            })?;
        Ok(Self { board })
    }

    /// What others did to a family's table since the last call.
    pub(super) fn take(&self, family: Family) -> Option<ForeignChange> {
        self.board.state().changed[index(family)].take()
    }

    /// The same, but only if nothing was heard of since this generation.
    pub(super) fn take_until(&self, family: Family, generation: u32) -> Option<ForeignChange> {
        let mut state = self.board.state();
        reached(generation, state.heard).then(|| state.changed[index(family)].take())?
    }

    /// Whether no transaction up to this one touched the table. Waits a little for it to be heard of.
    pub(super) fn is_harmless(&self, generation: u32) -> bool {
        let deadline = Instant::now() + NOTIFICATION_TIMEOUT;
        let mut state = self.board.state();
        while !reached(state.heard, generation) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .board
                .news
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.changed.iter().all(Option::is_none)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.board.unwanted.store(true, Ordering::Relaxed);
    }
}

/// The thread's own things.
struct Listener {
    monitor: Monitor,
    board: Arc<Board>,
    own_port: u32,
    alarm: Alarm,
}

impl Listener {
    fn run(mut self) {
        while !self.board.unwanted.load(Ordering::Relaxed) {
            let mut heard = Vec::new();
            let received = self
                .monitor
                .receive(POLL_INTERVAL, |transaction| heard.push(transaction));
            heard.into_iter().for_each(|transaction| self.hear(transaction));
            match received {
                Ok(Received::Nothing | Received::Some) => {}
                Ok(Received::Lost) => self.lost(),
                Err(_) => {
                    // A socket that cannot be read will not get better; without it every transaction is checked by
                    // its generation, and an unheard one leads to a full look.
                    self.lost();
                    return;
                }
            }
        }
    }

    fn hear(&self, transaction: Transaction) {
        let mut state = self.board.state();
        state.heard = transaction.generation.id;
        let mut changed = false;
        if transaction.port != self.own_port {
            for family in transaction.changed {
                let noticed = state.changed[index(family)].get_or_insert_default();
                let process = &transaction.generation;
                noticed
                    .by
                    .insert(format!("{} (pid {})", process.process, process.pid));
                changed = true;
            }
        }
        drop(state);
        self.board.news.notify_all();
        if changed && !self.board.unwanted.load(Ordering::Relaxed) {
            (self.alarm)();
        }
    }

    /// Notifications were lost: anything may have happened.
    fn lost(&self) {
        for noticed in &mut self.board.state().changed {
            noticed.get_or_insert_default();
        }
        self.board.news.notify_all();
        if !self.board.unwanted.load(Ordering::Relaxed) {
            (self.alarm)();
        }
    }
}

fn index(family: Family) -> usize {
    match family {
        Family::Ip => 0,
        Family::Ip6 => 1,
    }
}

/// Whether a counter that may wrap has come to a value.
fn reached(counter: u32, value: u32) -> bool {
    counter.wrapping_sub(value) as i32 >= 0
}
