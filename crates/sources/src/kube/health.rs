//! Says once when a resource cannot be followed any more, and once when it can again.

use std::sync::Arc;
use std::time::Instant;

use super::api::Trouble;
use crate::assemble::Mailbox;

pub(super) struct Health {
    mailbox: Arc<Mailbox>,
    resource: &'static str,
    failing: Option<Failing>,
}

struct Failing {
    since: Instant,
    sort: Sort,
}

/// What makes two troubles the same news, whatever their texts.
#[derive(PartialEq, Eq)]
enum Sort {
    Unreachable,
    Slow,
    Status(u16),
    Garbage,
}

impl From<&Trouble> for Sort {
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::Unreachable { .. } => Sort::Unreachable,
            Trouble::Slow { .. } => Sort::Slow,
            Trouble::Status { code, .. } => Sort::Status(*code),
            Trouble::Garbage { .. } => Sort::Garbage,
        }
    }
}

impl Health {
    pub(super) fn new(mailbox: Arc<Mailbox>, resource: &'static str) -> Self {
        Health {
            mailbox,
            resource,
            failing: None,
        }
    }

    pub(super) fn failing(&mut self, trouble: &Trouble) {
        self.mailbox.set_problem(self.resource, Some(trouble.to_string()));
        let sort = Sort::from(trouble);
        let since = match &self.failing {
            Some(failing) if failing.sort == sort => {
                tracing::debug!(resource = self.resource, "still failing: {trouble}");
                return;
            }
            Some(failing) => failing.since,
            None => Instant::now(),
        };
        tracing::warn!(
            resource = self.resource,
            "cannot follow, will retry; what is in force stays: {trouble}"
        );
        self.failing = Some(Failing { since, sort });
    }

    pub(super) fn is_well(&self) -> bool {
        self.failing.is_none()
    }

    pub(super) fn well(&mut self) {
        if let Some(failing) = self.failing.take() {
            let seconds = failing.since.elapsed().as_secs();
            tracing::info!(resource = self.resource, seconds, "following again");
            self.mailbox.set_problem(self.resource, None);
        }
    }
}
