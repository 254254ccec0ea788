//! What the loop tells about itself, readable by anyone at any time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ferry_model::{Family, Skipped, Tally};

/// The loop's notice board.
#[derive(Debug, Default)]
pub struct Board(Mutex<Notice>);

/// What hangs there.
#[derive(Debug, Clone, Default)]
pub struct Notice {
    /// Everything was listed, and the loop has begun.
    pub listed: bool,
    /// Since when a sync has been running, and of which family.
    pub syncing: Option<(Family, SystemTime)>,
    /// Each family served.
    pub families: BTreeMap<Family, FamilyNotice>,
    /// Sums over the plan.
    pub tally: Tally,
    /// EndpointSlices known.
    pub slices: usize,
    /// Frontends that lost against another service.
    pub contested: Vec<Skipped>,
}

/// How one family fares.
#[derive(Debug, Clone, Default)]
pub struct FamilyNotice {
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Syncs that failed.
    pub failures: u64,
    /// When everything known was last in force.
    pub last_success: Option<SystemTime>,
    /// How long the last successful sync took.
    pub last_duration: Duration,
    /// The last failure, gone after a success.
    pub error: Option<String>,
    /// Repairs of what others had changed.
    pub repairs: u64,
    /// The last of them.
    pub last_repair: Option<String>,
    /// Warnings of the last successful sync.
    pub warnings: Vec<String>,
}

impl Board {
    /// A copy of everything.
    pub fn read(&self) -> Notice {
        self.lock().clone()
    }

    /// Successful syncs of a family.
    pub(super) fn syncs(&self, family: Family) -> u64 {
        self.lock().families.get(&family).map_or(0, |notice| notice.syncs)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Notice)) {
        change(&mut self.lock());
    }

    pub(super) fn change_family(&self, family: Family, change: impl FnOnce(&mut FamilyNotice)) {
        change(self.lock().families.entry(family).or_default());
    }

    // Notices are independent of each other, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Notice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
