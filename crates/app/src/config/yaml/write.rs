//! Writes trees as Kubernetes does: JSON like Go's encoder, YAML with sorted keys and unindented lists.

/// A document to be written; numbers are given as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(&'static str, Tree)>),
    /// A mapping whose keys are data, not field names.
    Names(Vec<(String, Tree)>),
}

impl From<bool> for Tree {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for Tree {
    fn from(value: i32) -> Self {
        Self::Number(value.to_string())
    }
}

impl From<&str> for Tree {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&String> for Tree {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

impl Tree {
    fn entries(&self) -> Option<Vec<(&str, &Tree)>> {
        match self {
            Self::Map(entries) => Some(entries.iter().map(|(key, value)| (*key, value)).collect()),
            Self::Names(entries) => Some(entries.iter().map(|(key, value)| (key.as_str(), value)).collect()),
            _ => None,
        }
    }
}

/// Compact JSON, keys in the order given.
pub fn json(tree: &Tree) -> String {
    let mut out = String::new();
    write_json(&mut out, tree);
    out
}

fn write_json(out: &mut String, tree: &Tree) {
    match tree {
        Tree::Null => out.push_str("null"),
        Tree::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Tree::Number(text) => out.push_str(text),
        Tree::Text(text) => write_json_text(out, text),
        Tree::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(out, item);
            }
            out.push(']');
        }
        Tree::Map(_) | Tree::Names(_) => {
            out.push('{');
            for (i, (key, value)) in tree.entries().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_text(out, key);
                out.push(':');
                write_json(out, value);
            }
            out.push('}');
        }
    }
}

/// Go escapes what could end a script element as well.
pub(crate) fn write_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// YAML with sorted keys.
pub fn yaml(tree: &Tree) -> String {
    let mut out = String::new();
    match tree {
        Tree::Map(_) | Tree::Names(_) => write_map(&mut out, tree, 0),
        Tree::List(items) => write_list(&mut out, items, 0),
        _ => {
            out.push_str(&yaml_scalar(tree));
            out.push('\n');
        }
    }
    out
}

fn write_map(out: &mut String, tree: &Tree, indent: usize) {
    let mut entries = tree.entries().unwrap_or_default();
    entries.sort_by_key(|(key, _)| *key);
    for (i, (key, value)) in entries.into_iter().enumerate() {
        // The first key of a list's item stands behind its dash.
        if i > 0 || !out.ends_with("- ") {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(&yaml_text(key));
        out.push(':');
        match value {
            Tree::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                write_map(out, value, indent + 2);
            }
            Tree::Names(inner) if !inner.is_empty() => {
                out.push('\n');
                write_map(out, value, indent + 2);
            }
            Tree::List(items) if !items.is_empty() => {
                out.push('\n');
                write_list(out, items, indent);
            }
            _ => {
                out.push(' ');
                out.push_str(&yaml_scalar(value));
                out.push('\n');
            }
        }
    }
}

fn write_list(out: &mut String, items: &[Tree], indent: usize) {
    for item in items {
        out.push_str(&" ".repeat(indent));
        out.push_str("- ");
        match item {
            Tree::Map(inner) if !inner.is_empty() => write_map(out, item, indent + 2),
            Tree::Names(inner) if !inner.is_empty() => write_map(out, item, indent + 2),
            _ => {
                out.push_str(&yaml_scalar(item));
                out.push('\n');
            }
        }
    }
}

/// A value that fits on the line.
fn yaml_scalar(tree: &Tree) -> String {
    match tree {
        Tree::Null => "null".to_owned(),
        Tree::Bool(value) => value.to_string(),
        Tree::Number(text) => text.clone(),
        Tree::Text(text) => yaml_text(text),
        Tree::List(items) if items.is_empty() => "[]".to_owned(),
        Tree::Map(_) | Tree::Names(_) if tree.entries().is_some_and(|entries| entries.is_empty()) => {
            "{}".to_owned()
        }
        // Nested lists do not occur in configurations; JSON is YAML.
        Tree::List(_) | Tree::Map(_) | Tree::Names(_) => json(tree),
    }
}

/// A text: double quotes where it would be taken for another type, single ones where it would break the syntax.
fn yaml_text(text: &str) -> String {
    let read = super::read_first(text);
    let other_type = match &read {
        Ok(document) => matches!(
            document.root.value,
            super::Value::Null | super::Value::Bool(_) | super::Value::Number(_)
        ),
        Err(_) => false,
    };
    if other_type || is_sexagesimal(text) || text.chars().any(char::is_control) {
        let mut out = String::new();
        write_json_text(&mut out, text);
        return out;
    }
    let reads_back =
        read.is_ok_and(|document| matches!(&document.root.value, super::Value::Text(read) if read == text));
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
        let tree = Tree::Map(vec![
            (
                "b",
                Tree::List(vec![
                    "x".into(),
                    Tree::Map(vec![("z", 1.into()), ("y", true.into())]),
                ]),
            ),
            (
                "a",
                Tree::Map(vec![
                    ("empty", Tree::Map(vec![])),
                    ("none", Tree::Null),
                    ("list", Tree::List(vec![])),
                ]),
            ),
            ("c", "".into()),
        ]);
        assert_eq!(
            yaml(&tree),
            "a:\n  empty: {}\n  list: []\n  none: null\nb:\n- x\n- \"y\": true\n  z: 1\nc: \"\"\n"
        );
        assert_eq!(
            json(&tree),
            r#"{"b":["x",{"z":1,"y":true}],"a":{"empty":{},"none":null,"list":[]},"c":""}"#
        );
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
        assert_eq!(
            json(&"<a>&\"\\\n\u{1}".into()),
            r#""\u003ca\u003e\u0026\"\\\n\u0001""#
        );
    }
}
