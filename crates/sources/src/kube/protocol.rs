//! What an API server says in lists and watches beside the objects, and what its errors mean for a follower.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{Answer, Status, Trouble};

/// Why an attempt ended.
#[derive(Debug)]
pub(super) enum End {
    /// The server or the network closed a watch that had worked, which is normal.
    Closed,
    /// A watch ended before it said anything or stood for a moment.
    Fruitless(String),
    /// The version is too old: only a list helps.
    Expired,
    /// What is known may not be what is: the server's history was rewound, or a watch is silent beyond reason.
    Doubted(&'static str),
    /// The list was not streamed.
    NoStreaming(Streaming),
    Trouble(Trouble),
}

/// Whether the server is asked for its list as a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streaming {
    Wanted,
    /// Not for the next list, but again for the one after it.
    NotNow,
    Never,
}

impl From<Trouble> for End {
    fn from(trouble: Trouble) -> Self {
        End::Trouble(trouble)
    }
}

/// What a list says beside its items.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Envelope {
    pub(super) kind: String,
    pub(super) metadata: ListMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Bookmark {
    pub(super) metadata: BookmarkMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BookmarkMeta {
    pub(super) resource_version: String,
    pub(super) annotations: Option<BookmarkAnnotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    pub(super) initial_events_end: Option<String>,
}

/// What it means that a watch was not begun, or was ended with a reason. A server that does not know streamed lists
/// calls the request bad; one whose etcd is too old for them says 500. Whether it is worse, a plain list will show.
pub(super) fn refused(trouble: Trouble, phase: Phase) -> End {
    match (&trouble, phase) {
        (Trouble::Status { code: 410, .. }, _) => End::Expired,
        (
            Trouble::Status {
                code: 400 | 405 | 422,
                ..
            },
            Phase::Listing,
        ) => End::NoStreaming(Streaming::Never),
        (
            Trouble::Status {
                code: 500 | 501 | 504,
                ..
            },
            Phase::Listing,
        ) => End::NoStreaming(Streaming::NotNow),
        _ => End::Trouble(trouble),
    }
}

/// How far a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Telling what exists.
    Listing,
    /// Telling what changes.
    Following,
}

/// Whether it makes sense to watch from the same version again, where a watch was refused. A server that does not
/// like what we ask for may like a list; all else has nothing to do with the version. A server that was restored from
/// a backup and has not reached the version says nothing: see [`was_rewound`].
pub(super) fn can_resume(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Unreachable { .. } | Trouble::Slow { .. } => true,
        Trouble::Status { code, .. } => !matches!(code, 400 | 404 | 405 | 410 | 422),
        Trouble::Garbage { .. } => false,
    }
}

/// Whether the server is at a version before one that it gave out. It then accepts a watch from there and is silent
/// until its history has grown past that version. Versions that are not numbers cannot be compared.
pub(super) fn was_rewound(given_out: &str, now: &str) -> bool {
    match (given_out.parse::<u64>(), now.parse::<u64>()) {
        (Ok(given_out), Ok(now)) => now < given_out,
        _ => false,
    }
}

pub(super) fn in_stream_error(json: &[u8], answer: &Answer) -> Trouble {
    let status: Status = serde_json::from_slice(json).unwrap_or_default();
    let expired = matches!(status.reason.as_deref(), Some("Expired" | "Gone"));
    Trouble::Status {
        url: answer.url.clone(),
        code: if expired { 410 } else { status.code.unwrap_or(500) },
        reason: status.text(),
        retry_after: None,
    }
}
