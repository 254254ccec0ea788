//! The bridge from `tracing` to klog's lines.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::format::{MAX_TEXT, Record, Value};
use super::{Logging, PLAIN};
use crate::bounded::bounded;
use crate::clock;

/// Takes a finished line; the first argument says whether it is for stdout rather than stderr.
pub(super) type Sink = Box<dyn Fn(bool, &[u8]) + Send + Sync>;

/// Prints events as klog would. Clones share their settings.
#[derive(Clone)]
pub struct KlogLayer {
    shared: Arc<Shared>,
}

struct Shared {
    settings: RwLock<Arc<Logging>>,
    verbosity: AtomicU32,
    sink: Sink,
    pid: u32,
}

impl fmt::Debug for KlogLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KlogLayer")
            .field("settings", &self.settings())
            .finish_non_exhaustive()
    }
}

impl KlogLayer {
    pub(crate) fn new(logging: Logging, sink: Sink) -> Self {
        let verbosity = AtomicU32::new(logging.verbosity);
        let settings = RwLock::new(Arc::new(logging));
        Self {
            shared: Arc::new(Shared {
                settings,
                verbosity,
                sink,
                pid: std::process::id(),
            }),
        }
    }

    fn settings(&self) -> Arc<Logging> {
        self.shared
            .settings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Logs differently from now on.
    pub fn configure(&self, logging: Logging) {
        self.shared.verbosity.store(logging.verbosity, Ordering::Relaxed);
        *self
            .shared
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(logging);
        tracing::callsite::rebuild_interest_cache();
    }

    pub fn verbosity(&self) -> u32 {
        self.shared.verbosity.load(Ordering::Relaxed)
    }

    pub fn set_verbosity(&self, verbosity: u32) {
        self.shared.verbosity.store(verbosity, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// How verbose the log is where this comes from.
    fn limit(&self, metadata: &Metadata<'_>) -> u32 {
        let settings = self.settings();
        let file = metadata.file().unwrap_or_default();
        let by_file = settings
            .patterns
            .iter()
            .find_map(|pattern| pattern.verbosity_of(file));
        by_file.unwrap_or(0).max(self.verbosity())
    }
}

/// The verbosity that an event has by its level alone.
fn verbosity_of(metadata: &Metadata<'_>) -> u32 {
    let ours = metadata.target().starts_with("ferry");
    match *metadata.level() {
        Level::ERROR | Level::WARN => 0,
        Level::INFO if ours => 0,
        Level::DEBUG if ours => 2,
        Level::INFO => 4,
        Level::TRACE if ours => 4,
        Level::DEBUG => 6,
        Level::TRACE => 8,
    }
}

impl<S: Subscriber> Layer<S> for KlogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        // An event with a field `v` says only then how verbose it is.
        metadata.fields().field("v").is_some() || verbosity_of(metadata) <= self.limit(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let verbosity = fields.verbosity.unwrap_or_else(|| verbosity_of(metadata));
        if verbosity > self.limit(metadata) {
            return;
        }
        // klog puts the error before everything else.
        fields.fields.sort_by_key(|(key, _)| *key != "err");
        let record = Record {
            level: *metadata.level(),
            verbosity,
            file: metadata.file().unwrap_or("unknown"),
            line: metadata.line().unwrap_or(0),
            plain: metadata.target() == PLAIN,
            message: fields.message,
            fields: fields.fields,
        };
        let settings = self.settings();
        let line = record.render(settings.format, &clock::local(SystemTime::now()), self.shared.pid);
        let to_stdout = settings.split_stream && record.level != Level::ERROR;
        (self.shared.sink)(to_stdout, line.as_bytes());
    }
}

/// What an event carries.
#[derive(Default)]
struct Fields {
    message: String,
    verbosity: Option<u32>,
    fields: Vec<(&'static str, Value)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        let value = match value {
            Value::Text(text) => Value::Text(bounded(text, MAX_TEXT)),
            bare @ Value::Bare(_) => bare,
        };
        match (field.name(), value) {
            ("message", Value::Text(text) | Value::Bare(text)) => self.message = text,
            ("v", Value::Bare(text)) => self.verbosity = text.parse().ok(),
            ("error" | "err", value) => self.fields.push(("err", value)),
            // The `log` crate's bridge adds its own; they repeat what the line has.
            (name, _) if name.starts_with("log.") => {}
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, Value::printed(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_owned()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let words = cause.to_string();
            // Many say what caused them in their own words.
            if !text.ends_with(&words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            source = cause.source();
        }
        self.push(field, Value::Text(text));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Bare(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Bare(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Bare(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let finite = value.is_finite();
        let text = value.to_string();
        self.push(
            field,
            if finite {
                Value::Bare(text)
            } else {
                Value::Text(text)
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing_subscriber::prelude::*;

    use super::super::{Format, Pattern};
    use super::*;

    type Lines = Arc<Mutex<Vec<(bool, String)>>>;

    fn capture(logging: Logging, emit: impl FnOnce(&KlogLayer)) -> Vec<(bool, String)> {
        let lines: Lines = Arc::default();
        let sink = lines.clone();
        let layer = KlogLayer::new(
            logging,
            Box::new(move |to_stdout, line| {
                sink.lock()
                    .unwrap()
                    .push((to_stdout, String::from_utf8(line.to_vec()).unwrap()));
            }),
        );
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer.clone()), || {
            emit(&layer)
        });
        lines.lock().unwrap().clone()
    }

    /// Everything behind the header's bracket.
    fn messages(lines: &[(bool, String)]) -> Vec<String> {
        lines
            .iter()
            .map(|(_, line)| line.split_once("] ").unwrap().1.trim_end().to_owned())
            .collect()
    }

    fn one_of_each() {
        tracing::error!(err = "boom", "e");
        tracing::warn!("w");
        tracing::info!(count = 3, ok = true, share = 0.5, name = "x", shown = %"y z", "i");
        tracing::debug!("d");
        tracing::trace!("t");
        tracing::info!(v = 3, "v3");
    }

    #[test]
    fn levels_are_verbosities() {
        let at = |verbosity| {
            capture(
                Logging {
                    verbosity,
                    ..Logging::default()
                },
                |_| one_of_each(),
            )
        };
        let zero = messages(&at(0));
        assert_eq!(
            zero,
            [
                "\"e\" err=\"boom\"",
                "\"w\"",
                "\"i\" count=3 ok=true share=0.5 name=\"x\" shown=\"y z\""
            ]
        );
        assert_eq!(messages(&at(2))[3..], ["\"d\""]);
        assert_eq!(messages(&at(3))[3..], ["\"d\"", "\"v3\""]);
        assert_eq!(messages(&at(4))[3..], ["\"d\"", "\"t\"", "\"v3\""]);
    }

    #[test]
    fn vmodule_raises_the_verbosity_of_a_file() {
        let with = |glob| {
            let patterns = vec![Pattern::new(glob, 4)];
            capture(
                Logging {
                    patterns,
                    ..Logging::default()
                },
                |_| one_of_each(),
            )
            .len()
        };
        assert_eq!((with("layer"), with("lay*"), with("other")), (6, 6, 3));
    }

    #[test]
    fn verbosity_can_change_at_any_time() {
        let lines = capture(Logging::default(), |layer| {
            for verbosity in [0, 4, 0] {
                layer.set_verbosity(verbosity);
                assert_eq!(layer.verbosity(), verbosity);
                tracing::debug!(verbosity, "d");
            }
        });
        assert_eq!(messages(&lines), ["\"d\" verbosity=4"]);
    }

    #[test]
    fn libraries_are_quieter() {
        let lines = capture(
            Logging {
                verbosity: 4,
                ..Logging::default()
            },
            |_| {
                tracing::info!(target: "hyper", "i");
                tracing::debug!(target: "hyper", "d");
                tracing::warn!(target: "hyper", "w");
            },
        );
        assert_eq!(messages(&lines), ["\"i\"", "\"w\""]);
    }

    #[test]
    fn split_streams_and_formats() {
        let logging = Logging {
            split_stream: true,
            format: Format::Json,
            ..Logging::default()
        };
        let lines = capture(logging, |_| one_of_each());
        assert_eq!(
            lines.iter().map(|(to_stdout, _)| *to_stdout).collect::<Vec<_>>(),
            [false, true, true]
        );
        for (_, line) in &lines {
            let parsed: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(
                parsed["ts"].is_f64()
                    && parsed["caller"]
                        .as_str()
                        .unwrap()
                        .starts_with("logging/layer.rs:")
            );
        }
        let text = capture(Logging::default(), |_| one_of_each());
        assert!(text.iter().all(|(to_stdout, _)| !to_stdout));
    }

    #[test]
    fn plain_lines_and_error_chains() {
        let error = crate::servers::listen::ListenError::new(
            "127.0.0.1:80".parse().unwrap(),
            std::io::Error::other("no"),
        );
        let lines = capture(Logging::default(), |_| {
            tracing::info!(target: PLAIN, "FLAG: --v=\"0\"");
            tracing::error!(place = "p", error = &error as &dyn std::error::Error, "failed");
        });
        let shown = messages(&lines);
        assert_eq!(shown[0], "FLAG: --v=\"0\"");
        assert_eq!(
            shown[1], "\"failed\" err=\"listen tcp 127.0.0.1:80: bind: no\" place=\"p\"",
            "the cause is told once"
        );
    }

    #[test]
    fn nothing_is_printed_without_bound() {
        let long = "ä".repeat(1_000_000);
        let lines = capture(Logging::default(), |_| {
            tracing::error!(err = %long, text = long.as_str(), list = ?[long.as_str()], "{long}");
        });
        let line = &messages(&lines)[0];
        assert!(line.len() < 5 * MAX_TEXT, "{}", line.len());
        assert_eq!(line.matches("bytes more)").count(), 4);
    }

    #[test]
    fn configuration_can_be_replaced() {
        let lines = capture(Logging::default(), |layer| {
            layer.configure(Logging {
                format: Format::Json,
                verbosity: 2,
                ..Logging::default()
            });
            tracing::debug!("d");
        });
        assert!(lines.len() == 1 && lines[0].1.starts_with("{\"ts\":"));
    }
}
