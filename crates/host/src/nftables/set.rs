//! Sets and maps: their declarations and elements.

use std::sync::Arc;

use super::attr;
use super::bytes::{Data, Key};
use super::expr::Verdict;
use super::userdata;
use crate::netlink::Writer;

/// One field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Ipv4,
    Ipv6,
    /// A transport protocol, one byte.
    Proto,
    /// A port, in network byte order.
    Port,
    /// A number as `numgen` makes it, in the host's byte order. `nft` knows it only by `typeof`.
    Number,
    /// A packet's priority, in the host's byte order; `nft` prints its halves.
    Class,
}

impl Field {
    /// `nft`'s number of the type.
    fn type_number(self) -> u32 {
        match self {
            Self::Number => 4,
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Proto => 12,
            Self::Port => 13,
            Self::Class => 23,
        }
    }

    pub fn size(self) -> usize {
        match self {
            Self::Proto => 1,
            Self::Port => 2,
            Self::Ipv4 | Self::Number | Self::Class => 4,
            Self::Ipv6 => 16,
        }
    }
}

/// What a map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataType {
    Verdict,
    Fields(Box<[Field]>),
}

/// A named set, or a map when it has data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDecl {
    pub name: Arc<str>,
    pub key: Box<[Field]>,
    pub data: Option<DataType>,
    /// Elements are ranges.
    pub interval: bool,
    /// Rules add elements, which time out.
    pub dynamic: bool,
    /// Elements count the packets that found them.
    pub counter: bool,
    pub comment: Option<Arc<str>>,
}

const FLAG_INTERVAL: u32 = 0x4;
const FLAG_MAP: u32 = 0x8;
const FLAG_TIMEOUT: u32 = 0x10;
const FLAG_DYNAMIC: u32 = 0x20;
const TYPE_VERDICT: u32 = 0xffff_ff00;
const TYPE_BITS: u32 = 6;
/// Flag of an element that ends an interval.
pub(super) const INTERVAL_END: u32 = 1;

impl SetDecl {
    /// A set without fields, flags or comment: the start of a declaration.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            key: Box::default(),
            data: None,
            interval: false,
            dynamic: false,
            counter: false,
            comment: None,
        }
    }

    /// Whether `nft` has no name for the type, so that it is declared by `typeof`.
    pub fn is_typeof(&self) -> bool {
        let concatenates = |data: &DataType| matches!(data, DataType::Fields(fields) if fields.len() > 1);
        self.key.contains(&Field::Number) || self.data.as_ref().is_some_and(concatenates)
    }

    pub(super) fn flags(&self) -> u32 {
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        flag(self.interval, FLAG_INTERVAL)
            | flag(self.data.is_some(), FLAG_MAP)
            | flag(self.dynamic, FLAG_TIMEOUT | FLAG_DYNAMIC)
    }

    pub(super) fn key_type(&self) -> (u32, u32) {
        type_and_length(&self.key)
    }

    /// Type and length of the data; verdicts have no length of their own.
    pub(super) fn data_type(&self) -> Option<(u32, u32)> {
        self.data.as_ref().map(|data| match data {
            DataType::Verdict => (TYPE_VERDICT, 0),
            DataType::Fields(fields) => type_and_length(fields),
        })
    }

    pub(super) fn encode(&self, table: &str, id: u32, w: &mut Writer) {
        w.str(attr::SET_TABLE, table);
        w.str(attr::SET_NAME, &self.name);
        w.be32(attr::SET_FLAGS, self.flags());
        let (kind, length) = self.key_type();
        w.be32(attr::SET_KEY_TYPE, kind);
        w.be32(attr::SET_KEY_LEN, length);
        if let Some((kind, length)) = self.data_type() {
            w.be32(attr::SET_DATA_TYPE, kind);
            if length > 0 {
                w.be32(attr::SET_DATA_LEN, length);
            }
        }
        w.be32(attr::SET_ID, id);
        w.attr(attr::SET_USERDATA, &userdata::set(self));
        if self.counter {
            w.nest(attr::SET_EXPR, |w| {
                w.str(1, "counter");
                w.nest(2, |_| ());
            });
        }
    }
}

fn type_and_length(fields: &[Field]) -> (u32, u32) {
    match fields {
        [field] => (field.type_number(), field.size() as u32),
        _ => fields.iter().fold((0, 0), |(kind, length), field| {
            (
                (kind << TYPE_BITS) | field.type_number(),
                length + field.size().next_multiple_of(4) as u32,
            )
        }),
    }
}

/// What an element maps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: it is of a set.
    None,
    Verdict(Verdict),
    Data(Data),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub key: Key,
    /// The key is the first one after an interval.
    pub interval_end: bool,
    pub value: Value,
    pub comment: Option<Arc<str>>,
}

impl Element {
    pub fn new(key: Key, value: Value) -> Self {
        Self {
            key,
            interval_end: false,
            value,
            comment: None,
        }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        self.encode_key(w);
        match &self.value {
            Value::None => {}
            Value::Verdict(verdict) => w.nest(attr::ELEMENT_DATA, |w| verdict.encode(w)),
            Value::Data(data) => w.nest(attr::ELEMENT_DATA, |w| w.attr(attr::DATA_VALUE, data.as_slice())),
        }
        if let Some(text) = &self.comment {
            w.attr(attr::ELEMENT_USERDATA, &userdata::comment(text));
        }
    }

    pub(super) fn encode_key(&self, w: &mut Writer) {
        w.nest(attr::ELEMENT_KEY, |w| {
            w.attr(attr::DATA_VALUE, self.key.as_slice())
        });
        if self.interval_end {
            w.be32(attr::ELEMENT_FLAGS, INTERVAL_END);
        }
    }
}
