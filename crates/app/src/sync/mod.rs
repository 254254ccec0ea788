//! The sync loop: one plain thread that owns the plan and the backend.
//! Takes changed objects from the mailbox, plans again what they touch, lets the backend write it down, family by
//! family, and tells health, metrics, health-check ports and the conntrack thread what came of it.
//! Nothing is written before everything was listed; a family that fails is tried again and holds nobody back.

mod board;
mod conntrack;
mod held_ports;
mod outcome;
mod pacer;
mod pending;
mod repairs;
mod signal;
mod tell;

#[cfg(test)]
mod tests;

pub use board::{Board, FamilyNotice, Notice};
pub use conntrack::{Flows, Sweeper, Work};
pub use held_ports::HeldPorts;
pub use pacer::{Pacer, Rhythm};
pub use signal::{Question, Signal, Stop};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_backends::Backend;
use ferry_model::{Before, Contest, Event as Fact, Family, PerFamily, Planner, Update};
use ferry_sources::{ChangedObject, Mail, Mailbox};

use crate::clock::{Now, unix_seconds};
use crate::events::{Event, Recorder};
use crate::history::History;
use crate::metrics::Metrics;
use crate::servers::health::Health;
use crate::servers::service_health::ServiceHealth;
use pending::Pending;
use repairs::Repairs;
use tell::SkippedLog;

/// What the loop works with.
pub struct Parts {
    /// Where objects come from.
    pub mailbox: Arc<Mailbox>,
    /// Where everything else comes from.
    pub signal: Arc<Signal>,
    /// The facts and the plan.
    pub planner: Planner,
    /// The kernel.
    pub backend: Box<dyn Backend>,
    /// The families to serve.
    pub families: BTreeSet<Family>,
    /// How often.
    pub rhythm: Rhythm,
    /// Where health is told.
    pub health: Arc<Health>,
    /// Where things are counted.
    pub metrics: Arc<Metrics>,
    /// Where events go.
    pub recorder: Recorder,
    /// The health-check node ports.
    pub service_health: ServiceHealth,
    /// Keeps services' ports from processes on this node, where that was asked for.
    pub held_ports: Option<HeldPorts>,
    /// Removes stale flows, where the mode needs it.
    pub sweeper: Option<Sweeper>,
    /// Where the state is told.
    pub board: Arc<Board>,
    /// Where it is remembered what happened.
    pub history: Arc<History>,
    /// Runs once, after every family was in force for the first time.
    pub after_first_sync: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("families", &self.families)
            .finish_non_exhaustive()
    }
}

/// The loop.
#[derive(Debug)]
pub struct Loop {
    parts: Parts,
    pacers: PerFamily<Pacer>,
    listed: bool,
    /// What each family has not brought into force yet.
    pending: PerFamily<Pending>,
    /// What each family has put right lately.
    repairs: PerFamily<Repairs>,
    /// Families that were in force at least once.
    served: BTreeSet<Family>,
    skipped_log: SkippedLog,
    /// Those that were told already.
    contests: BTreeSet<Contest>,
}

/// Many bad objects at once are in the status; events for all would only bury each other.
const MAX_SKIPPED_EVENTS: usize = 20;
impl Loop {
    /// Ready to [`Loop::run`].
    pub fn new(parts: Parts) -> Self {
        let now = Instant::now();
        let pacers = PerFamily::from_fn(|_| Pacer::new(parts.rhythm, now));
        Self {
            parts,
            pacers,
            listed: false,
            pending: PerFamily::default(),
            repairs: PerFamily::default(),
            served: BTreeSet::new(),
            skipped_log: SkippedLog::new(now),
            contests: BTreeSet::new(),
        }
    }

    /// Works until told to stop; leaves the data plane as it is and gives the backend back.
    pub fn run(mut self) -> (Stop, Box<dyn Backend>) {
        for family in self.families() {
            self.parts.health.started(family, Now::read());
            self.parts.board.change_family(family, |_| {});
            self.note_queued(family);
        }
        loop {
            self.wait();
            let raised = self.parts.signal.take();
            if let Some(stop) = raised.stop {
                return (stop, self.parts.backend);
            }
            if raised.alarm && self.parts.backend.is_retired() {
                return (Stop::Succeeded, self.parts.backend);
            }
            for question in raised.questions {
                question(&self.parts.planner, &mut *self.parts.backend);
            }
            if let Some(host) = raised.host {
                self.plan(Mail {
                    events: vec![Fact::Host(host)],
                    ..Mail::default()
                });
            }
            if raised.alarm {
                self.look_again();
            }
            if !self.any_held_back() {
                self.take_mail();
            }
            self.sync_due();
        }
    }

    fn families(&self) -> Vec<Family> {
        self.parts.families.iter().copied().collect()
    }

    /// Waits for the next thing to do. While a sync is held back, changed objects stay in the mailbox, where they
    /// coalesce.
    fn wait(&self) {
        let wake_at = self
            .families()
            .into_iter()
            .map(|family| self.pacers.get(family).wake_at())
            .min();
        let Some(wake_at) = wake_at.filter(|_| self.listed) else {
            self.parts.mailbox.wait(None);
            return;
        };
        if self.any_held_back() {
            self.parts.mailbox.wait_for_wake(wake_at);
        } else {
            self.parts.mailbox.wait(Some(wake_at));
        }
    }

    fn any_held_back(&self) -> bool {
        let now = Instant::now();
        self.parts
            .families
            .iter()
            .any(|family| self.pacers.get(*family).held_back(now))
    }

    fn take_mail(&mut self) {
        let mail = self.parts.mailbox.take();
        self.skipped_log.tell(&mail.skipped, Instant::now());
        self.parts.history.refused(&mail.skipped);
        let node = &self.parts.planner.plan().node().name;
        for skipped in mail.skipped.iter().take(MAX_SKIPPED_EVENTS) {
            self.parts.recorder.record(Event::not_served(node, skipped));
        }
        if mail.first {
            self.listed = true;
            self.parts.board.change(|notice| notice.listed = true);
            // What the start needed and the loop does not makes room for the first, large sync.
            ferry_host::process::release_program_pages();
            self.plan(mail);
            self.request_all();
        } else if !mail.events.is_empty() || !mail.triggers.is_empty() {
            self.plan(mail);
        }
    }

    /// Lets every family look for what others may have changed, but not all the time.
    fn look_again(&mut self) {
        let now = Instant::now();
        for family in self.families() {
            let not_before = self.repairs.get(family).not_before(now);
            if not_before > now && self.listed {
                self.pacers.get_mut(family).no_later_than(not_before);
            } else {
                self.request(family);
            }
        }
    }

    fn request_all(&mut self) {
        for family in self.families() {
            self.request(family);
        }
    }

    fn request(&mut self, family: Family) {
        if !self.listed {
            return;
        }
        self.pacers.get_mut(family).request();
        self.parts.health.queued(family, Now::read());
        self.note_queued(family);
    }

    fn note_queued(&self, family: Family) {
        let now = unix_seconds(SystemTime::now());
        self.parts.metrics.last_queued.set(&[family.as_str()], now);
    }

    /// Takes changed facts, plans again, and notes for each family what it has to bring into force.
    fn plan(&mut self, mail: Mail) {
        let start = Instant::now();
        tell::objects(&mail.events);
        let before = History::before(&mail.events, self.parts.planner.snapshot());
        let update = self.parts.planner.update(mail.events);
        tell::services(&update);
        let took = start.elapsed();
        self.parts.metrics.sync_phase.observe_duration(&["plan"], took);
        let change = self.remember(mail.first, &mail.objects, &update, &before, took);
        for family in self.families() {
            let triggers = mail.triggers.iter().filter(|trigger| {
                let service = self.parts.planner.plan().service(&trigger.service);
                trigger.family.is_none_or(|own| own == family)
                    && service.is_some_and(|service| service.ports(family).next().is_some())
            });
            let triggers = triggers.map(|trigger| (trigger.service.clone(), trigger.time));
            let pending = self.pending.get_mut(family);
            if pending.note(family, &update, triggers) {
                pending.changes =
                    change.map(|change| (pending.changes.map_or(change, |(first, _)| first), change));
                self.request(family);
            }
        }
        self.tell_contests();
        self.publish_counts();
    }

    /// Notes what was planned anew; returns the number under which it is remembered.
    fn remember(
        &self,
        first: bool,
        objects: &[ChangedObject],
        update: &Update,
        before: &Before,
        took: Duration,
    ) -> Option<u64> {
        let (planner, history) = (&self.parts.planner, &self.parts.history);
        let snapshot = planner.snapshot();
        if first {
            let services = planner.plan().tally().services;
            return Some(history.listed(services, snapshot.slice_count(), took));
        }
        history.planned(objects, update, before, snapshot, took)
    }

    /// Each contest is told once, by log and event, to both sides; again only after it was settled.
    fn tell_contests(&mut self) {
        let contests = self.parts.planner.plan().contests().collect();
        for contest in tell::unheard_of(&mut self.contests, contests) {
            for event in Event::contested(&contest) {
                self.parts.recorder.record(event);
            }
        }
    }

    fn publish_counts(&self) {
        let plan = self.parts.planner.plan();
        let tally = *plan.tally();
        let contested = plan.skipped();
        let slices = self.parts.planner.snapshot().slice_count();
        let metrics = &self.parts.metrics;
        metrics.services.set(&[], tally.services as f64);
        metrics
            .skipped
            .set(&[], (self.parts.mailbox.skipped_count() + contested.len()) as f64);
        for family in self.families() {
            let of_family = tally.families.get(family);
            metrics.ports.set(&[family.as_str()], of_family.ports as f64);
            metrics
                .endpoints
                .set(&[family.as_str()], of_family.endpoints as f64);
        }
        self.parts.board.change(|notice| {
            notice.tally = tally;
            notice.slices = slices;
            notice.contested = contested;
        });
    }

    fn sync_due(&mut self) {
        for family in self.families() {
            if self.listed && self.pacers.get(family).due(Instant::now()) {
                self.sync(family);
            }
        }
        if self.served.len() == self.parts.families.len()
            && let Some(after_first_sync) = self.parts.after_first_sync.take()
        {
            after_first_sync();
            ferry_host::process::release_program_pages();
        }
    }

    /// Before rules take the traffic, so that a conflict is told in time.
    fn hold_ports(&mut self, family: Family) {
        let Some(held) = &mut self.parts.held_ports else {
            return;
        };
        let (plan, pending) = (self.parts.planner.plan(), self.pending.get(family));
        if pending.node_changed {
            held.follow(plan, family, plan.services().map(|service| &service.name));
        } else {
            held.follow(plan, family, &pending.services);
        }
    }

    fn sync(&mut self, family: Family) {
        self.parts
            .board
            .change(|notice| notice.syncing = Some((family, SystemTime::now())));
        self.hold_ports(family);
        let start = Instant::now();
        let outcome = self.parts.backend.apply(self.parts.planner.plan(), family);
        let took = start.elapsed();
        let labels = [family.as_str()];
        self.parts.metrics.sync_duration.observe_duration(&labels, took);
        self.parts.metrics.sync_phase.observe_duration(&["apply"], took);
        self.parts.board.change(|notice| notice.syncing = None);
        let after_success = self.pacers.get(family).failures() == 0 && self.served.contains(&family);
        let pacer = self.pacers.get_mut(family);
        match outcome {
            Ok(_) => pacer.succeeded(Instant::now()),
            Err(_) => pacer.failed(Instant::now()),
        }
        if let Some(due) = self.parts.backend.next_due() {
            pacer.no_later_than(Instant::now() + due);
        }
        match outcome {
            Ok(applied) => self.succeeded(family, applied, took),
            Err(error) => self.failed(family, &error, after_success),
        }
    }
}
