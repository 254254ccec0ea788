//! One file's text to changes. Pure.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::assemble::{Change, ObjectId};
use crate::bounded;
use crate::convert::Interner;
use crate::objects::{Header, Object, Shape};

/// Far more than a node's manifests need, and little enough for any node to read.
const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 20_000_000;
const MAX_DOCUMENTS: usize = 1_000_000;
const MAX_TEXT: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Json,
}

/// Why nothing of a file can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub line: Option<u64>,
    pub reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// All objects of a text that a service proxy looks at, in order. One document that is no Kubernetes object makes the
/// whole text broken: to drop it would be to guess what its author wanted.
pub fn read(text: &[u8], format: Format, interner: &Interner) -> Result<Vec<Change>, Broken> {
    let mut reader = Reader {
        interner,
        changes: Vec::new(),
        documents: 0,
    };
    match format {
        Format::Json => {
            for value in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
                reader.document(value.map_err(|error| broken_json(&error))?)?;
            }
        }
        Format::Yaml => {
            let mut text = text;
            for value in serde_saphyr::read_with_options::<_, Value>(&mut text, options()) {
                reader.document(value.map_err(|error| broken_yaml(&error))?)?;
            }
        }
    }
    Ok(reader.changes)
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(MAX_TEXT),
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_documents: MAX_DOCUMENTS,
            max_total_scalar_bytes: MAX_TEXT,
            max_depth: MAX_DEPTH,
        },
        with_snippet: false,
    }
}

fn broken_json(error: &serde_json::Error) -> Broken {
    let line = Some(error.line() as u64).filter(|line| *line > 0);
    Broken {
        line,
        reason: without_place(&error.to_string()),
    }
}

fn broken_yaml(error: &serde_saphyr::Error) -> Broken {
    let error = error.without_snippet();
    let line = error.location().map(|location| location.line());
    Broken {
        line,
        reason: without_place(&error.to_string()),
    }
}

/// Both libraries end their messages with the place, which is shown first here.
fn without_place(text: &str) -> String {
    let is_place = |tail: &str| tail.chars().all(|c| c.is_ascii_digit() || ", column".contains(c));
    bounded::reason(match text.rsplit_once(" at line ") {
        Some((reason, tail)) if is_place(tail) => reason,
        _ => text,
    })
}

struct Reader<'a> {
    interner: &'a Interner,
    changes: Vec<Change>,
    documents: usize,
}

impl Reader<'_> {
    fn document(&mut self, value: Value) -> Result<(), Broken> {
        self.documents += 1;
        if value.is_null() {
            return Ok(());
        }
        self.object(value, None).map_err(|reason| Broken {
            line: None,
            reason: bounded::reason(&format!("document {}: {reason}", self.documents)),
        })
    }

    /// `inherited` is what the list says that it holds; its items need not repeat it.
    fn object(&mut self, mut value: Value, inherited: Option<(&str, &str)>) -> Result<(), String> {
        let header =
            Header::deserialize(&value).map_err(|error| format!("is no Kubernetes object: {error}"))?;
        let (api_version, kind) = match (header.api_version.as_str(), header.kind.as_str()) {
            ("", "") if inherited.is_some() => inherited.unwrap_or_default(),
            (_, "") => return Err("has no kind".into()),
            ("", _) => return Err("has no apiVersion".into()),
            named => named,
        };
        if let Some(of_kind) = kind.strip_suffix("List")
            && let Some(Value::Array(items)) = value.get_mut("items").map(Value::take)
        {
            let inherited = (!of_kind.is_empty()).then_some((api_version, of_kind));
            let each = |(index, item)| {
                self.object(item, inherited)
                    .map_err(|reason| format!("items[{index}] {reason}"))
            };
            return items.into_iter().enumerate().try_for_each(each);
        }
        match Shape::of(api_version, kind) {
            Some(shape) => self.known(shape, &value),
            None => tracing::debug!(
                "not looked at: {}",
                bounded::reason(&format!("{api_version} {kind}"))
            ),
        }
        Ok(())
    }

    fn known(&mut self, shape: Shape, value: &Value) {
        let change = match Object::from_value(shape, value) {
            Ok(mut object) => {
                let meta = object.meta_mut();
                if shape.is_namespaced() && meta.namespace.is_empty() {
                    meta.namespace = "default".into();
                }
                Change::of(&object, self.interner)
            }
            Err(unreadable) => {
                let mut meta = unreadable.identity.unwrap_or_default();
                if shape.is_namespaced() && meta.namespace.is_empty() {
                    meta.namespace = "default".into();
                }
                let id = ObjectId::new(shape, &meta.namespace, &meta.name, self.interner);
                Change::unreadable(id, &unreadable.reason)
            }
        };
        self.changes.push(change);
    }
}
