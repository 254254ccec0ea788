//! Lists and watches in protobuf, whose parts all say beforehand how long they are.

use super::super::protocol::{Envelope, ListMeta, MAGIC, TypeMeta};
use super::{Encoding, Found, FrameError, MAX_ENVELOPE, MAX_OBJECT, Size, Text, USUAL_OBJECT, excerpt};
use crate::objects::wire::{self, Kind, Message};

/// So much is kept of the beginning of what is too large: its name is there.
const BEGINNING: usize = 64 << 10;
/// No event is so long; where the length is text by mistake, it is longer.
const MAX_EVENT: usize = 256 << 20;

/// Something of known length that arrives in pieces; its beginning at least is kept.
#[derive(Debug, Default)]
struct Gathering {
    bytes: Vec<u8>,
    /// How much of it is still to come.
    left: usize,
    /// How much of that is still to be kept.
    keep: usize,
}

impl Gathering {
    fn begin(&mut self, length: usize, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(USUAL_OBJECT);
        self.bytes.reserve(keep);
        self.left = length;
        self.keep = keep;
    }

    /// Takes what there is; tells whether it is complete.
    fn take(&mut self, input: &mut &[u8]) -> bool {
        let (bytes, rest) = input.split_at(self.left.min(input.len()));
        let kept = bytes.len().min(self.keep);
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.keep -= kept;
        self.left -= bytes.len();
        *input = rest;
        self.left == 0
    }
}

/// What is kept of an object or event of this length.
fn kept_of(length: usize) -> (usize, Size) {
    if length > MAX_OBJECT {
        (BEGINNING, Size::Cut)
    } else {
        (length, Size::Whole)
    }
}

/// Which field is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Type,
    Meta,
    Item,
    Unused,
}

/// Takes a list apart: `k8s\0`, then an Unknown, whose second field is the list, whose second field are the items.
#[derive(Debug, Default)]
pub(in super::super) struct ListReader {
    envelope: Envelope,
    magic: usize,
    /// The head of a field, as far as it has arrived.
    head: Vec<u8>,
    field: Option<Field>,
    gathering: Gathering,
    /// How much of the list is still to come; `None` before it.
    list: Option<usize>,
    size: Option<Size>,
    seen: usize,
}

impl ListReader {
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        let length = input.len();
        let found = self.advance(input);
        self.seen += length - input.len();
        let bytes = match found? {
            None => return Ok(None),
            Some(Found::InPlace(bytes)) => bytes,
            Some(Found::Gathered) => &self.gathering.bytes,
        };
        Ok(Some(Text {
            bytes,
            encoding: Encoding::Protobuf,
            size: self.size.unwrap_or(Size::Whole),
        }))
    }

    pub(super) fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    pub(super) fn finish(self) -> Result<Envelope, FrameError> {
        if self.list == Some(0) && self.head.is_empty() && self.field.is_none() {
            Ok(self.envelope)
        } else {
            Err(FrameError::Truncated(self.seen))
        }
    }

    fn advance<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Found<'i>>, FrameError> {
        self.take_magic(input)?;
        while !input.is_empty() {
            if let Some(field) = self.field {
                if !self.gathering.take(input) {
                    return Ok(None);
                }
                self.field = None;
                match field {
                    Field::Type => self.envelope.kind = TypeMeta::read(&self.gathering.bytes)?.kind,
                    Field::Meta => self.envelope.metadata = ListMeta::read(&self.gathering.bytes)?,
                    Field::Item => return Ok(Some(Found::Gathered)),
                    Field::Unused => {}
                }
                continue;
            }
            let Some((number, kind)) = self.take_head(input)? else {
                return Ok(None);
            };
            if let Some(item) = self.begin(number, kind, input)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn take_magic(&mut self, input: &mut &[u8]) -> Result<(), FrameError> {
        while let (Some(expected), Some((byte, rest))) = (MAGIC.get(self.magic), input.split_first()) {
            if byte != expected {
                return Err(FrameError::NotProtobuf(excerpt(input)));
            }
            self.magic += 1;
            *input = rest;
        }
        Ok(())
    }

    /// The head of the next field; `None` where its rest is to come.
    fn take_head(&mut self, input: &mut &[u8]) -> Result<Option<(u32, Kind)>, FrameError> {
        if self.head.is_empty()
            && let Some(head) = wire::header(input)
        {
            let (number, kind, used) = head?;
            *input = &input[used..];
            self.account(used)?;
            return Ok(Some((number, kind)));
        }
        while let Some((byte, rest)) = input.split_first() {
            self.head.push(*byte);
            *input = rest;
            if let Some(head) = wire::header(&self.head) {
                let (number, kind, used) = head?;
                self.head.clear();
                self.account(used)?;
                return Ok(Some((number, kind)));
            }
        }
        Ok(None)
    }

    /// So many bytes belong to the list, if it has begun.
    fn account(&mut self, bytes: usize) -> Result<(), FrameError> {
        if let Some(left @ 1..) = &mut self.list {
            *left = left.checked_sub(bytes).ok_or(FrameError::Lengths)?;
        }
        Ok(())
    }

    /// Begins a field; tells an item that is there already.
    fn begin<'i>(
        &mut self,
        number: u32,
        kind: Kind,
        input: &mut &'i [u8],
    ) -> Result<Option<Found<'i>>, FrameError> {
        let length = match kind {
            Kind::Number(_) => return Ok(None),
            Kind::Length(length) | Kind::Fixed(length) => length,
        };
        let in_list = self.list.is_some_and(|left| left > 0);
        let field = match (self.list, number, kind) {
            (None, 2, Kind::Length(length)) => {
                self.list = Some(length);
                return Ok(None);
            }
            (None, 1, Kind::Length(_)) => Field::Type,
            (Some(_), 1, Kind::Length(_)) if in_list => Field::Meta,
            (Some(_), 2, Kind::Length(_)) if in_list => Field::Item,
            _ => Field::Unused,
        };
        self.account(length)?;
        let keep = match field {
            Field::Item => {
                let (keep, size) = kept_of(length);
                self.size = Some(size);
                if size == Size::Whole
                    && let Some((item, rest)) = input.split_at_checked(length)
                {
                    *input = rest;
                    return Ok(Some(Found::InPlace(item)));
                }
                keep
            }
            Field::Type | Field::Meta if length > MAX_ENVELOPE => return Err(FrameError::TooLong),
            Field::Type | Field::Meta => length,
            Field::Unused => 0,
        };
        self.gathering.begin(length, keep);
        self.field = (length > 0).then_some(field);
        Ok(None)
    }
}

/// Takes a watch apart: four bytes of length, then an event.
#[derive(Debug, Default)]
pub(in super::super) struct EventReader {
    head: Vec<u8>,
    event: Gathering,
    under_way: Option<Size>,
}

impl EventReader {
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        let text = |bytes, size| Text {
            bytes,
            encoding: Encoding::Protobuf,
            size,
        };
        if self.under_way.is_none() {
            let Some(length) = self.take_length(input)? else {
                return Ok(None);
            };
            let (keep, size) = kept_of(length);
            if size == Size::Whole
                && let Some((event, rest)) = input.split_at_checked(length)
            {
                *input = rest;
                return Ok(Some(text(event, size)));
            }
            self.event.begin(length, keep);
            self.under_way = Some(size);
        }
        if !self.event.take(input) {
            return Ok(None);
        }
        let size = self.under_way.take();
        Ok(size.map(|size| text(&self.event.bytes, size)))
    }

    fn take_length(&mut self, input: &mut &[u8]) -> Result<Option<usize>, FrameError> {
        while let Some((byte, rest)) = input.split_first() {
            self.head.push(*byte);
            *input = rest;
            if let Ok(length) = <[u8; 4]>::try_from(&self.head[..]) {
                let length = u32::from_be_bytes(length) as usize;
                if length > MAX_EVENT {
                    return Err(FrameError::NotProtobuf(excerpt(&self.head)));
                }
                self.head.clear();
                return Ok(Some(length));
            }
        }
        Ok(None)
    }
}
