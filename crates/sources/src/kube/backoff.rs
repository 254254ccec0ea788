//! How long to wait before the next attempt, and how fast requests may follow each other.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// Doubles from `first` to `most`, each time with up to as much again, so that nodes do not move in step.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Backoff {
            first,
            most,
            next: first,
        }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(super) fn next(&mut self) -> Duration {
        self.next_within(self.most)
    }

    /// The same with another bound for this time.
    pub(super) fn next_within(&mut self, most: Duration) -> Duration {
        let base = self.next.min(most);
        self.next = (base * 2).min(self.most);
        jittered(base)
    }
}

/// The time with up to as much again.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(1.0 + rand::rng().random::<f64>())
}

/// A token bucket: `qps` requests a second, `burst` of them at once. Shared by all requests of a client.
#[derive(Debug)]
pub(super) struct Limiter {
    qps: f64,
    burst: f64,
    state: Mutex<Tokens>,
}

#[derive(Debug)]
struct Tokens {
    left: f64,
    at: Instant,
}

impl Limiter {
    /// A negative rate means no limit; zero means kube-proxy's default of 5, in bursts of 10.
    pub(super) fn new(qps: f32, burst: u32) -> Option<Self> {
        let qps = if qps == 0.0 { 5.0 } else { f64::from(qps) };
        let burst = if burst == 0 { 10.0 } else { f64::from(burst) };
        (qps > 0.0).then(|| Limiter {
            qps,
            burst,
            state: Mutex::new(Tokens {
                left: burst,
                at: Instant::now(),
            }),
        })
    }

    /// Waits for this request's turn; tells how long that took.
    pub(super) async fn turn(&self) -> Duration {
        let wait = self.take();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }

    fn take(&self) -> Duration {
        let mut tokens = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let refilled = tokens.left + now.duration_since(tokens.at).as_secs_f64() * self.qps;
        tokens.at = now;
        tokens.left = refilled.min(self.burst) - 1.0;
        // A rate next to nothing asks for more time than there is.
        Duration::try_from_secs_f64((-tokens.left).max(0.0) / self.qps).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
        for least in [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0] {
            let wait = backoff.next().as_secs_f64();
            assert!((least..=2.0 * least).contains(&wait), "{wait} for {least}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(1600));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_wait_for_their_turn() {
        let limiter = Limiter::new(5.0, 10).unwrap();
        let start = Instant::now();
        for _ in 0..10 {
            assert_eq!(limiter.turn().await, Duration::ZERO);
        }
        for _ in 0..5 {
            limiter.turn().await;
        }
        let took = start.elapsed();
        assert!((0.99..1.1).contains(&took.as_secs_f64()), "{took:?}");
        let slowest = Limiter::new(1e-30, 1).unwrap();
        assert_eq!(slowest.take(), Duration::ZERO);
        assert_eq!(
            slowest.take(),
            Duration::MAX,
            "a rate next to nothing is no crash"
        );
        assert!(Limiter::new(-1.0, 10).is_none());
        assert_eq!(
            Limiter::new(0.0, 0).map(|limiter| (limiter.qps, limiter.burst)),
            Some((5.0, 10.0))
        );
    }
}
