//! Reads the fields of a mapping one by one; what nobody asked for is unknown.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::DecodeError;
use crate::config::values::{GoDuration, Quantity};
use crate::config::yaml::{Entry, Node, Value};

/// What was found wrong so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The first thing that cannot be read.
    pub(super) fatal: Option<DecodeError>,
    /// Fields that mean nothing here, as dotted paths, with their lines.
    pub(super) unknown: Vec<(String, usize)>,
}

/// A mapping being read. `go_type` is the type that kube-proxy's messages name.
pub(super) struct Object<'a> {
    entries: &'a [Entry],
    go_type: &'static str,
    path: String,
    asked: Vec<&'static str>,
    findings: &'a RefCell<Findings>,
}

impl<'a> Object<'a> {
    pub(super) fn new(entries: &'a [Entry], go_type: &'static str, findings: &'a RefCell<Findings>) -> Self {
        Self {
            entries,
            go_type,
            path: String::new(),
            asked: Vec::new(),
            findings,
        }
    }

    fn child_path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn fail(&self, message: String, line: usize) {
        let mut findings = self.findings.borrow_mut();
        if findings.fatal.is_none() {
            findings.fatal = Some(DecodeError {
                message,
                line: Some(line),
            });
        }
    }

    fn mismatch(&self, name: &str, node: &Node, wanted: &str) {
        let got = match &node.value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(text) if wanted == "string" || wanted == "bool" || text.is_empty() => {
                "number".to_owned()
            }
            Value::Number(text) => format!("number {text}"),
            Value::Text(_) => "string".to_owned(),
            Value::List(_) => "array".to_owned(),
            Value::Map(_) => "object".to_owned(),
        };
        let message = format!(
            "json: cannot unmarshal {got} into Go struct field {}.{} of type {wanted}",
            self.go_type,
            self.child_path(name)
        );
        self.fail(message, node.line);
    }

    /// The last value given for a field; `null` is as if it were not there.
    fn get(&mut self, name: &'static str) -> Option<&'a Node> {
        self.asked.push(name);
        let entry = self.entries.iter().rev().find(|entry| entry.key == name)?;
        (!matches!(entry.node.value, Value::Null)).then_some(&entry.node)
    }

    pub(super) fn string(&mut self, name: &'static str, into: &mut String) {
        let Some(node) = self.get(name) else { return };
        match &node.value {
            Value::Text(text) => into.clone_from(text),
            _ => self.mismatch(name, node, "string"),
        }
    }

    pub(super) fn boolean(&mut self, name: &'static str, into: &mut bool) {
        let Some(node) = self.get(name) else { return };
        match node.value {
            Value::Bool(value) => *into = value,
            _ => self.mismatch(name, node, "bool"),
        }
    }

    pub(super) fn int32(&mut self, name: &'static str, into: &mut i32) {
        self.number(name, "int32", into);
    }

    /// A verbosity; kube-proxy's message names its Go type.
    pub(super) fn verbosity(&mut self, name: &'static str, into: &mut u32) {
        self.number(name, "v1.VerbosityLevel", into);
    }

    pub(super) fn float32(&mut self, name: &'static str, into: &mut f32) {
        self.number(name, "float32", into);
    }

    fn number<T: std::str::FromStr>(&mut self, name: &'static str, go_type: &str, into: &mut T) {
        let Some(node) = self.get(name) else { return };
        let value = match &node.value {
            Value::Number(text) => text.parse().ok(),
            _ => None,
        };
        match value {
            Some(value) => *into = value,
            None => self.mismatch(name, node, go_type),
        }
    }

    pub(super) fn duration(&mut self, name: &'static str, into: &mut GoDuration) {
        let Some(node) = self.get(name) else { return };
        match &node.value {
            Value::Text(text) => self.parsed(node, GoDuration::parse(text), into),
            _ => self.mismatch(name, node, "string"),
        }
    }

    /// A duration, or a number of nanoseconds; tells which.
    pub(super) fn duration_or_nanos(&mut self, name: &'static str, into: &mut GoDuration) -> bool {
        let Some(node) = self.get(name) else { return false };
        match &node.value {
            Value::Text(text) => self.parsed(node, GoDuration::parse(text), into),
            Value::Number(text) => match text.parse() {
                Ok(nanos) => {
                    *into = GoDuration::from_nanos(nanos);
                    return true;
                }
                Err(_) => self.mismatch(name, node, "int64"),
            },
            _ => self.mismatch(name, node, "int64"),
        }
        false
    }

    pub(super) fn quantity(&mut self, name: &'static str, into: &mut Quantity) {
        let Some(node) = self.get(name) else { return };
        match &node.value {
            Value::Text(text) | Value::Number(text) => self.parsed(node, Quantity::parse(text), into),
            _ => self.mismatch(name, node, "resource.Quantity"),
        }
    }

    fn parsed<T>(&self, node: &Node, parsed: Result<T, String>, into: &mut T) {
        match parsed {
            Ok(value) => *into = value,
            Err(message) => self.fail(message, node.line),
        }
    }

    pub(super) fn strings(&mut self, name: &'static str, into: &mut Option<Vec<String>>) {
        let Some(node) = self.get(name) else { return };
        let Value::List(items) = &node.value else {
            return self.mismatch(name, node, "[]string");
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items.iter() {
            match &item.value {
                Value::Text(text) => texts.push(text.clone()),
                Value::Null => texts.push(String::new()),
                _ => return self.mismatch(name, item, "string"),
            }
        }
        *into = Some(texts);
    }

    pub(super) fn booleans(&mut self, name: &'static str, into: &mut BTreeMap<String, bool>) {
        let Some(node) = self.get(name) else { return };
        let Value::Map(entries) = &node.value else {
            return self.mismatch(name, node, "map[string]bool");
        };
        for entry in entries.iter() {
            match entry.node.value {
                Value::Bool(value) => {
                    into.insert(entry.key.clone(), value);
                }
                Value::Null => {
                    into.insert(entry.key.clone(), false);
                }
                _ => return self.mismatch(name, &entry.node, "bool"),
            }
        }
    }

    /// Reads a nested mapping.
    pub(super) fn object(
        &mut self,
        name: &'static str,
        go_type: &'static str,
        read: impl FnOnce(&mut Object<'a>),
    ) {
        let Some(node) = self.get(name) else { return };
        let Value::Map(entries) = &node.value else {
            return self.mismatch(name, node, go_type);
        };
        let path = self.child_path(name);
        self.child(entries, go_type, path, read);
    }

    /// Reads a list of mappings.
    pub(super) fn objects(
        &mut self,
        name: &'static str,
        go_type: &'static str,
        mut read: impl FnMut(&mut Object<'a>),
    ) {
        let Some(node) = self.get(name) else { return };
        let Value::List(items) = &node.value else {
            return self.mismatch(name, node, go_type);
        };
        for (i, item) in items.iter().enumerate() {
            let Value::Map(entries) = &item.value else {
                return self.mismatch(name, item, go_type);
            };
            let path = format!("{}[{i}]", self.child_path(name));
            self.child(entries, go_type, path, &mut read);
        }
    }

    fn child(
        &self,
        entries: &'a [Entry],
        go_type: &'static str,
        path: String,
        read: impl FnOnce(&mut Object<'a>),
    ) {
        let mut child = Object {
            path,
            ..Object::new(entries, go_type, self.findings)
        };
        read(&mut child);
        child.finish();
    }

    /// Notes the fields that nobody asked for.
    pub(super) fn finish(self) {
        let mut reported: Vec<&str> = Vec::new();
        for entry in self.entries {
            let key = entry.key.as_str();
            if !self.asked.contains(&key) && !reported.contains(&key) {
                reported.push(key);
                self.findings
                    .borrow_mut()
                    .unknown
                    .push((self.child_path(key), entry.line));
            }
        }
    }
}
