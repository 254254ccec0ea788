//! The mailbox itself: one lock, one condition.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use ferry_model::Skipped;

use super::change::Change;
use super::state::{Counts, Kind, Mail, NodeState, Problem, State};

/// Shared by the sources (any thread, never blocking for long) and the sync loop (one plain thread).
///
/// ```
/// use ferry_sources::{Kind, Mailbox};
///
/// let mailbox = Mailbox::new(&Kind::ALL);
/// // a source reports changes with `put`, and `listed` once per kind;
/// for kind in Kind::ALL {
///     mailbox.listed(kind);
/// }
/// // the loop waits, then takes what there is.
/// mailbox.wait(None);
/// assert!(mailbox.take().first);
/// ```
#[derive(Debug)]
pub struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    /// A mailbox that opens once each of the `expected` kinds was listed.
    pub fn new(expected: &[Kind]) -> Self {
        Self::started_at(expected, SystemTime::now())
    }

    /// The same with a given start: trigger times before it are not counted.
    pub fn started_at(expected: &[Kind], started: SystemTime) -> Self {
        Mailbox {
            state: Mutex::new(State::new(expected, started)),
            changed: Condvar::new(),
        }
    }

    // What the sources call.

    /// Reports one changed object.
    pub fn put(&self, change: Change) {
        self.put_all([change]);
    }

    /// Reports several at once: the loop sees all of them or none.
    pub fn put_all(&self, changes: impl IntoIterator<Item = Change>) {
        let mut state = self.lock();
        for change in changes {
            state.put(change);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A kind has had its first complete list, all of which has been put here.
    pub fn listed(&self, kind: Kind) {
        self.lock().listed(kind);
        self.changed.notify_all();
    }

    /// Says that something cannot be followed at present, or (`None`) that it can again.
    pub fn set_problem(&self, about: &str, reason: Option<String>) {
        self.lock().set_problem(about, reason);
    }

    // What the sync loop and the servers call.

    /// Ends a wait of the loop, now or the next one: for a stop, a new configuration, a flushed table.
    pub fn wake(&self) {
        self.lock().wake();
        self.changed.notify_all();
    }

    /// Waits until there is something to take, someone called [`Mailbox::wake`], or the time has come.
    /// Tells whether it was not the time.
    pub fn wait(&self, until: Option<Instant>) -> bool {
        self.wait_for(until, State::has_news)
    }

    /// Waits until someone called [`Mailbox::wake`], or the time has come; what changes meanwhile coalesces here.
    pub fn wait_for_wake(&self, until: Instant) {
        self.wait_for(Some(until), State::take_wake);
    }

    /// Everything that changed since the last call; nothing while a kind has not been listed.
    pub fn take(&self) -> Mail {
        self.lock().take()
    }

    /// Whether every expected kind was listed.
    pub fn is_open(&self) -> bool {
        self.lock().is_open()
    }

    /// The kinds that were not listed yet.
    pub fn missing(&self) -> Vec<Kind> {
        self.lock().missing()
    }

    /// Everything that is skipped at present.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.lock().skipped()
    }

    pub fn skipped_count(&self) -> usize {
        self.lock().skipped_count()
    }

    /// What cannot be followed at present: resources of an API server, broken files.
    pub fn problems(&self) -> Vec<Problem> {
        self.lock().problems()
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts()
    }

    /// What is known about our Node; needs no other kind to be listed.
    pub fn node(&self) -> NodeState {
        self.lock().node()
    }

    /// Waits until what is known about our Node is `enough`, or the time has come; tells what is known then.
    pub fn wait_for_node(&self, until: Option<Instant>, enough: impl Fn(&NodeState) -> bool) -> NodeState {
        self.wait_for(until, |state| enough(&state.node()));
        self.node()
    }

    fn wait_for(&self, until: Option<Instant>, mut done: impl FnMut(&mut State) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            if done(&mut state) {
                return true;
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let Some(left) = until
                        .checked_duration_since(Instant::now())
                        .filter(|left| !left.is_zero())
                    else {
                        return false;
                    };
                    self.changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    // Every change to the state is complete before the next can fail, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
