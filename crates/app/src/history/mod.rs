//! What changed lately and why: a ring in the daemon's memory that `ferry history` reads.
//!
//! The loop writes it, anyone may read it at any time. Always holds: the ring is never larger than [`BOUND`], an entry
//! never names more than a few services, endpoints and objects, so a sync pays for what changed and no more.

mod record;
mod report;
mod ring;
mod text;

pub use report::{
    ChangedPort, Entry, HistoryReport, InForce, MoveReport, ObjectReport, RepairReport, ServiceChange, What,
};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ferry_backends::Applied;
use ferry_model::{Before, Event as Fact, Family, Skipped, Snapshot, Update};
use ferry_sources::ChangedObject;

use crate::clock::rfc3339_micros;
use ring::Ring;

/// So many bytes of entries are kept; the oldest go first.
pub const BOUND: usize = 1 << 20;
/// How many changed slices are looked at as they were before.
const LOOKED_AT: usize = 256;

/// The ring, shared.
#[derive(Debug)]
pub struct History(Mutex<Ring>);

/// How a sync went, as far as its history is concerned.
#[derive(Debug)]
pub struct Sync<'a> {
    pub family: Family,
    /// Successful ones of this family so far, this one included.
    pub number: u64,
    pub applied: &'a Applied,
    pub apply: Duration,
    pub after: Duration,
    /// The first and the last change that it brought into force.
    pub changes: Option<(u64, u64)>,
}

impl Default for History {
    fn default() -> Self {
        Self(Mutex::new(Ring::new(BOUND)))
    }
}

impl History {
    /// What is needed to say later why something changed, taken before it does.
    pub fn before(events: &[Fact], snapshot: &Snapshot) -> Before {
        Before::of(events, snapshot, LOOKED_AT)
    }

    /// Everything was listed for the first time.
    pub fn listed(&self, services: usize, slices: usize, plan: Duration) -> u64 {
        self.add(What::Listed {
            services,
            slices,
            plan_seconds: plan.as_secs_f64(),
        })
    }

    /// Something was planned anew. Returns the number of the entry; none where the plan stayed as it was.
    pub fn planned(
        &self,
        objects: &[ChangedObject],
        update: &Update,
        before: &Before,
        snapshot: &Snapshot,
        plan: Duration,
    ) -> Option<u64> {
        if update.replaced.is_empty() && !update.node_changed {
            return None;
        }
        Some(self.add(record::changed(objects, update, before, snapshot, plan)))
    }

    /// A sync succeeded. One that had nothing to do is not worth an entry.
    pub fn synced(&self, sync: &Sync<'_>) {
        let Applied {
            added,
            removed,
            repaired,
            refused,
            ..
        } = sync.applied;
        let did = added + removed + repaired.len() + refused.partial + refused.full;
        if did > 0 || sync.changes.is_some() {
            self.add(record::synced(sync));
        }
    }

    /// A sync failed. The same failure again is counted, not told again.
    pub fn failed(&self, family: Family, error: &str) {
        let time = rfc3339_micros(SystemTime::now());
        let mut ring = self.lock();
        let same = |entry: &Entry| match &entry.what {
            What::Failed {
                family: of,
                error: known,
                ..
            } => of == family.as_str() && known == error,
            _ => false,
        };
        match ring.take_recent(same) {
            Some(Entry {
                number,
                what: What::Failed { family, error, times },
                ..
            }) => {
                let times = times + 1;
                let what = What::Failed { family, error, times };
                ring.keep(&Entry { number, time, what });
            }
            _ => {
                let (family, error) = (family.as_str().to_owned(), error.to_owned());
                let times = 1;
                ring.push(time, What::Failed { family, error, times });
            }
        }
    }

    /// Objects, or parts of them, are newly not served.
    pub fn refused(&self, skipped: &[Skipped]) {
        if !skipped.is_empty() {
            self.add(record::refused(skipped));
        }
    }

    /// What is remembered: of one service, and since a moment, if such are named.
    pub fn report(&self, service: Option<&str>, since: Option<SystemTime>) -> HistoryReport {
        let since = since.map(rfc3339_micros);
        let (entries, bytes, forgotten) = {
            let ring = self.lock();
            (ring.entries(), ring.bytes(), ring.forgotten())
        };
        HistoryReport::of(entries, service, since.as_deref(), bytes, forgotten)
    }

    fn add(&self, what: What) -> u64 {
        let time = rfc3339_micros(SystemTime::now());
        self.lock().push(time, what)
    }

    // An entry is whole before the next can fail, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
