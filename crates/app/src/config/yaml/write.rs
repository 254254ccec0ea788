//! Writes trees as Kubernetes does: JSON like Go's encoder, YAML with sorted keys and unindented lists.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use super::Value as Scalar;
use crate::config::values::format_f32;

/// Compact JSON, keys in the order of the type.
pub fn json(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, Go));
    debug_assert!(written.is_ok(), "keys are texts: {written:?}");
    String::from_utf8(out).unwrap_or_default()
}

/// Go's JSON: floating-point numbers in its notation, and what could end a script element escaped.
struct Go;

impl Formatter for Go {
    fn write_f32<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        writer.write_all(format_f32(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for part in fragment.split_inclusive(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            match part.chars().next_back() {
                Some(c @ ('<' | '>' | '&' | '\u{2028}' | '\u{2029}')) => {
                    writer.write_all(&part.as_bytes()[..part.len() - c.len_utf8()])?;
                    write!(writer, "\\u{:04x}", u32::from(c))?;
                }
                _ => writer.write_all(part.as_bytes())?,
            }
        }
        Ok(())
    }
}

/// YAML with sorted keys.
pub fn yaml(value: &impl Serialize) -> String {
    let mut out = String::new();
    let value = serde_json::to_value(value);
    debug_assert!(value.is_ok(), "keys are texts: {value:?}");
    write_value(&mut out, &value.unwrap_or_default(), 0);
    out
}

/// Writes a value that begins a line, or stands behind the dash of a list.
fn write_value(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut entries: Vec<_> = fields.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 || !out.ends_with("- ") {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&yaml_text(key));
                out.push(':');
                write_behind_key(out, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push_str("- ");
                write_value(out, item, indent + 2);
            }
        }
        scalar => {
            out.push_str(&yaml_scalar(scalar));
            out.push('\n');
        }
    }
}

/// Lists stand as far to the left as their key.
fn write_behind_key(out: &mut String, value: &Value, indent: usize) {
    let inner = match value {
        Value::Object(fields) if !fields.is_empty() => indent + 2,
        Value::Array(items) if !items.is_empty() => indent,
        scalar => {
            out.push(' ');
            return write_value(out, scalar, indent);
        }
    };
    out.push('\n');
    write_value(out, value, inner);
}

/// A value that fits on the line. What is not an integer was a 32-bit number.
fn yaml_scalar(value: &Value) -> String {
    match value {
        Value::String(text) => yaml_text(text),
        Value::Number(number) if number.is_f64() => format_f32(number.as_f64().unwrap_or_default() as f32),
        other => other.to_string(),
    }
}

/// A text: double quotes where it would be taken for another type, single ones where it would break the syntax.
fn yaml_text(text: &str) -> String {
    let read = super::read_first(text);
    let other_type = read.as_ref().is_ok_and(|document| {
        matches!(
            document.root.value,
            Scalar::Null | Scalar::Bool(_) | Scalar::Number(_)
        )
    });
    if other_type || is_sexagesimal(text) || text.chars().any(char::is_control) {
        return json(&text);
    }
    let reads_back =
        read.is_ok_and(|document| matches!(&document.root.value, Scalar::Text(read) if read == text));
    // A scalar may be fine alone and still break a mapping's line.
    let safe_inline = !text.contains(": ") && !text.contains(" #") && !text.ends_with(':');
    if reads_back && safe_inline {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// `12:30` was a number to readers of YAML 1.1.
fn is_sexagesimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = unsigned.split(':');
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.next().is_some_and(digits)
        && unsigned.contains(':')
        && parts.all(|part| part.len() < 3 && digits(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_sorted_and_lists_are_not_indented() {
        let text = r#"{"b":["x",{"z":1,"y":true}],"a":{"empty":{},"none":null,"list":[]},"c":""}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            yaml(&value),
            "a:\n  empty: {}\n  list: []\n  none: null\nb:\n- x\n- \"y\": true\n  z: 1\nc: \"\"\n"
        );
    }

    #[test]
    fn numbers_are_written_as_go_does() {
        assert_eq!(json(&0.1_f32), "0.1");
        assert_eq!(json(&5_f32), "5");
        assert_eq!(yaml(&[0.1_f32, 5.0, 1e21]), "- 0.1\n- 5\n- 1e+21\n");
    }

    #[test]
    fn texts_are_quoted_only_where_needed() {
        for (text, written) in [
            ("0.0.0.0:10256", "0.0.0.0:10256"),
            ("15m0s", "15m0s"),
            ("", "\"\""),
            ("0", "\"0\""),
            ("yes", "\"yes\""),
            ("::", "'::'"),
            ("::1", "::1"),
            ("it's", "it's"),
            ("'", "''''"),
            ("[::]:10256", "'[::]:10256'"),
            ("a: b", "'a: b'"),
            ("a #b", "'a #b'"),
            ("<x>", "<x>"),
            ("*x", "'*x'"),
            ("10.0.0.0/16,fd00::/48", "10.0.0.0/16,fd00::/48"),
            ("12:30", "\"12:30\""),
            ("null", "\"null\""),
        ] {
            assert_eq!(yaml_text(text), written, "{text}");
        }
    }

    #[test]
    fn json_escapes_as_go() {
        assert_eq!(json(&"<a>&\"\\\n\u{1}"), r#""\u003ca\u003e\u0026\"\\\n\u0001""#);
    }
}
