//! What a log line looks like. Pure.

use jiff::Zoned;
use tracing::Level;

use super::Format;
use crate::config::values::quote;

/// Longer texts are cut: what they hold may come from anywhere.
pub(super) const MAX_TEXT: usize = 8192;
/// Fields that name an object of the API, as `namespace/name` or `name`.
const REFERENCES: [&str; 4] = ["service", "endpointSlice", "node", "serviceCIDR"];

/// A field's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    /// A number, a boolean, or a list in JSON: printed bare.
    Bare(String),
}

impl Value {
    /// Of what a field prints of itself: a list of texts is a list, anything else a text.
    pub(super) fn printed(text: String) -> Self {
        if !text.starts_with('[') || text.len() > MAX_TEXT {
            return Self::Text(text);
        }
        match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(list) => Self::Bare(list.to_string()),
            Err(_) => Self::Text(text),
        }
    }
}

/// One event, ready to be printed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record<'a> {
    pub(super) level: Level,
    pub(super) verbosity: u32,
    pub(super) file: &'a str,
    pub(super) line: u32,
    /// Printed as it is, without quotes.
    pub(super) plain: bool,
    pub(super) message: String,
    pub(super) fields: Vec<(&'a str, Value)>,
}

impl Record<'_> {
    pub(super) fn render(&self, format: Format, time: &Zoned, pid: u32) -> String {
        match format {
            Format::Text => self.text(time, pid),
            Format::Json => self.json(time),
        }
    }

    /// `Lmmdd hh:mm:ss.uuuuuu ppppppp file:line] "message" key="value"`, the time being the local one.
    fn text(&self, time: &Zoned, pid: u32) -> String {
        let letter = match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let mut out = format!(
            "{letter}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:7} {}:{}] ",
            time.month(),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.subsec_nanosecond() / 1000,
            self.short_file(),
            self.line
        );
        if self.plain {
            out.push_str(&self.message);
        } else {
            out.push_str(&quote(&self.message));
        }
        for (key, value) in &self.fields {
            out.push(' ');
            out.push_str(key);
            match value {
                Value::Bare(text) => {
                    out.push('=');
                    out.push_str(text);
                }
                Value::Text(text) => push_text(&mut out, text),
            }
        }
        out.push('\n');
        out
    }

    /// `{"ts":…,"caller":"dir/file:line","msg":"…","v":0,…}`; errors have no `v`.
    fn json(&self, time: &Zoned) -> String {
        let millis = time.timestamp().as_nanosecond() as f64 / 1e6;
        let mut out = format!(
            "{{\"ts\":{millis},\"caller\":{},\"msg\":{}",
            json_text(&format!("{}:{}", self.long_file(), self.line)),
            json_text(&self.message)
        );
        if self.level != Level::ERROR {
            out.push_str(&format!(",\"v\":{}", self.verbosity));
        }
        for (key, value) in &self.fields {
            let value = match value {
                Value::Bare(text) => text.clone(),
                Value::Text(text) if REFERENCES.contains(key) => reference(text),
                Value::Text(text) => json_text(text),
            };
            out.push_str(&format!(",{}:{value}", json_text(key)));
        }
        out.push_str("}\n");
        out
    }

    /// The file's name; `mod.rs` says little, so its directory goes with it.
    fn short_file(&self) -> &str {
        let name = self.file.rsplit('/').next().unwrap_or(self.file);
        if name == "mod.rs" { self.long_file() } else { name }
    }

    /// The file's name and its directory's.
    fn long_file(&self) -> &str {
        let mut slashes = self.file.rmatch_indices('/');
        slashes.next();
        slashes.next().map_or(self.file, |(at, _)| &self.file[at + 1..])
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// An object's name as klog writes a reference to it.
fn reference(text: &str) -> String {
    match text.split_once('/') {
        Some((namespace, name)) => format!(
            "{{\"name\":{},\"namespace\":{}}}",
            json_text(name),
            json_text(namespace)
        ),
        None => format!("{{\"name\":{}}}", json_text(text)),
    }
}

/// A text of several lines is set off, with the lines indented.
fn push_text(out: &mut String, text: &str) {
    if !text.contains('\n') {
        out.push('=');
        out.push_str(&quote(text));
        return;
    }
    out.push_str("=<\n");
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\t');
        out.push_str(line);
        out.push('\n');
    }
    out.push_str(" >");
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use jiff::tz::TimeZone;

    use super::*;

    fn record() -> Record<'static> {
        Record {
            level: Level::INFO,
            verbosity: 2,
            file: "crates/app/src/daemon.rs",
            line: 42,
            plain: false,
            message: "Say \"hi\"".to_owned(),
            fields: vec![
                ("n", Value::Bare("3".to_owned())),
                ("name", Value::Text("a b".to_owned())),
            ],
        }
    }

    fn time() -> Zoned {
        // 2026-11-15 10:47:51.094932264 UTC
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_794_739_671, 94_932_264);
        jiff::Timestamp::try_from(time).unwrap().to_zoned(TimeZone::UTC)
    }

    #[test]
    fn text_is_klogs() {
        assert_eq!(
            record().render(Format::Text, &time(), 12345),
            "I1115 10:47:51.094932   12345 daemon.rs:42] \"Say \\\"hi\\\"\" n=3 name=\"a b\"\n"
        );
        let error = Record {
            level: Level::ERROR,
            file: "src/config/mod.rs",
            fields: vec![],
            ..record()
        };
        assert_eq!(
            error.render(Format::Text, &time(), 1),
            "E1115 10:47:51.094932       1 config/mod.rs:42] \"Say \\\"hi\\\"\"\n"
        );
        let plain = Record {
            plain: true,
            level: Level::WARN,
            fields: vec![],
            ..record()
        };
        assert_eq!(
            plain.render(Format::Text, &time(), 1),
            "W1115 10:47:51.094932       1 daemon.rs:42] Say \"hi\"\n"
        );
    }

    #[test]
    fn texts_of_several_lines_are_set_off() {
        let record = Record {
            fields: vec![
                ("a", Value::Text("x\ny\n".to_owned())),
                ("b", Value::Text("\nz".to_owned())),
            ],
            ..record()
        };
        assert_eq!(
            record.render(Format::Text, &time(), 1),
            "I1115 10:47:51.094932       1 daemon.rs:42] \"Say \\\"hi\\\"\" a=<\n\tx\n\ty\n > b=<\n\t\n\tz\n >\n"
        );
    }

    #[test]
    fn json_is_klogs() {
        assert_eq!(
            record().render(Format::Json, &time(), 1),
            "{\"ts\":1794739671094.9321,\"caller\":\"src/daemon.rs:42\",\"msg\":\"Say \\\"hi\\\"\",\"v\":2,\"n\":3,\"name\":\"a b\"}\n"
        );
        let error = Record {
            level: Level::ERROR,
            fields: vec![("err", Value::Text("x".to_owned()))],
            ..record()
        };
        let line = error.render(Format::Json, &time(), 1);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((parsed["err"].as_str(), parsed.get("v")), (Some("x"), None));
    }

    #[test]
    fn text_has_the_local_time_and_json_the_same_everywhere() {
        let kathmandu = TimeZone::posix("<+0545>-5:45").unwrap();
        let there = time().with_time_zone(kathmandu);
        let line = record().render(Format::Text, &there, 1);
        assert!(line.starts_with("I1115 16:32:51.094932 "), "{line}");
        assert_eq!(
            record().render(Format::Json, &there, 1),
            record().render(Format::Json, &time(), 1)
        );
    }

    #[test]
    fn lists_and_references_are_values_in_json() {
        let record = Record {
            fields: vec![
                ("nodeIPs", Value::printed("[\"192.0.2.1\", \"fd00::1\"]".into())),
                ("service", Value::Text("shop/web".into())),
                ("node", Value::Text("node-a".into())),
                ("at", Value::printed("[::1]:80".into())),
            ],
            ..record()
        };
        let line = record.render(Format::Json, &time(), 1);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["nodeIPs"], serde_json::json!(["192.0.2.1", "fd00::1"]));
        assert_eq!(
            parsed["service"],
            serde_json::json!({ "name": "web", "namespace": "shop" })
        );
        assert_eq!(parsed["node"], serde_json::json!({ "name": "node-a" }));
        assert_eq!(parsed["at"], "[::1]:80");
        let line = record.render(Format::Text, &time(), 1);
        let fields =
            "nodeIPs=[\"192.0.2.1\",\"fd00::1\"] service=\"shop/web\" node=\"node-a\" at=\"[::1]:80\"\n";
        assert!(line.ends_with(fields), "{line}");
    }
}
