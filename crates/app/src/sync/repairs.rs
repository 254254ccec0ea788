//! How fast what others change is put right: at once while that is rare, ever later while somebody keeps undoing it.
//! Two daemons with different settings on one node would else keep each other busy. Pure: time comes in as an argument.

use std::time::{Duration, Instant};

/// Repairs in a row that are made at once, each told by itself.
const FREE: u32 = 10;
/// After this long without a repair everything before is forgotten.
const QUIET: Duration = Duration::from_secs(60);
/// The pause after the first repair beyond these; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Never wait longer.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How often a fight that goes on is told.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// What to tell of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// It is rare.
    Single,
    /// Somebody keeps changing the rules: so many repairs in a row, the next one after this pause.
    Fight { repairs: u32, pause: Duration },
    /// Nothing; it was told not long ago.
    Nothing,
}

/// The repairs of one family.
#[derive(Debug, Clone, Default)]
pub(super) struct Repairs {
    /// Without a quiet time in between.
    in_a_row: u32,
    last: Option<Instant>,
    reported: Option<Instant>,
}

impl Repairs {
    /// Something was put right.
    pub(super) fn repaired(&mut self, now: Instant) -> Report {
        if self.last.is_some_and(|last| now >= last + QUIET) {
            *self = Self::default();
        }
        self.in_a_row += 1;
        self.last = Some(now);
        if self.in_a_row <= FREE {
            return Report::Single;
        }
        if self.reported.is_some_and(|at| now < at + REPORT_INTERVAL) {
            return Report::Nothing;
        }
        self.reported = Some(now);
        Report::Fight {
            repairs: self.in_a_row,
            pause: self.pause(),
        }
    }

    /// When the next repair may be made.
    pub(super) fn not_before(&self, now: Instant) -> Instant {
        self.last.map_or(now, |last| last + self.pause())
    }

    fn pause(&self) -> Duration {
        match self.in_a_row.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(beyond) => FIRST_PAUSE.saturating_mul(1 << beyond.min(10)).min(MAX_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_repairs_are_made_at_once_and_a_fight_slows_down() {
        let mut now = Instant::now();
        let mut repairs = Repairs::default();
        assert_eq!(repairs.not_before(now), now);
        for _ in 0..FREE {
            assert_eq!(repairs.repaired(now), Report::Single);
            assert_eq!(repairs.not_before(now), now);
        }
        let mut pauses = Vec::new();
        let mut reports = Vec::new();
        for _ in 0..30 {
            reports.push(repairs.repaired(now));
            pauses.push((repairs.not_before(now) - now).as_millis());
            now = repairs.not_before(now);
        }
        assert_eq!(pauses[..7], [250, 500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(pauses[29], 5000);
        let told = reports
            .iter()
            .filter(|report| **report != Report::Nothing)
            .count();
        assert_eq!(told, 3, "in more than two minutes: {reports:?}");
        let pause = Duration::from_millis(250);
        assert_eq!(reports[0], Report::Fight { repairs: 11, pause });
    }

    #[test]
    fn a_fight_that_is_over_is_forgotten() {
        let start = Instant::now();
        let mut repairs = Repairs::default();
        for _ in 0..20 {
            repairs.repaired(start);
        }
        let later = start + QUIET;
        assert!(repairs.not_before(later) < later);
        assert_eq!(repairs.repaired(later), Report::Single);
        assert_eq!(repairs.not_before(later), later);
    }
}
