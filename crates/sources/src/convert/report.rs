//! Collects what is wrong with one object.

use std::fmt::Display;

use ferry_model::Skipped;

use super::Converted;
use super::text::check_name;
use crate::bounded::{self, excerpt};
use crate::objects::Meta;

/// One object with a thousand bad endpoints is one problem, not a thousand.
const MAX_PARTS: usize = 16;
/// As much of a name as is shown; those that are good are shorter than four times this.
const MAX_NAME: usize = 80;

pub(super) struct Report {
    object: String,
    skipped: Vec<Skipped>,
    more: usize,
}

impl Report {
    pub(super) fn new(kind: &str, meta: &Meta) -> Self {
        let name = if meta.namespace.is_empty() {
            excerpt(&meta.name, MAX_NAME).to_owned()
        } else {
            format!(
                "{}/{}",
                excerpt(&meta.namespace, MAX_NAME),
                excerpt(&meta.name, MAX_NAME)
            )
        };
        Report {
            object: format!("{kind} {}", name.escape_default()),
            skipped: Vec::new(),
            more: 0,
        }
    }

    /// A field, or one entry of it, is not served.
    pub(super) fn skip(&mut self, field: impl Display, reason: impl Into<String>) {
        if self.skipped.len() == MAX_PARTS {
            self.more += 1;
            return;
        }
        self.skipped.push(Skipped {
            object: bounded::reason(&format!("{}: {field}", self.object)),
            reason: bounded::reason(&reason.into()),
        });
    }

    /// None, and a line, where the object has no name that could be served.
    pub(super) fn check_names(&mut self, meta: &Meta) -> Option<()> {
        let names = [
            ("metadata.namespace", &meta.namespace),
            ("metadata.name", &meta.name),
        ];
        for (field, name) in names {
            check_name(name).map_err(|reason| self.skip(field, reason)).ok()?;
        }
        Some(())
    }

    pub(super) fn finish<T>(mut self, fact: T) -> Converted<T> {
        if self.more > 0 {
            let reason = format!("{} more parts are not served either", self.more);
            self.skipped.push(Skipped {
                object: self.object,
                reason,
            });
        }
        Converted {
            fact,
            skipped: self.skipped,
        }
    }
}
