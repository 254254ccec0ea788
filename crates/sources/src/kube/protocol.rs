//! What an API server says in lists and watches beside the objects, and what its errors mean for a follower.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{Answer, Status, Trouble};

/// Why an attempt ended.
#[derive(Debug)]
pub(super) enum End {
    /// The server or the network closed a watch, which is normal.
    Closed,
    /// The version is too old: only a list helps.
    Expired,
    /// The server does not stream lists: not at all, or not now.
    NoStreaming {
        ever: bool,
    },
    Trouble(Trouble),
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
pub(super) fn refused(trouble: Trouble, listing: bool) -> End {
    match &trouble {
        Trouble::Status { code: 410, .. } => End::Expired,
        Trouble::Status {
            code: 400 | 405 | 422,
            ..
        } if listing => End::NoStreaming { ever: false },
        Trouble::Status {
            code: 500 | 501 | 504,
            ..
        } if listing => End::NoStreaming { ever: true },
        Trouble::Status { .. }
        | Trouble::Unreachable { .. }
        | Trouble::Slow { .. }
        | Trouble::Garbage { .. } => End::Trouble(trouble),
    }
}

/// Whether it makes sense to watch from the same version again. A server that was restored from a backup may not
/// have reached it, and says so with 504; others do not like what we ask for. A list mends both.
pub(super) fn can_resume(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Unreachable { .. } | Trouble::Slow { .. } => true,
        Trouble::Status { code, .. } => !matches!(code, 400 | 404 | 405 | 410 | 422 | 504),
        Trouble::Garbage { .. } => false,
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
