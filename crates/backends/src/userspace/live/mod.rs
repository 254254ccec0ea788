//! The doors that are open, and how they become those of the next plan.
//!
//! A change touches the service it concerns: endpoints are swapped under the running doors, a door whose policy
//! changes keeps its socket, and only doors that are no longer wanted are closed, after nothing leads to them any more.

mod door;
mod port;
mod rules;
mod state;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_model::{Family, Plan, PortPlan};

use super::handover::{self, Offering, Predecessor};
use super::ruleset::Ingress;
use crate::RelayedFlows;
use crate::relay::{Relay, Settings};
use crate::{Alarm, Applied, Backend, Error, Inspection, Traffic};
use state::State;

/// How soon to try again what did not work.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a successor waits for every family to be applied before it takes over for good.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// How userspace mode is set up.
#[derive(Clone, Debug)]
pub struct Options {
    pub ingress: Ingress,
    /// Where proxy ports listen when rules lead to them; none or a wildcard means everywhere.
    pub bind_address: Option<IpAddr>,
    /// Where proxy ports come from; none lets the kernel choose.
    pub ports: Option<RangeInclusive<u16>>,
    pub relay: Settings,
    /// How often rules are compared with what should be there.
    pub check: Duration,
    /// A unix socket by which a successor gets our sockets, and we got those of a predecessor.
    pub handover: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ingress: Ingress::default(),
            bind_address: None,
            ports: None,
            relay: Settings::default(),
            check: Duration::from_secs(30),
            handover: None,
        }
    }
}

/// The backend.
pub struct Userspace {
    state: Arc<Mutex<State>>,
    handover: Option<PathBuf>,
    alarm: Alarm,
    predecessor: Option<(Predecessor, Instant)>,
    offering: Option<Offering>,
}

impl std::fmt::Debug for Userspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Userspace")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Userspace {
    /// Starts the relay, with the sockets of a predecessor if there is one. It serves nothing before a plan is applied.
    /// `alarm` is called from another thread when a successor has taken over.
    pub fn open(options: Options, alarm: Alarm) -> Result<Self, Error> {
        let relay =
            Relay::start(options.relay.clone()).map_err(Error::opening("start the relay's threads"))?;
        let mut state = State::new(&options, relay);
        let mut predecessor = None;
        if let Some(path) = &options.handover {
            match handover::inherit(path) {
                Ok(Some((process, transfer))) => {
                    state.inherit(transfer);
                    predecessor = Some((process, Instant::now()));
                }
                Ok(None) => {}
                // Starting without it is worse for a moment, not starting would be worse for good.
                Err(error) => tracing::warn!(%error, path = %path.display(), "no sockets were handed over"),
            }
        }
        let mut backend = Userspace {
            state: Arc::new(Mutex::new(state)),
            handover: options.handover,
            alarm,
            predecessor,
            offering: None,
        };
        if backend.predecessor.is_none() {
            backend.offer();
        }
        Ok(backend)
    }

    /// Makes our sockets available to a successor.
    fn offer(&mut self) {
        let Some(path) = &self.handover else { return };
        let (state, retiring, alarm) = (self.state.clone(), self.state.clone(), self.alarm.clone());
        let transfer = move || lock(&state).transfer();
        let retire = move || {
            lock(&retiring).retire();
            alarm();
        };
        match Offering::start(path, transfer, retire) {
            Ok(offering) => self.offering = Some(offering),
            // A restart will be noticed; that is no reason not to serve.
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "Sockets cannot be handed over to a successor: a restart will cut connections")
            }
        }
    }

    /// Once every family that the predecessor served is applied, it can stop. Says whether it has.
    fn complete_takeover(&mut self) -> bool {
        let Some((_, since)) = &self.predecessor else {
            return false;
        };
        if !lock(&self.state).has_settled_in() && since.elapsed() < TAKEOVER_TIMEOUT {
            return false;
        }
        if let Some((predecessor, _)) = self.predecessor.take() {
            if let Err(error) = predecessor.taken() {
                tracing::warn!(%error, "the predecessor was not told, or did not answer, that its sockets were taken");
            }
            lock(&self.state).forget_transfer();
            self.offer();
        }
        true
    }
}

impl Backend for Userspace {
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let applied = lock(&self.state).apply(plan, family)?;
        if self.complete_takeover() && !applied.warnings.is_empty() {
            // What the predecessor was in the way of may work now.
            return lock(&self.state).apply(plan, family);
        }
        Ok(applied)
    }

    fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error> {
        lock(&self.state).differences(plan, family)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.offering = None;
        lock(&self.state).cleanup()
    }

    fn next_due(&self) -> Option<Duration> {
        let due = lock(&self.state).next_due();
        match self.predecessor {
            Some(_) => Some(due.map_or(RETRY_INTERVAL, |due| due.min(RETRY_INTERVAL))),
            None => due,
        }
    }

    fn traffic(&mut self) -> Result<Vec<Traffic>, Error> {
        Ok(lock(&self.state).traffic())
    }

    fn inspect(&mut self, _plan: &Plan, port: &PortPlan) -> Result<Inspection, Error> {
        lock(&self.state).inspect(port)
    }

    fn relayed(&self) -> Option<Vec<RelayedFlows>> {
        Some(lock(&self.state).relayed())
    }

    fn notes(&self) -> Vec<String> {
        lock(&self.state).notes()
    }

    fn is_retired(&self) -> bool {
        lock(&self.state).is_retired()
    }

    fn open_connections(&self) -> usize {
        lock(&self.state).open_connections()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
