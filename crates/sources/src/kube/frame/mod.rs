//! Cuts what arrives from an API server into objects of bounded size, without waiting for the whole answer.

mod json;
mod protobuf;

use super::protocol::Envelope;
use crate::objects::wire::Malformed;

/// An object that is larger is not served; no API server can store one.
pub(super) const MAX_OBJECT: usize = 8 << 20;
/// What surrounds the items of a list, or the whole of an error.
const MAX_ENVELOPE: usize = 1 << 20;
/// A buffer that grew beyond this is not kept for the next object.
const USUAL_OBJECT: usize = 256 << 10;

/// How the objects of an answer are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    Json,
    #[default]
    Protobuf,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("it is not JSON: it begins with \"{0}\"")]
    NotJson(String),
    #[error("it is not protobuf: it begins with \"{0}\"")]
    NotProtobuf(String),
    #[error("what surrounds the items is longer than {MAX_ENVELOPE} bytes")]
    TooLong,
    #[error("its brackets do not match")]
    Unbalanced,
    #[error("its lengths do not match")]
    Lengths,
    #[error("{0}")]
    Malformed(Malformed),
    #[error("it ends in the middle, after {0} bytes")]
    Truncated(usize),
}

impl From<Malformed> for FrameError {
    fn from(malformed: Malformed) -> Self {
        FrameError::Malformed(malformed)
    }
}

/// One object out of an answer, as it is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) encoding: Encoding,
    pub(super) size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Whole,
    /// It was larger, or nested deeper, than an object may be. What is left is good for its name and for nothing else.
    Cut,
}

/// Where a reader has an object.
enum Found<'i> {
    /// In what arrived last, whole.
    InPlace(&'i [u8]),
    /// In the reader's own buffer.
    Gathered,
}

/// Takes the answer to a list apart: each item by itself, and the envelope that is left without them.
#[derive(Debug)]
pub(super) enum ListReader {
    Json(json::ListReader),
    Protobuf(protobuf::ListReader),
}

impl ListReader {
    pub(super) fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => ListReader::Json(json::ListReader::default()),
            Encoding::Protobuf => ListReader::Protobuf(protobuf::ListReader::default()),
        }
    }

    /// Takes from the next piece of the answer until it completes an item, or is used up (`None`).
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        match self {
            ListReader::Json(reader) => reader.next(input),
            ListReader::Protobuf(reader) => reader.next(input),
        }
    }

    /// What was not an item so far: the items follow the kind and version of a list.
    pub(super) fn envelope_so_far(&self) -> Result<Envelope, String> {
        match self {
            ListReader::Json(reader) => Envelope::from_json(&reader.envelope_so_far()),
            ListReader::Protobuf(reader) => Ok(reader.envelope().clone()),
        }
    }

    /// The answer has ended; what was not an item.
    pub(super) fn finish(self) -> Result<Envelope, String> {
        match self {
            ListReader::Json(reader) => {
                Envelope::from_json(&reader.finish().map_err(|error| error.to_string())?)
            }
            ListReader::Protobuf(reader) => reader.finish().map_err(|error| error.to_string()),
        }
    }
}

/// Takes a watch apart, event by event.
#[derive(Debug)]
pub(super) enum EventReader {
    Json(json::EventReader),
    Protobuf(protobuf::EventReader),
}

impl EventReader {
    pub(super) fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => EventReader::Json(json::EventReader::default()),
            Encoding::Protobuf => EventReader::Protobuf(protobuf::EventReader::default()),
        }
    }

    /// Takes from the next piece of the answer until it completes an event, or is used up (`None`).
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        match self {
            EventReader::Json(reader) => reader.next(input),
            EventReader::Protobuf(reader) => reader.next(input),
        }
    }
}

/// The beginning of something that was not expected.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const MAX: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX)]);
    let dots = if bytes.len() > MAX { "..." } else { "" };
    format!("{}{dots}", text.escape_debug())
}

/// The door for fuzzing: whatever arrives, in whatever pieces, comes apart into the same texts of bounded size, or is
/// refused, and no object that the decoder could read is refused.
pub fn fuzz_frames(data: &[u8]) {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let list = read_list(data, encoding, data.len()).ok();
        let events = read_events(data, encoding, data.len()).ok();
        for piece in [1, 3, 64] {
            assert!(
                list == read_list(data, encoding, piece).ok(),
                "pieces of {piece} bytes matter to a list"
            );
            assert!(
                events == read_events(data, encoding, piece).ok(),
                "pieces of {piece} bytes matter to a watch"
            );
        }
        if encoding == Encoding::Json {
            let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(data);
            assert!(object.is_err() || events.as_ref().is_some_and(|events| events.len() == 1));
        }
        let texts = list.iter().flat_map(|(items, _)| items);
        for (bytes, size) in texts.chain(events.iter().flatten()) {
            assert!(bytes.len() <= MAX_OBJECT);
            let text = Text {
                bytes,
                encoding,
                size: *size,
            };
            super::intake::fuzz_text(text);
        }
    }
}

type Texts = Vec<(Vec<u8>, Size)>;

/// All items of a list that arrives in pieces, and its envelope.
fn read_list(data: &[u8], encoding: Encoding, piece: usize) -> Result<(Texts, Envelope), String> {
    let mut reader = ListReader::new(encoding);
    let mut found = Vec::new();
    for mut bytes in data.chunks(piece.max(1)) {
        while let Some(item) = reader.next(&mut bytes).map_err(|error| error.to_string())? {
            found.push((item.bytes.to_vec(), item.size));
        }
    }
    Ok((found, reader.finish()?))
}

/// All events of a watch that arrives in pieces.
fn read_events(data: &[u8], encoding: Encoding, piece: usize) -> Result<Texts, FrameError> {
    let mut reader = EventReader::new(encoding);
    let mut found = Vec::new();
    for mut bytes in data.chunks(piece.max(1)) {
        while let Some(event) = reader.next(&mut bytes)? {
            found.push((event.bytes.to_vec(), event.size));
        }
    }
    Ok(found)
}
