//! What others want of the loop beside objects: stop, look again, new addresses, an answer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_backends::Backend;
use ferry_model::{Host, Planner};
use ferry_sources::Mailbox;

use crate::modes::Mode;

/// Why the loop ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The process was asked to end.
    Signal(&'static str),
    /// A valid new configuration, of this mode, waits to be read.
    Reconfigure(Mode),
    /// Another process has taken over.
    Succeeded,
    /// Something that the daemon cannot do without failed.
    Failed(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(name) => f.write_str(name),
            Self::Reconfigure(_) => f.write_str("the configuration changed"),
            Self::Succeeded => f.write_str("a successor has taken over"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// A question that only the loop's thread can answer.
pub type Question = Box<dyn FnOnce(&Planner, &mut dyn Backend) + Send>;

/// Shared by everyone who wants something of the loop, which is woken at its mailbox.
pub struct Signal {
    state: Mutex<State>,
    mailbox: Arc<Mailbox>,
}

#[derive(Default)]
struct State {
    stop: Option<Stop>,
    alarm: bool,
    host: Option<Arc<Host>>,
    questions: VecDeque<Question>,
}

/// Everything that was raised since the last look.
#[derive(Default)]
pub(super) struct Raised {
    pub(super) stop: Option<Stop>,
    pub(super) alarm: bool,
    pub(super) host: Option<Arc<Host>>,
    pub(super) questions: VecDeque<Question>,
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signal")
    }
}

impl Signal {
    /// Signals to the loop that waits on this mailbox.
    pub fn new(mailbox: Arc<Mailbox>) -> Self {
        Self {
            state: Mutex::default(),
            mailbox,
        }
    }

    /// Ends the loop; the first reason counts.
    pub fn stop(&self, why: Stop) {
        self.raise(|state| {
            state.stop.get_or_insert(why);
        });
    }

    /// Something else changed what we wrote, or a backend has work to do.
    pub fn alarm(&self) {
        self.raise(|state| state.alarm = true);
    }

    /// The host's addresses are these now.
    pub fn host(&self, host: Host) {
        self.raise(|state| state.host = Some(Arc::new(host)));
    }

    /// Asks the loop's thread; it answers between two syncs.
    pub fn ask(&self, question: Question) {
        self.raise(|state| state.questions.push_back(question));
    }

    /// Why the loop should end, if it should.
    pub fn stopping(&self) -> Option<Stop> {
        self.lock().stop.clone()
    }

    fn raise(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.mailbox.wake();
    }

    pub(super) fn take(&self) -> Raised {
        let mut state = self.lock();
        Raised {
            stop: state.stop.clone(),
            alarm: std::mem::take(&mut state.alarm),
            host: state.host.take(),
            questions: std::mem::take(&mut state.questions),
        }
    }

    // Every change to the state is complete before the next can fail, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
