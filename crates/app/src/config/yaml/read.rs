//! Reads the first document of a YAML (or JSON) text; scalars mean what they mean to Kubernetes (YAML 1.1).

use std::collections::HashMap;
use std::rc::Rc;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};

/// Deeper than any configuration, shallow enough for the stack.
const MAX_DEPTH: usize = 64;
/// More nodes than any configuration has, aliases counted each time they are used.
const MAX_NODES: usize = 200_000;

/// A value and the line it begins on, counted from 1.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Value,
    pub line: usize,
}

impl Node {
    /// The value at a path of keys; `null` is as if it were not there.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((name, rest)) = path.split_first() else {
            return (!matches!(self.value, Value::Null)).then_some(self);
        };
        let Value::Map(entries) = &self.value else {
            return None;
        };
        entries
            .iter()
            .rev()
            .find(|entry| entry.key == *name)?
            .node
            .at(rest)
    }
}

/// A value; numbers keep their text.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Rc<[Node]>),
    Map(Rc<[Entry]>),
}

/// One key of a mapping. Keys may repeat; the last one counts.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub line: usize,
    pub node: Node,
}

/// The first document of a text.
#[derive(Clone, Debug)]
pub struct Document {
    pub root: Node,
    /// Keys that occur twice in one mapping, with the line of the second.
    pub duplicates: Vec<(String, usize)>,
}

/// Why a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("yaml: line {line}: {reason}")]
pub struct Error {
    pub line: usize,
    pub reason: String,
}

/// Reads the first document; an empty text is a null.
pub fn read_first(text: &str) -> Result<Document, Error> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        duplicates: Vec::new(),
    };
    loop {
        let Some((event, span)) = reader.next()? else {
            return Ok(Document {
                root: Node {
                    value: Value::Null,
                    line: 1,
                },
                duplicates: Vec::new(),
            });
        };
        if let Event::DocumentStart(..) | Event::StreamStart = event {
            continue;
        }
        let root = if is_end(&event) {
            Node {
                value: Value::Null,
                line: line(&span),
            }
        } else {
            reader.node(event, &span, 0)?
        };
        return Ok(Document {
            root,
            duplicates: reader.duplicates,
        });
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    duplicates: Vec<(String, usize)>,
}

impl<'a> Reader<'a> {
    /// The next event that carries content.
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Error> {
        loop {
            match self.parser.next_event() {
                None => return Ok(None),
                Some(Ok((event, span))) if is_content(&event) => return Ok(Some((event, span))),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let reason = error.info().lines().next().unwrap_or("malformed").to_owned();
                    return Err(Error {
                        line: error.marker().line(),
                        reason,
                    });
                }
            }
        }
    }

    fn within_bounds(&mut self, depth: usize, span: &Span, nodes: usize) -> Result<(), Error> {
        self.nodes += nodes;
        let reason = if depth > MAX_DEPTH {
            "nested too deeply"
        } else if self.nodes > MAX_NODES {
            "document is too large"
        } else {
            return Ok(());
        };
        Err(Error {
            line: line(span),
            reason: reason.to_owned(),
        })
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node, Error> {
        self.within_bounds(depth, span, 1)?;
        let at = line(span);
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_ref().and_then(|tag| tag.core_suffix());
                (scalar(&text, style, tag), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (Value::List(self.list(depth)?.into()), anchor),
            Event::MappingStart(_, anchor, _) => (Value::Map(self.map(depth)?.into()), anchor),
            Event::Alias(id) => {
                let target = self.anchors.get(&id).cloned();
                let target = target.ok_or_else(|| unexpected(span, "an alias inside its own anchor"))?;
                self.within_bounds(depth + levels(&target), span, size(&target))?;
                return Ok(Node {
                    value: target.value,
                    line: at,
                });
            }
            _ => return Err(unexpected(span, "a value was expected")),
        };
        let node = Node { value, line: at };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Error> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.node(event, &span, depth + 1)?);
        }
        Ok(items)
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let plain_key = matches!(event, Event::Scalar(_, ScalarStyle::Plain, ..));
            let key = match self.node(event, &span, depth + 1)?.value {
                Value::Text(key) | Value::Number(key) => key,
                Value::Bool(key) => key.to_string(),
                Value::Null => "null".to_owned(),
                Value::List(_) | Value::Map(_) => return Err(unexpected(&span, "a key must be a scalar")),
            };
            let Some((event, value_span)) = self.next()? else {
                break;
            };
            let node = self.node(event, &value_span, depth + 1)?;
            if plain_key && key == "<<" {
                merged
                    .extend(merge_entries(&node).ok_or_else(|| unexpected(&span, "map merge requires map"))?);
                continue;
            }
            if entries.iter().any(|entry| entry.key == key) {
                self.duplicates.push((key.clone(), line(&span)));
            }
            entries.push(Entry {
                key,
                line: line(&span),
                node,
            });
        }
        merged.retain(|entry: &Entry| !entries.iter().any(|own| own.key == entry.key));
        entries.extend(merged);
        Ok(entries)
    }
}

/// What `<<:` brings in: the mapping, or several, the first one winning.
fn merge_entries(node: &Node) -> Option<Vec<Entry>> {
    match &node.value {
        Value::Map(entries) => Some(entries.to_vec()),
        Value::List(items) => {
            let mut all: Vec<Entry> = Vec::new();
            for item in items.iter() {
                let Value::Map(entries) = &item.value else {
                    return None;
                };
                let new = entries
                    .iter()
                    .filter(|entry| !all.iter().any(|old| old.key == entry.key));
                let new: Vec<Entry> = new.cloned().collect();
                all.extend(new);
            }
            Some(all)
        }
        _ => None,
    }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|entry| size(&entry.node)).sum::<usize>(),
        _ => 1,
    }
}

fn levels(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        Value::Map(entries) => 1 + entries.iter().map(|entry| levels(&entry.node)).max().unwrap_or(0),
        _ => 0,
    }
}

fn unexpected(span: &Span, reason: &str) -> Error {
    Error {
        line: line(span),
        reason: reason.to_owned(),
    }
}

fn line(span: &Span) -> usize {
    span.start.line()
}

fn is_content(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Scalar(..)
            | Event::Alias(_)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::StreamStart
            | Event::StreamEnd
    )
}

fn is_end(event: &Event<'_>) -> bool {
    matches!(event, Event::DocumentEnd | Event::StreamEnd)
}

/// What a scalar means: quotes make a text, a tag decides, else its looks do.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&str>) -> Value {
    if tag == Some("str") || (tag.is_none() && style != ScalarStyle::Plain) {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    match number(text) {
        Some(number) => Value::Number(number),
        None => Value::Text(text.to_owned()),
    }
}

/// The decimal text of a number in any of YAML 1.1's notations.
fn number(text: &str) -> Option<String> {
    let (sign, body) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let plain = body.replace('_', "");
    if !plain
        .as_bytes()
        .first()
        .is_some_and(|b| b.is_ascii_digit() || *b == b'.')
    {
        return None;
    }
    let radix = |prefix: &str, base| {
        plain
            .strip_prefix(prefix)
            .and_then(|d| u64::from_str_radix(d, base).ok())
    };
    let integer = radix("0x", 16)
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0b", 2))
        .or_else(|| if plain.len() > 1 { radix("0", 8) } else { None })
        .or_else(|| plain.parse().ok());
    if let Some(integer) = integer {
        return Some(format!("{sign}{integer}"));
    }
    let float_like = plain
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    let value: f64 = if float_like {
        plain.parse().ok()?
    } else {
        return None;
    };
    value.is_finite().then(|| format!("{sign}{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str) -> Value {
        read_first(text).map(|document| document.root.value).unwrap()
    }

    fn show(value: &Value) -> String {
        match value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(text) => text.clone(),
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) => {
                format!(
                    "[{}]",
                    items
                        .iter()
                        .map(|item| show(&item.value))
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }
            Value::Map(entries) => {
                let shown: Vec<String> = entries
                    .iter()
                    .map(|entry| format!("{}@{}:{}", entry.key, entry.line, show(&entry.node.value)))
                    .collect();
                format!("{{{}}}", shown.join(","))
            }
        }
    }

    #[test]
    fn scalars_mean_what_they_mean_to_kubernetes() {
        for (text, shown) in [
            ("a", "\"a\""),
            ("\"1\"", "\"1\""),
            ("'yes'", "\"yes\""),
            ("yes", "true"),
            ("Off", "false"),
            ("~", "null"),
            ("null", "null"),
            ("", "null"),
            ("14", "14"),
            ("0x10", "16"),
            ("010", "8"),
            ("1_000", "1000"),
            ("-5", "-5"),
            ("+5", "5"),
            ("1.50", "1.5"),
            ("1e3", "1000"),
            ("0s", "\"0s\""),
            ("1.2.3.4", "\"1.2.3.4\""),
            ("10.0.0.0/8", "\"10.0.0.0/8\""),
            ("::1", "\"::1\""),
            ("!!str 5", "\"5\""),
            ("08", "8"),
        ] {
            assert_eq!(show(&root(text)), shown, "{text}");
        }
    }

    #[test]
    fn mappings_keep_lines_and_report_duplicates() {
        let document = read_first("a: 1\nb:\n  c: [x, 2]\n# note\na: 3\n").unwrap();
        assert_eq!(show(&document.root.value), "{a@1:1,b@2:{c@3:[\"x\",2]},a@5:3}");
        assert_eq!(document.duplicates, [("a".to_owned(), 5)]);
    }

    #[test]
    fn only_the_first_document_is_read() {
        assert_eq!(show(&root("---\na: 1\n---\n{{{ not yaml\n")), "{a@2:1}");
        assert_eq!(show(&root("{\"a\": {\"b\": null}}")), "{a@1:{b@1:null}}");
    }

    #[test]
    fn anchors_aliases_and_merges() {
        assert_eq!(
            show(&root("a: &x {p: 1, q: 2}\nb: *x\n")),
            "{a@1:{p@1:1,q@1:2},b@2:{p@1:1,q@1:2}}"
        );
        assert_eq!(
            show(&root("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\n")),
            "{a@1:{p@1:1,q@1:2},b@2:{q@4:3,p@1:1}}"
        );
    }

    #[test]
    fn errors_name_the_line() {
        let error = read_first("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
        assert!(read_first("a: *nowhere").is_err());
        assert!(read_first("? [a]\n: b\n").is_err());
    }

    #[test]
    fn hostile_documents_are_bounded() {
        let deep = "[".repeat(10_000);
        assert!(read_first(&deep).is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let previous = format!("*a{},", i - 1).repeat(10);
            bomb.push_str(&format!("a{i}: &a{i} [{}]\n", previous.trim_end_matches(',')));
        }
        let error = read_first(&bomb).unwrap_err();
        assert_eq!(error.reason, "document is too large");
    }
}
