//! Counters, gauges and histograms with labels. One short lock each: they are touched a few times per sync.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::text::{Exemplar, Kind, Number, Text};

/// One kind of value that a series can hold.
pub trait Value: std::fmt::Debug + Clone + Send + Sync {
    /// The family's type.
    const KIND: Kind;
    /// Writes the series' samples.
    fn write(&self, text: &mut Text, name: &str, labels: &[(&str, &str)]);
}

/// How much Kubernetes promises of a metric; its help text begins with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Nothing.
    Alpha,
    /// Its name and labels stay.
    Beta,
    /// It stays as it is.
    Stable,
    /// The metric is not of Kubernetes' making.
    Unstated,
}

impl Stability {
    /// As it is written, if it is.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Alpha => Some("ALPHA"),
            Self::Beta => Some("BETA"),
            Self::Stable => Some("STABLE"),
            Self::Unstated => None,
        }
    }
}

/// What a scrape says of a family before its samples.
#[derive(Debug)]
struct Declaration {
    name: &'static str,
    help: String,
    labels: &'static [&'static str],
}

impl Declaration {
    fn new(name: &'static str, stability: Stability, help: &str, labels: &'static [&'static str]) -> Self {
        let help = match stability.as_str() {
            Some(stability) => format!("[{stability}] {help}"),
            None => help.to_owned(),
        };
        Self { name, help, labels }
    }

    /// Writes the family, unless there is nothing to write.
    fn write<V: Value, L: AsRef<str>>(&self, text: &mut Text, rows: impl IntoIterator<Item = (Vec<L>, V)>) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return;
        }
        text.family(self.name, V::KIND, &self.help);
        for (values, value) in rows {
            debug_assert_eq!(values.len(), self.labels.len(), "{}", self.name);
            let values = values.iter().map(AsRef::as_ref);
            let labels: Vec<(&str, &str)> = self.labels.iter().copied().zip(values).collect();
            value.write(text, self.name, &labels);
        }
    }
}

/// A family whose values are read when it is written.
#[derive(Debug)]
pub struct Scraped<V> {
    declaration: Declaration,
    value: PhantomData<V>,
}

impl<V: Value> Scraped<V> {
    /// Declares it.
    pub fn new(
        name: &'static str,
        stability: Stability,
        help: &str,
        labels: &'static [&'static str],
    ) -> Self {
        Self {
            declaration: Declaration::new(name, stability, help, labels),
            value: PhantomData,
        }
    }

    /// Writes a series for each row of label values, if there are any.
    pub fn write<L: AsRef<str>>(&self, text: &mut Text, rows: impl IntoIterator<Item = (Vec<L>, V)>) {
        self.declaration.write(text, rows);
    }

    /// Writes the only series of a family without labels.
    pub fn write_one(&self, text: &mut Text, value: V) {
        self.write(text, [(Vec::<&str>::new(), value)]);
    }
}

/// A metric family: a value for each combination of label values that was seen.
#[derive(Debug)]
pub struct Vector<V> {
    declaration: Declaration,
    zero: V,
    series: Mutex<BTreeMap<Vec<String>, V>>,
}

/// A family that can be written out.
pub trait Family: std::fmt::Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> &str;
    /// Writes it, unless nothing was seen yet.
    fn write(&self, text: &mut Text);
    /// Forgets everything seen.
    fn reset(&self);
}

impl<V: Value> Vector<V> {
    fn with_zero(
        name: &'static str,
        stability: Stability,
        help: &str,
        labels: &'static [&'static str],
        zero: V,
    ) -> Self {
        let vector = Self {
            declaration: Declaration::new(name, stability, help, labels),
            zero,
            series: Mutex::default(),
        };
        vector.fill();
        vector
    }

    /// A family without labels exists from the start, one with labels only once something was seen.
    fn fill(&self) {
        if self.declaration.labels.is_empty() {
            self.lock().insert(Vec::new(), self.zero.clone());
        }
    }

    fn update(&self, labels: &[&str], change: impl FnOnce(&mut V)) {
        debug_assert_eq!(
            labels.len(),
            self.declaration.labels.len(),
            "{}",
            self.declaration.name
        );
        change(
            self.lock()
                .entry(key(labels))
                .or_insert_with(|| self.zero.clone()),
        );
    }

    /// The value of one series, if it was ever touched.
    pub fn get(&self, labels: &[&str]) -> Option<V> {
        self.lock().get(&key(labels)).cloned()
    }

    // A value is changed in one step that cannot panic, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<String>, V>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|&label| label.to_owned()).collect()
}

impl<V: Value> Family for Vector<V> {
    fn name(&self) -> &str {
        self.declaration.name
    }

    fn write(&self, text: &mut Text) {
        let series = self.lock();
        let rows = series.iter();
        self.declaration
            .write(text, rows.map(|(labels, value)| (labels.clone(), value.clone())));
    }

    fn reset(&self) {
        self.lock().clear();
        self.fill();
    }
}

/// A value that only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Count(pub f64);

impl Value for Count {
    const KIND: Kind = Kind::Counter;

    fn write(&self, text: &mut Text, name: &str, labels: &[(&str, &str)]) {
        text.sample(name, labels.iter().copied(), self.0);
    }
}

/// A value that goes up and down.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Level(pub f64);

impl Value for Level {
    const KIND: Kind = Kind::Gauge;

    fn write(&self, text: &mut Text, name: &str, labels: &[(&str, &str)]) {
        text.sample(name, labels.iter().copied(), self.0);
    }
}

/// Observations counted by size.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Upper bounds, ascending, without the infinite one.
    bounds: Arc<[f64]>,
    /// Observations in each bucket alone; the last is beyond every bound.
    counts: Vec<u64>,
    sum: f64,
    /// The last of those that came with a name, by bucket.
    exemplars: BTreeMap<usize, Exemplar>,
}

impl Buckets {
    /// Observations that were counted elsewhere: in each bucket alone, the last one beyond every bound.
    pub fn counted(bounds: &[f64], counts: Vec<u64>, sum: f64) -> Self {
        Self {
            bounds: bounds.into(),
            counts,
            sum,
            exemplars: BTreeMap::new(),
        }
    }

    /// How many observations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Counts a value; tells in which bucket.
    fn observe(&mut self, value: f64) -> usize {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
        bucket
    }
}

impl Value for Buckets {
    const KIND: Kind = Kind::Histogram;

    fn write(&self, text: &mut Text, name: &str, labels: &[(&str, &str)]) {
        let bucket = format!("{name}_bucket");
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut total = 0;
        for (index, (bound, count)) in bounds.zip(&self.counts).enumerate() {
            total += count;
            let bound = Number(bound).to_string();
            let labels = labels.iter().copied().chain([("le", bound.as_str())]);
            text.example(&bucket, labels, total as f64, self.exemplars.get(&index));
        }
        text.sample(&format!("{name}_sum"), labels.iter().copied(), self.sum);
        text.sample(&format!("{name}_count"), labels.iter().copied(), total as f64);
    }
}

/// A family of counters.
pub type Counters = Vector<Count>;
/// A family of gauges.
pub type Gauges = Vector<Level>;
/// A family of histograms.
pub type Histograms = Vector<Buckets>;
/// Counters that are read when they are written.
pub type ScrapedCounters = Scraped<Count>;
/// Gauges that are read when they are written.
pub type ScrapedGauges = Scraped<Level>;
/// Histograms that are read when they are written.
pub type ScrapedHistograms = Scraped<Buckets>;

impl Counters {
    /// Counters with the given labels.
    pub fn new(
        name: &'static str,
        stability: Stability,
        help: &str,
        labels: &'static [&'static str],
    ) -> Self {
        Self::with_zero(name, stability, help, labels, Count(0.0))
    }

    /// Counts one.
    pub fn increment(&self, labels: &[&str]) {
        self.add(labels, 1.0);
    }

    /// Counts several.
    pub fn add(&self, labels: &[&str], more: f64) {
        self.update(labels, |count| count.0 += more);
    }

    /// Takes over a count that is kept elsewhere.
    pub fn set(&self, labels: &[&str], count: f64) {
        self.update(labels, |value| value.0 = count);
    }
}

impl Gauges {
    /// Gauges with the given labels.
    pub fn new(
        name: &'static str,
        stability: Stability,
        help: &str,
        labels: &'static [&'static str],
    ) -> Self {
        Self::with_zero(name, stability, help, labels, Level(0.0))
    }

    /// Sets one gauge.
    pub fn set(&self, labels: &[&str], value: f64) {
        self.update(labels, |level| level.0 = value);
    }
}

impl Histograms {
    /// Histograms with the given labels and upper bounds.
    pub fn new(
        name: &'static str,
        stability: Stability,
        help: &str,
        labels: &'static [&'static str],
        bounds: Vec<f64>,
    ) -> Self {
        let counts = vec![0; bounds.len() + 1];
        Self::with_zero(
            name,
            stability,
            help,
            labels,
            Buckets::counted(&bounds, counts, 0.0),
        )
    }

    /// Observes a value.
    pub fn observe(&self, labels: &[&str], value: f64) {
        self.update(labels, |buckets| {
            buckets.observe(value);
        });
    }

    /// Observes a value that stands as an example for its bucket until the next one.
    pub fn observe_exemplar(&self, labels: &[&str], exemplar: Exemplar) {
        self.update(labels, |buckets| {
            let bucket = buckets.observe(exemplar.value);
            buckets.exemplars.insert(bucket, exemplar);
        });
    }

    /// Observes a duration in seconds.
    pub fn observe_duration(&self, labels: &[&str], duration: Duration) {
        self.observe(labels, duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(family: &dyn Family) -> String {
        let mut text = Text::default();
        family.write(&mut text);
        text.finish()
    }

    #[test]
    fn labelled_families_appear_once_seen_and_plain_ones_at_once() {
        let labelled = Counters::new("a_total", Stability::Alpha, "A", &["code"]);
        assert_eq!(text_of(&labelled), "");
        labelled.increment(&["503"]);
        labelled.increment(&["200"]);
        labelled.increment(&["200"]);
        assert_eq!(
            text_of(&labelled),
            "# HELP a_total [ALPHA] A\n# TYPE a_total counter\na_total{code=\"200\"} 2\na_total{code=\"503\"} 1\n"
        );
        let plain = Gauges::new("b", Stability::Alpha, "B", &[]);
        assert_eq!(text_of(&plain), "# HELP b [ALPHA] B\n# TYPE b gauge\nb 0\n");
        plain.set(&[], 1.5);
        plain.reset();
        assert!(text_of(&plain).ends_with("b 0\n"));
    }

    #[test]
    fn histograms_are_cumulative_and_bounds_inclusive() {
        let histogram = Histograms::new("h", Stability::Alpha, "H", &["f"], vec![0.001, 1.0]);
        for value in [0.001, 0.5, 1.0, 2.0] {
            histogram.observe(&["x"], value);
        }
        assert_eq!(
            text_of(&histogram),
            "# HELP h [ALPHA] H\n# TYPE h histogram\n\
             h_bucket{f=\"x\",le=\"0.001\"} 1\nh_bucket{f=\"x\",le=\"1\"} 3\nh_bucket{f=\"x\",le=\"+Inf\"} 4\n\
             h_sum{f=\"x\"} 3.501\nh_count{f=\"x\"} 4\n"
        );
    }

    #[test]
    fn label_values_are_escaped() {
        let gauge = Gauges::new("g", Stability::Alpha, "line\nbreak \\", &["l"]);
        gauge.set(&["a\"b\\c\nd"], f64::INFINITY);
        assert_eq!(
            text_of(&gauge),
            "# HELP g [ALPHA] line\\nbreak \\\\\n# TYPE g gauge\ng{l=\"a\\\"b\\\\c\\nd\"} +Inf\n"
        );
    }
}
