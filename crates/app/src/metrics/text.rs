//! The Prometheus text format, version 0.0.4, and OpenMetrics, version 1.0.0.

use std::fmt::Write as _;
use std::time::SystemTime;

use crate::clock::unix_seconds;

/// In which format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// What kube-proxy writes.
    #[default]
    Prometheus,
    /// Has room for exemplars. Numbers are written as in the other, so that series go on whichever is scraped.
    OpenMetrics,
}

impl Format {
    /// What a client that accepts this likes better; of equals the one that says more.
    pub fn preferred(accept: &str) -> Self {
        let (mut plain, mut open) = (0.0_f64, 0.0_f64);
        for choice in accept.split(',') {
            let mut parts = choice.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0, "1.0.0");
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = value.trim().trim_matches('"'),
                    _ => {}
                }
            }
            match name {
                "application/openmetrics-text" if version == "1.0.0" => open = open.max(quality),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(quality),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }
}

/// One observation as an example of those in its bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// Whose it was.
    pub label: (&'static str, String),
    /// What was observed.
    pub value: f64,
    /// When it was observed.
    pub at: SystemTime,
}

impl Exemplar {
    /// The standard allows so many characters of labels.
    const MAX_LABELS: usize = 128;

    fn fits(&self) -> bool {
        let (name, text) = &self.label;
        name.chars().count() + text.chars().count() <= Self::MAX_LABELS
    }
}

/// The type line of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size.
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// An exposition being written.
#[derive(Debug, Default)]
pub struct Text {
    written: String,
    format: Format,
}

impl Text {
    /// Nothing yet.
    pub fn new(format: Format) -> Self {
        Self {
            written: String::new(),
            format,
        }
    }

    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let mut help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let (mut name, mut kind) = (name, kind.as_str());
        if self.format == Format::OpenMetrics {
            help = help.replace('"', "\\\"");
            if kind == "counter" {
                // There a counter is called without its ending; one that has none cannot be told to be a counter.
                (name, kind) = name
                    .strip_suffix("_total")
                    .map_or((name, "unknown"), |name| (name, kind));
            }
        }
        let _ = writeln!(self.written, "# HELP {name} {help}");
        let _ = writeln!(self.written, "# TYPE {name} {kind}");
    }

    /// One sample of the family begun last.
    pub fn sample<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: f64,
    ) {
        self.example(name, labels, value, None);
    }

    /// The same with an example of what it counts, in the format that has room for one.
    pub fn example<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: f64,
        exemplar: Option<&Exemplar>,
    ) {
        self.written.push_str(name);
        self.labels(labels);
        let _ = write!(self.written, " {}", Number(value));
        let exemplar = exemplar.filter(|exemplar| self.format == Format::OpenMetrics && exemplar.fits());
        if let Some(Exemplar { label, value, at }) = exemplar {
            self.written.push_str(" # ");
            self.labels([(label.0, label.1.as_str())]);
            let _ = write!(self.written, " {} {}", Number(*value), Number(unix_seconds(*at)));
        }
        self.written.push('\n');
    }

    fn labels<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut open = false;
        for (label, text) in labels {
            self.written.push(if open { ',' } else { '{' });
            open = true;
            let _ = write!(self.written, "{label}=\"");
            self.escaped(text);
            self.written.push('"');
        }
        if open {
            self.written.push('}');
        }
    }

    fn escaped(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '\\' => self.written.push_str("\\\\"),
                '"' => self.written.push_str("\\\""),
                '\n' => self.written.push_str("\\n"),
                other => self.written.push(other),
            }
        }
    }

    /// The finished exposition.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.written.push_str("# EOF\n");
        }
        self.written
    }
}

/// A number as Prometheus reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number(pub(super) f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            value if value.is_nan() => f.write_str("NaN"),
            value if value == f64::INFINITY => f.write_str("+Inf"),
            value if value == f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_the_client_likes_best() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain", Format::Prometheus),
            (prometheus_2, Format::OpenMetrics),
            (prometheus_3, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=0.0.1", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            (
                "application/openmetrics-text;q=0.2, text/plain;q=0.8",
                Format::Prometheus,
            ),
        ] {
            assert_eq!(Format::preferred(accept), expected, "{accept}");
        }
    }

    #[test]
    fn openmetrics_has_its_own_manners() {
        let write = |format| {
            let mut text = Text::new(format);
            text.family("a_total", Kind::Counter, "so \"many\"");
            text.sample("a_total", [("x", "y")], 1.0);
            text.family("b", Kind::Counter, "odd");
            text.family("c_total", Kind::Gauge, "a gauge of kube-proxy");
            let exemplar = |service: &str| Exemplar {
                label: ("service", service.to_owned()),
                value: 0.25,
                at: SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500),
            };
            let long = exemplar(&"x".repeat(122));
            text.example("h_bucket", [("le", "1")], 2.0, Some(&exemplar("shop/web")));
            text.example("h_bucket", [("le", "2")], 3.0, Some(&long));
            text.finish()
        };
        assert_eq!(
            write(Format::OpenMetrics),
            "# HELP a so \\\"many\\\"\n# TYPE a counter\na_total{x=\"y\"} 1\n# HELP b odd\n# TYPE b unknown\n\
             # HELP c_total a gauge of kube-proxy\n# TYPE c_total gauge\n\
             h_bucket{le=\"1\"} 2 # {service=\"shop/web\"} 0.25 1.5\nh_bucket{le=\"2\"} 3\n# EOF\n"
        );
        assert!(write(Format::Prometheus).ends_with("h_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 3\n"));
    }
}
