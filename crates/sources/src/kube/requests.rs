//! What was asked of the API server, counted for the metrics `rest_client_*`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The upper bounds, in seconds, of the buckets of [`RequestTimes`].
pub const REQUEST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Requests by method and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCount {
    pub method: String,
    /// The HTTP status, or `<error>` where none came.
    pub code: String,
    pub count: u64,
}

/// How long requests of a method took until the answer began.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestTimes {
    pub method: String,
    /// Not cumulative; the last one counts what is above every bound.
    pub buckets: [u64; REQUEST_SECONDS.len() + 1],
    pub sum: Duration,
}

/// The counters; shared by everything that talks to the API server.
#[derive(Debug, Default)]
pub struct Requests {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: BTreeMap<(String, Option<u16>), u64>,
    times: BTreeMap<String, RequestTimes>,
}

impl Requests {
    pub fn note(&self, method: &str, code: Option<u16>, took: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state.counts.entry((method.to_owned(), code)).or_default() += 1;
        let times = state
            .times
            .entry(method.to_owned())
            .or_insert_with(|| RequestTimes {
                method: method.to_owned(),
                buckets: Default::default(),
                sum: Duration::ZERO,
            });
        let bucket = REQUEST_SECONDS.partition_point(|bound| *bound < took.as_secs_f64());
        times.buckets[bucket] += 1;
        times.sum += took;
    }

    pub fn counts(&self) -> Vec<RequestCount> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |((method, code), count): (&(String, Option<u16>), &u64)| RequestCount {
            method: method.clone(),
            code: code.map_or_else(|| "<error>".into(), |code| code.to_string()),
            count: *count,
        };
        state.counts.iter().map(count).collect()
    }

    pub fn times(&self) -> Vec<RequestTimes> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .times
            .values()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_result_and_time() {
        let requests = Requests::default();
        requests.note("GET", Some(200), Duration::from_millis(5));
        requests.note("GET", Some(200), Duration::from_millis(6));
        requests.note("GET", None, Duration::from_secs(99));
        let counts: Vec<_> = requests
            .counts()
            .into_iter()
            .map(|c| (c.method, c.code, c.count))
            .collect();
        assert_eq!(
            counts,
            [
                ("GET".into(), "<error>".into(), 1),
                ("GET".into(), "200".into(), 2)
            ]
        );
        let times = &requests.times()[0];
        assert_eq!((times.buckets[0], times.buckets[1], times.buckets[12]), (1, 1, 1));
        assert_eq!(times.sum, Duration::from_millis(99_011));
    }
}
