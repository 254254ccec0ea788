//! What was asked of the API server, counted for the metrics `rest_client_*`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// Requests by method and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCount {
    pub method: String,
    /// The HTTP status, or `<error>` where none came.
    pub code: String,
    pub count: u64,
}

/// What is measured of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Seconds until the answer began.
    Duration,
    /// Seconds that it waited for its turn.
    RateLimit,
    /// Bytes of its body.
    RequestSize,
    /// Bytes of the answer's body, unpacked; watches have none.
    ResponseSize,
}

impl Measure {
    pub const ALL: [Measure; 4] = [
        Measure::Duration,
        Measure::RateLimit,
        Measure::RequestSize,
        Measure::ResponseSize,
    ];

    fn bounds(self) -> &'static [f64] {
        match self {
            Measure::Duration | Measure::RateLimit => &SECONDS,
            Measure::RequestSize | Measure::ResponseSize => &BYTES,
        }
    }
}

/// The ages, in seconds, at which certificates are replaced: ten minutes to four years.
const AGES: [f64; 11] = [
    600.0,
    1800.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// How measured values are spread.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds of the buckets but the last.
    pub bounds: &'static [f64],
    /// Not cumulative; the last one counts what is above every bound.
    pub buckets: Vec<u64>,
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Histogram {
            bounds,
            buckets: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket] += 1;
        self.sum += value;
    }
}

/// What credential plugins did.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginUse {
    pub successes: u64,
    pub failures: u64,
    /// When the certificate that was issued last expires.
    pub certificate_expires: Option<SystemTime>,
    /// Seconds that certificates had been valid for when they were replaced.
    pub rotation_age: Histogram,
}

impl Default for PluginUse {
    fn default() -> Self {
        PluginUse {
            successes: 0,
            failures: 0,
            certificate_expires: None,
            rotation_age: Histogram::new(&AGES),
        }
    }
}

/// The counters; shared by everything that talks to the API server.
#[derive(Debug, Default)]
pub struct Requests {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: BTreeMap<(String, Option<u16>), u64>,
    measured: BTreeMap<(Measure, String), Histogram>,
    plugin: PluginUse,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, method: &str, code: Option<u16>, took: Duration) {
        *self.lock().counts.entry((method.to_owned(), code)).or_default() += 1;
        self.note_measure(Measure::Duration, method, took.as_secs_f64());
    }

    pub(super) fn note_measure(&self, measure: Measure, method: &str, value: f64) {
        let mut state = self.lock();
        let histogram = state
            .measured
            .entry((measure, method.to_owned()))
            .or_insert_with(|| Histogram::new(measure.bounds()));
        histogram.observe(value);
    }

    pub(super) fn note_plugin_failure(&self) {
        self.lock().plugin.failures += 1;
    }

    /// A credential plugin answered, with a certificate that ends then, if with any.
    pub(super) fn note_plugin_answer(&self, certificate_expires: Option<SystemTime>) {
        let plugin = &mut self.lock().plugin;
        plugin.successes += 1;
        plugin.certificate_expires = certificate_expires;
    }

    pub(super) fn note_rotation(&self, age: Duration) {
        self.lock().plugin.rotation_age.observe(age.as_secs_f64());
    }

    pub fn counts(&self) -> Vec<RequestCount> {
        let state = self.lock();
        let count = |((method, code), count): (&(String, Option<u16>), &u64)| RequestCount {
            method: method.clone(),
            code: code.map_or_else(|| "<error>".into(), |code| code.to_string()),
            count: *count,
        };
        state.counts.iter().map(count).collect()
    }

    /// One histogram for each method that was used.
    pub fn measured(&self, measure: Measure) -> Vec<(String, Histogram)> {
        let state = self.lock();
        let wanted = state.measured.iter().filter(|((found, _), _)| *found == measure);
        let row =
            |((_, method), histogram): (&(Measure, String), &Histogram)| (method.clone(), histogram.clone());
        wanted.map(row).collect()
    }

    pub fn plugin_use(&self) -> PluginUse {
        self.lock().plugin.clone()
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
        let (_, times) = &requests.measured(Measure::Duration)[0];
        assert_eq!((times.buckets[0], times.buckets[1], times.buckets[12]), (1, 1, 1));
        assert!((times.sum - 99.011).abs() < 1e-9);
    }

    #[test]
    fn each_measure_is_kept_apart() {
        let requests = Requests::default();
        requests.note_measure(Measure::ResponseSize, "GET", 100.0);
        requests.note_measure(Measure::ResponseSize, "POST", 1e9);
        let sizes = requests.measured(Measure::ResponseSize);
        assert_eq!(sizes.len(), 2);
        assert_eq!((sizes[0].1.buckets[1], sizes[1].1.buckets[11]), (1, 1));
        assert!(requests.measured(Measure::RequestSize).is_empty());
    }
}
