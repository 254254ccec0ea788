//! When one family is due for a sync. Pure: time comes in as an argument.

use std::time::{Duration, Instant};

/// The rhythm of syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    /// At least this long from the end of one sync to the start of the next.
    pub min: Duration,
    /// A failed sync is tried again after at most this long; sooner at first.
    pub retry: Duration,
    /// Without any request a sync takes place after this long.
    pub period: Duration,
}

/// The first pause after a failure; each further one is twice as long, up to the retry time.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Paces one family.
#[derive(Debug, Clone)]
pub struct Pacer {
    rhythm: Rhythm,
    requested: bool,
    not_before: Instant,
    next: Instant,
    failures: u32,
}

impl Pacer {
    /// The first request is served at once.
    pub fn new(rhythm: Rhythm, now: Instant) -> Self {
        Self {
            rhythm,
            requested: false,
            not_before: now,
            next: now + rhythm.period,
            failures: 0,
        }
    }

    /// Something changed. Requests coalesce.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// Asks for a sync at this time at the latest, though nothing changed.
    pub fn no_later_than(&mut self, time: Instant) {
        self.next = self.next.min(time.max(self.not_before));
    }

    /// Whether a sync should run now.
    pub fn due(&self, now: Instant) -> bool {
        now >= self.wake_at()
    }

    /// When a sync should run next, as things stand.
    pub fn wake_at(&self) -> Instant {
        if self.requested {
            self.not_before.min(self.next)
        } else {
            self.next
        }
    }

    /// Whether a request waits for its time: until then nothing more needs to be known.
    pub fn held_back(&self, now: Instant) -> bool {
        self.requested && !self.due(now)
    }

    /// How many syncs in a row have failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        self.ended(now, self.rhythm.period);
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures += 1;
        let doubled = FIRST_RETRY.saturating_mul(1 << (self.failures - 1).min(20));
        self.ended(now, doubled.min(self.rhythm.retry).min(self.rhythm.period));
    }

    fn ended(&mut self, now: Instant, pause: Duration) {
        self.requested = false;
        self.not_before = now + self.rhythm.min;
        self.next = now + pause.max(self.rhythm.min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHM: Rhythm = Rhythm {
        min: Duration::from_secs(2),
        retry: Duration::from_secs(30),
        period: Duration::from_secs(3600),
    };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_first_request_is_served_at_once_and_the_next_after_the_minimum() {
        let start = Instant::now();
        let mut pacer = Pacer::new(RHYTHM, start);
        assert!(!pacer.due(start));
        pacer.request();
        assert!(pacer.due(start));
        pacer.succeeded(start + seconds(5));
        assert!(!pacer.due(start + seconds(5)));
        pacer.request();
        pacer.request();
        assert!(pacer.held_back(start + seconds(6)));
        assert_eq!(pacer.wake_at(), start + seconds(7), "counted from the end");
        assert!(pacer.due(start + seconds(7)));
        pacer.succeeded(start + seconds(7));
        assert!(!pacer.due(start + seconds(100)), "requests coalesce");
    }

    #[test]
    fn without_requests_the_period_counts() {
        let start = Instant::now();
        let mut pacer = Pacer::new(RHYTHM, start);
        assert_eq!(pacer.wake_at(), start + seconds(3600));
        pacer.succeeded(start + seconds(10));
        assert_eq!(pacer.wake_at(), start + seconds(3610));
        pacer.no_later_than(start + seconds(60));
        pacer.no_later_than(start + seconds(90));
        assert_eq!(pacer.wake_at(), start + seconds(60));
        pacer.no_later_than(start);
        assert_eq!(pacer.wake_at(), start + seconds(12), "the minimum still holds");
    }

    #[test]
    fn failures_are_retried_ever_later_but_not_later_than_the_sync_period() {
        let start = Instant::now();
        let mut pacer = Pacer::new(RHYTHM, start);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pacer.failed(start);
            pauses.push((pacer.wake_at() - start).as_secs());
        }
        assert_eq!(pauses, [2, 2, 4, 8, 16, 30, 30, 30]);
        pacer.request();
        assert_eq!(
            pacer.wake_at(),
            start + seconds(2),
            "a change does not wait for the retry"
        );
        pacer.succeeded(start);
        assert_eq!(pacer.wake_at(), start + seconds(3600));
        pacer.failed(start);
        assert_eq!(pacer.wake_at(), start + seconds(2), "counted anew");
    }

    #[test]
    fn a_zero_minimum_runs_back_to_back() {
        let start = Instant::now();
        let mut pacer = Pacer::new(
            Rhythm {
                min: Duration::ZERO,
                ..RHYTHM
            },
            start,
        );
        pacer.succeeded(start);
        pacer.request();
        assert!(pacer.due(start));
    }
}
