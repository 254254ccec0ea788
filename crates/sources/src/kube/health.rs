//! Says once when a resource cannot be followed any more, and once when it can again. A server that does not answer
//! at all concerns every resource and is one piece of news.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use jiff::Timestamp;
use tokio::sync::Notify;

use super::api::Trouble;
use crate::assemble::Mailbox;
use crate::bounded;

/// Whether the server answers, as all followers together see it.
#[derive(Debug, Default)]
pub(super) struct Contact {
    outage: Mutex<Option<Outage>>,
    recovered: Notify,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    told: BTreeSet<Sort>,
}

impl Contact {
    /// Returns when the server answers again for one of the followers.
    pub(super) async fn recovery(&self) {
        self.recovered.notified().await;
    }

    fn lost(&self, sort: Sort, trouble: &str) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = outage.get_or_insert_with(|| Outage {
            since: Instant::now(),
            told: BTreeSet::new(),
        });
        let began = SystemTime::now() - outage.since.elapsed();
        let since = Timestamp::try_from(began).map_or_else(|_| String::new(), |time| format!("{time:.0}"));
        if outage.told.insert(sort) {
            tracing::warn!(
                since,
                "API server is not available, will retry; what is in force stays: {trouble}"
            );
        } else {
            tracing::trace!(since, "API server is still not available: {trouble}");
        }
    }

    fn restored(&self) {
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(outage) = outage {
            let seconds = outage.since.elapsed().as_secs();
            tracing::info!(seconds, "API server is available again");
            self.recovered.notify_waiters();
        }
    }
}

pub(super) struct Health {
    mailbox: Arc<Mailbox>,
    contact: Arc<Contact>,
    resource: &'static str,
    failing: Option<Failing>,
}

struct Failing {
    since: Instant,
    sort: Sort,
}

/// What makes two troubles the same news, whatever their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Unreachable,
    Slow,
    Status(u16),
    Garbage,
    WatchesEnd,
}

impl Sort {
    fn of(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::Unreachable { .. } => Sort::Unreachable,
            Trouble::Slow { .. } => Sort::Slow,
            Trouble::Status { code, .. } => Sort::Status(*code),
            Trouble::Garbage { .. } => Sort::Garbage,
        }
    }

    /// Whether it is the server that fails, not what was asked of it.
    fn is_outage(self) -> bool {
        match self {
            Sort::Unreachable | Sort::Slow | Sort::Status(429 | 500..) => true,
            Sort::Status(_) | Sort::Garbage | Sort::WatchesEnd => false,
        }
    }
}

impl Health {
    pub(super) fn new(mailbox: Arc<Mailbox>, contact: Arc<Contact>, resource: &'static str) -> Self {
        Health {
            mailbox,
            contact,
            resource,
            failing: None,
        }
    }

    pub(super) fn failing(&mut self, trouble: &Trouble) {
        self.report(Sort::of(trouble), &trouble.to_string());
    }

    /// So many watches in a row have ended as soon as they began.
    pub(super) fn watches_end(&mut self, server: &str, times: u32, reason: &str) {
        let text = format!(
            "{server} ends watches as soon as they begin, {times} in a row, lists take their place: {reason}"
        );
        self.report(Sort::WatchesEnd, &text);
    }

    fn report(&mut self, sort: Sort, text: &str) {
        let text = bounded::trouble(text);
        let before = self.failing.as_ref();
        let is_news = before.is_none_or(|failing| failing.sort != sort);
        let since = before.map_or_else(Instant::now, |failing| failing.since);
        if sort.is_outage() {
            self.contact.lost(sort, &text);
        } else {
            self.contact.restored();
            if is_news {
                tracing::warn!(
                    resource = self.resource,
                    "cannot follow, will retry; what is in force stays: {text}"
                );
            } else {
                tracing::trace!(resource = self.resource, "still failing: {text}");
            }
        }
        self.failing = Some(Failing { since, sort });
        self.mailbox.set_problem(self.resource, Some(text));
    }

    pub(super) fn is_well(&self) -> bool {
        self.failing.is_none()
    }

    /// Whether the server did not answer, or not sensibly, when it was last asked.
    pub(super) fn sees_outage(&self) -> bool {
        self.failing
            .as_ref()
            .is_some_and(|failing| failing.sort.is_outage())
    }

    pub(super) fn well(&mut self) {
        let Some(failing) = self.failing.take() else {
            return;
        };
        self.mailbox.set_problem(self.resource, None);
        if failing.sort.is_outage() {
            self.contact.restored();
        } else {
            let seconds = failing.since.elapsed().as_secs();
            tracing::info!(resource = self.resource, seconds, "following again");
        }
    }
}
