//! What an API server says in lists and watches beside the objects, and what its errors mean for a follower.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{Answer, Trouble};
use super::frame::{Encoding, Size, Text};
use crate::objects::wire::{Malformed, Message, Value};
use crate::objects::{Entry, HeaderMeta, Identity};

/// An object in protobuf begins with this, unless it is an item of a list.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// Marks the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Envelope {
    pub(super) kind: String,
    pub(super) metadata: ListMeta,
}

impl Envelope {
    pub(super) fn from_json(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

impl<'a> Message<'a> for ListMeta {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            2 => self.resource_version = value.text()?,
            3 => self.next = Some(String::from_utf8_lossy(value.bytes()?).into_owned()),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct TypeMeta {
    pub(super) kind: String,
}

impl<'a> Message<'a> for TypeMeta {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        if number == 2 {
            self.kind = value.text()?;
        }
        Ok(())
    }
}

/// One event of a watch.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) object: Text<'a>,
}

impl<'a> Line<'a> {
    pub(super) fn read(text: Text<'a>) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Json<'a> {
            #[serde(rename = "type")]
            kind: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        match text.encoding {
            Encoding::Json => {
                let Json { kind, object } =
                    serde_json::from_slice(text.bytes).map_err(|error| error.to_string())?;
                Ok(Line {
                    kind: kind.into(),
                    object: Text {
                        bytes: object.get().as_bytes(),
                        ..text
                    },
                })
            }
            Encoding::Protobuf => {
                let Pair(kind, object) = read(text).map_err(|malformed| malformed.to_string())?;
                let Pair(raw, _) = read(Text {
                    bytes: object,
                    ..text
                })
                .map_err(|malformed| malformed.to_string())?;
                Ok(Line {
                    kind: String::from_utf8_lossy(kind),
                    object: unwrap(Text { bytes: raw, ..text })?,
                })
            }
        }
    }
}

/// The first two fields of a message: type and object of an event, kind and content of an object by itself.
#[derive(Debug, Default)]
struct Pair<'a>(&'a [u8], &'a [u8]);

impl<'a> Message<'a> for Pair<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.0 = value.bytes()?,
            2 => self.1 = value.bytes()?,
            _ => {}
        }
        Ok(())
    }
}

fn read<'a, T: Message<'a> + Default>(text: Text<'a>) -> Result<T, Malformed> {
    match text.size {
        Size::Whole => T::read(text.bytes),
        Size::Cut => {
            let mut message = T::default();
            message.merge_beginning(text.bytes);
            Ok(message)
        }
    }
}

/// An object without what says its kind.
fn unwrap(text: Text<'_>) -> Result<Text<'_>, String> {
    let bytes = text
        .bytes
        .strip_prefix(MAGIC)
        .ok_or("the object is not in protobuf")?;
    let Pair(_, bytes) = read(Text { bytes, ..text }).map_err(|malformed| malformed.to_string())?;
    Ok(Text { bytes, ..text })
}

/// Whose object it is, as far as that can be told.
pub(super) fn identity(text: Text<'_>) -> Option<HeaderMeta> {
    #[derive(Deserialize)]
    struct Named {
        metadata: HeaderMeta,
    }
    match text.encoding {
        Encoding::Json => {
            let named = serde_json::from_slice(text.bytes).ok();
            named.map(|Named { metadata }| metadata)
        }
        Encoding::Protobuf => {
            let mut identity = Identity::default();
            identity.merge_beginning(text.bytes);
            Some(identity.0)
        }
    }
}

/// How far a watch is, without a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Bookmark {
    pub(super) resource_version: String,
    /// Everything that existed has been told.
    pub(super) ends_list: bool,
}

impl Bookmark {
    pub(super) fn read(text: Text<'_>) -> Result<Self, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Json {
            metadata: JsonMeta,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct JsonMeta {
            resource_version: String,
            annotations: Option<JsonAnnotations>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct JsonAnnotations {
            #[serde(rename = "k8s.io/initial-events-end")]
            initial_events_end: Option<String>,
        }
        match text.encoding {
            Encoding::Json => {
                let Json { metadata } =
                    serde_json::from_slice(text.bytes).map_err(|error| error.to_string())?;
                let end = metadata.annotations.and_then(|kept| kept.initial_events_end);
                Ok(Bookmark {
                    resource_version: metadata.resource_version,
                    ends_list: end.as_deref() == Some("true"),
                })
            }
            Encoding::Protobuf => {
                let Pair(metadata, _) = read(text).map_err(|malformed| malformed.to_string())?;
                <Self as Message<'_>>::read(metadata).map_err(|malformed| malformed.to_string())
            }
        }
    }
}

impl<'a> Message<'a> for Bookmark {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            6 => self.resource_version = value.text()?,
            12 => {
                let entry = Entry::read(value.bytes()?)?;
                self.ends_list |= entry.key == INITIAL_EVENTS_END.as_bytes() && entry.text()? == "true";
            }
            _ => {}
        }
        Ok(())
    }
}

/// The object in which an API server explains itself.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: Option<u16>,
    pub(super) message: Option<String>,
    pub(super) reason: Option<String>,
}

impl Status {
    pub(super) fn read(text: Text<'_>) -> Option<Self> {
        match text.encoding {
            Encoding::Json => serde_json::from_slice(text.bytes).ok(),
            Encoding::Protobuf => Message::read(text.bytes).ok(),
        }
    }

    /// The same where it is the whole of an answer.
    pub(super) fn read_answer(bytes: &[u8], encoding: Encoding) -> Option<Self> {
        let text = Text {
            bytes,
            encoding,
            size: Size::Whole,
        };
        Self::read(match encoding {
            Encoding::Json => text,
            Encoding::Protobuf => unwrap(text).ok()?,
        })
    }

    /// What a person should read.
    pub(super) fn text(self) -> String {
        let given = [self.message, self.reason].into_iter().flatten();
        given
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| "no reason given".into())
    }
}

impl<'a> Message<'a> for Status {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            3 => self.message = Some(value.text()?),
            4 => self.reason = Some(value.text()?),
            6 => self.code = u16::try_from(value.int32()?).ok().filter(|code| *code > 0),
            _ => {}
        }
        Ok(())
    }
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

pub(super) fn in_stream_error(text: Text<'_>, answer: &Answer) -> Trouble {
    let status = Status::read(text).unwrap_or_default();
    let expired = matches!(status.reason.as_deref(), Some("Expired" | "Gone"));
    Trouble::Status {
        url: answer.url.clone(),
        code: if expired { 410 } else { status.code.unwrap_or(500) },
        reason: status.text(),
        retry_after: None,
    }
}
