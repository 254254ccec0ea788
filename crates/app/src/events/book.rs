//! Which events have been told lately: one that repeats becomes a series instead of another object. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::{Event, Regarding, Severity};
use crate::clock::rfc3339_micros;

/// An event that repeats within this time belongs to the same series.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// A series that goes on is brought up to date this often.
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// The API's limit on a note.
const NOTE: usize = 1024;

/// A request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Delivery {
    /// A new object.
    Create {
        /// Where.
        namespace: String,
        /// The whole object.
        object: Value,
    },
    /// The series of one that exists.
    Patch {
        /// Where.
        namespace: String,
        /// Which.
        name: String,
        /// A merge patch.
        patch: Value,
    },
}

/// What makes two events the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    regarding: Regarding,
    severity: Severity,
    reason: &'static str,
    action: &'static str,
}

#[derive(Debug)]
struct Entry {
    namespace: String,
    name: String,
    count: u32,
    last: Instant,
    last_shown: SystemTime,
    /// When the API server was last told.
    told: Instant,
}

/// Everything told lately.
#[derive(Debug)]
pub(super) struct Book {
    reporter: String,
    entries: HashMap<Key, Entry>,
}

impl Book {
    pub(super) fn new(reporter: String) -> Self {
        Self {
            reporter,
            entries: HashMap::new(),
        }
    }

    /// What to send for an event, if anything: the object at first, the series at the second time, then nothing
    /// until [`Book::tick`] says so.
    pub(super) fn record(&mut self, event: &Event, now: Instant, calendar: SystemTime) -> Option<Delivery> {
        let key = Key {
            regarding: event.regarding.clone(),
            severity: event.severity,
            reason: event.reason,
            action: event.action,
        };
        if let Some(entry) = self.entries.get_mut(&key)
            && now.duration_since(entry.last) < SERIES
        {
            entry.count += 1;
            entry.last = now;
            entry.last_shown = calendar;
            return (entry.count == 2).then(|| entry.tell(now));
        }
        let (namespace, name) = identity(&event.regarding, calendar);
        let object = self.object(event, &namespace, &name, calendar);
        let entry = Entry {
            namespace: namespace.clone(),
            name,
            count: 1,
            last: now,
            last_shown: calendar,
            told: now,
        };
        self.entries.insert(key, entry);
        Some(Delivery::Create { namespace, object })
    }

    /// Series that should be brought up to date or have ended; forgets what is over.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        self.entries.retain(|_, entry| {
            let over = now.duration_since(entry.last) >= SERIES;
            let untold = entry.last > entry.told;
            if untold && (over || now.duration_since(entry.told) >= REFRESH) {
                deliveries.push(entry.tell(now));
            }
            !over
        });
        deliveries
    }

    fn object(&self, event: &Event, namespace: &str, name: &str, calendar: SystemTime) -> Value {
        let mut note = event.note.clone();
        if note.len() > NOTE {
            note.truncate(note.floor_char_boundary(NOTE));
        }
        let regarding = match &event.regarding {
            Regarding::Node(node) => json!({ "apiVersion": "v1", "kind": "Node", "name": &**node }),
            Regarding::Service(service) => json!({
                "apiVersion": "v1",
                "kind": "Service",
                "namespace": service.namespace(),
                "name": service.name(),
            }),
        };
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "namespace": namespace, "name": name },
            "eventTime": rfc3339_micros(calendar),
            "reportingController": "kube-proxy",
            "reportingInstance": self.reporter,
            "action": event.action,
            "reason": event.reason,
            "regarding": regarding,
            "note": note,
            "type": match event.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            },
        })
    }
}

impl Entry {
    fn tell(&mut self, now: Instant) -> Delivery {
        self.told = now;
        let series = json!({ "count": self.count, "lastObservedTime": rfc3339_micros(self.last_shown) });
        Delivery::Patch {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            patch: json!({ "series": series }),
        }
    }
}

/// Namespace and name of a new event.
fn identity(regarding: &Regarding, calendar: SystemTime) -> (String, String) {
    let (namespace, about) = match regarding {
        Regarding::Node(node) => ("default", &**node),
        Regarding::Service(service) => (service.namespace(), service.name()),
    };
    let valid = !about.is_empty()
        && about
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
    let about = if valid { about } else { "ferry" };
    let nanos = calendar
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    (namespace.to_owned(), format!("{about}.{nanos:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_model::ServiceName;
    use std::sync::Arc;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_794_739_671 + seconds)
    }

    #[test]
    fn a_node_event_is_written_as_upstream_writes_it() {
        let mut book = Book::new("kube-proxy-host-1".into());
        let node: Arc<str> = "node-1".into();
        let delivery = book.record(&Event::starting(&node), Instant::now(), at(0));
        let Some(Delivery::Create { namespace, object }) = delivery else {
            panic!("{delivery:?}")
        };
        assert_eq!(namespace, "default");
        assert_eq!(
            object,
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": { "namespace": "default", "name": "node-1.18e83238ca41a600" },
                "eventTime": "2026-11-15T10:47:51.000000Z",
                "reportingController": "kube-proxy",
                "reportingInstance": "kube-proxy-host-1",
                "action": "StartKubeProxy",
                "reason": "Starting",
                "regarding": { "apiVersion": "v1", "kind": "Node", "name": "node-1" },
                "note": "",
                "type": "Normal",
            })
        );
    }

    #[test]
    fn repeats_become_a_series_that_is_told_at_two_every_half_hour_and_at_the_end() {
        let mut book = Book::new("r".into());
        let service = ServiceName::new("shop", "web");
        let event = Event::service_health_check_failed(&service, "no".into());
        let start = Instant::now();
        let record =
            |book: &mut Book, seconds| book.record(&event, start + Duration::from_secs(seconds), at(seconds));
        assert!(
            matches!(record(&mut book, 0), Some(Delivery::Create { namespace, .. }) if namespace == "shop")
        );
        let Some(Delivery::Patch {
            namespace,
            name,
            patch,
        }) = record(&mut book, 30)
        else {
            panic!()
        };
        assert_eq!(
            (namespace.as_str(), name.split('.').next().unwrap()),
            ("shop", "web")
        );
        assert_eq!(
            patch,
            json!({ "series": { "count": 2, "lastObservedTime": "2026-11-15T10:48:21.000000Z" } })
        );
        let mut told = 0;
        for step in 1..=65 {
            let seconds = 30 + step * 30;
            assert_eq!(record(&mut book, seconds), None);
            told += book.tick(start + Duration::from_secs(seconds)).len();
        }
        assert_eq!(told, 1, "half an hour has passed once");
        let end = start + Duration::from_secs(30 + 65 * 30);
        assert_eq!(book.tick(end + Duration::from_secs(300)), []);
        let last = book.tick(end + SERIES);
        assert!(
            matches!(&last[..], [Delivery::Patch { patch, .. }] if patch["series"]["count"] == 67),
            "{last:?}"
        );
        assert!(
            matches!(record(&mut book, 9000), Some(Delivery::Create { .. })),
            "a new one after the end"
        );
    }

    #[test]
    fn a_long_note_is_cut_at_a_letter() {
        let mut book = Book::new("r".into());
        let event = Event::config_refused(&"n".into(), "ä".repeat(2000));
        let Some(Delivery::Create { object, .. }) = book.record(&event, Instant::now(), at(0)) else {
            panic!()
        };
        assert_eq!(object["note"].as_str().unwrap().len(), 1024);
    }
}
