//! Collects what is wrong with one object.

use std::fmt::Display;

use ferry_model::{ObjectRef, ServiceName, Skipped};

use super::Converted;
use super::text::check_name;
use crate::bounded::{self, excerpt};
use crate::objects::{Meta, Shape};

/// One object with a thousand bad endpoints is one problem, not a thousand.
const MAX_PARTS: usize = 16;
/// As much of a name as is shown; those that are good are shorter than four times this.
const MAX_NAME: usize = 80;

pub(super) struct Report {
    object: ObjectRef,
    skipped: Vec<Skipped>,
    more: usize,
}

impl Report {
    pub(super) fn new(shape: Shape, meta: &Meta) -> Self {
        let shown = |text: &str| excerpt(text, MAX_NAME).escape_default().to_string();
        let (namespace, name) = (shown(&meta.namespace), shown(&meta.name));
        let object = match shape {
            Shape::Service => ObjectRef::Service(ServiceName::new(&namespace, &name)),
            Shape::EndpointSlice | Shape::Endpoints => ObjectRef::Other {
                kind: shape.kind(),
                name: format!("{namespace}/{name}"),
            },
            Shape::Node | Shape::ServiceCidr => ObjectRef::Other {
                kind: shape.kind(),
                name,
            },
        };
        Report {
            object,
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
            object: self.object.clone(),
            part: Some(bounded::reason(&field.to_string())),
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
                part: None,
                reason,
            });
        }
        Converted {
            fact,
            skipped: self.skipped,
        }
    }
}
