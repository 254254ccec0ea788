//! Ways to fail.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What goes wrong; the default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Faults {
    /// Every request is answered with this code and a Status.
    pub code: Option<u16>,
    /// Kinds (plural) that the server does not serve: 404, and not in discovery.
    pub missing: BTreeSet<String>,
    /// Kinds (plural) that the client may not read: 403.
    pub forbidden: BTreeSet<String>,
    /// Milliseconds before an answer begins.
    pub delay_ms: u64,
    /// Lists and watches answer with nonsense.
    pub garbage: Option<Garbage>,
    /// Streaming lists are refused, as by a server whose WatchList feature is off.
    pub no_streaming_lists: bool,
    /// Streaming lists end at once with an error event of this code, as by a server whose etcd cannot do them.
    pub streaming_lists_code: Option<u16>,
    /// Watches end after so many events.
    pub cut_after: Option<u64>,
    /// Kinds (plural) whose watches, streaming lists too, end as soon as they have begun.
    pub ended: BTreeSet<String>,
    /// Kinds (plural) whose watches stay open and never say anything.
    pub silent: BTreeSet<String>,
    /// Codes that the next requests for a kind (plural) are answered with, one each.
    pub once: BTreeMap<String, Vec<u16>>,
    /// The connection is closed in the middle of the body of a list.
    pub truncate_lists: bool,
    /// What comes of asking for protobuf; by default it is given where it can be.
    pub protobuf: Option<Protobuf>,
}

/// What a server that does not write protobuf does when it is asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Protobuf {
    /// It answers in JSON, which was accepted too.
    Ignored,
    /// It does not answer such a request (406).
    Refused,
    /// It says that it does, and then sends JSON.
    Pretended,
}

/// Kinds of nonsense, with 200 OK and `application/json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Garbage {
    /// So many bytes that are no JSON.
    Bytes(usize),
    /// JSON of another shape: a list of numbers where a list of objects is due.
    Shape,
    /// A web page, as a proxy in between would send.
    Page,
}

impl Garbage {
    pub(super) fn body(self) -> Vec<u8> {
        match self {
            Garbage::Bytes(n) => (0..n).map(|i| (i * 7 + i / 251) as u8).collect(),
            Garbage::Shape => {
                br#"{"kind":"List","metadata":[],"items":[1,2,3],"type":7,"object":"x"}"#.to_vec()
            }
            Garbage::Page => b"<html><head><title>502 Bad Gateway</title></head></html>\n".to_vec(),
        }
    }
}
