//! Protobuf as bytes: the fields of a message, one after the other. Nothing is copied.

use std::borrow::Cow;
use std::fmt;

/// A longer text is replaced by a note of its length: nothing that is served is so long.
pub(crate) const MAX_TEXT: usize = 4 << 10;

/// Why bytes are not the message that they should be, and inside of which fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The innermost first.
    fields: Vec<u32>,
    what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("field")?;
        for (index, field) in self.fields.iter().rev().enumerate() {
            write!(f, "{}{field}", if index == 0 { ' ' } else { '.' })?;
        }
        write!(f, " {}", self.what)
    }
}

impl Malformed {
    fn new(what: &'static str) -> Self {
        Malformed {
            fields: Vec::new(),
            what,
        }
    }

    fn inside(mut self, field: u32) -> Self {
        self.fields.push(field);
        self
    }
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A number of fixed length, which nothing that is used has.
    Fixed,
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) | Value::Fixed => Err(Malformed::new("is a number where text is due")),
        }
    }

    /// As Go writes it to JSON: what is not UTF-8 is replaced.
    pub(crate) fn str(self) -> Result<Cow<'a, str>, Malformed> {
        let bytes = self.bytes()?;
        if bytes.len() > MAX_TEXT {
            return Ok(format!("({} bytes left out)", bytes.len()).into());
        }
        Ok(String::from_utf8_lossy(bytes))
    }

    pub(crate) fn text(self) -> Result<String, Malformed> {
        self.str().map(Cow::into_owned)
    }

    fn number(self) -> Result<u64, Malformed> {
        match self {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) | Value::Fixed => Err(Malformed::new("is not a number")),
        }
    }

    pub(crate) fn int64(self) -> Result<i64, Malformed> {
        self.number().map(u64::cast_signed)
    }

    /// Of a longer number the lower half counts, as protobuf has it.
    pub(crate) fn int32(self) -> Result<i64, Malformed> {
        self.number().map(|number| i64::from(number as i32))
    }

    pub(crate) fn flag(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }
}

/// Something that is read field by field; fields that it does not use are skipped.
pub(crate) trait Message<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed>;

    fn merge(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut rest = bytes;
        while let Some((number, value)) = next_field(&mut rest)? {
            self.field(number, value)
                .map_err(|malformed| malformed.inside(number))?;
        }
        Ok(())
    }

    /// The same for the beginning of a message: ends where the bytes do.
    fn merge_beginning(&mut self, bytes: &'a [u8]) {
        let mut rest = bytes;
        loop {
            let field = match header(rest) {
                Some(Ok((number, Kind::Length(length), used))) if length > rest.len() - used => {
                    Some((number, Value::Bytes(&rest[used..])))
                }
                _ => None,
            };
            if let Some((number, value)) = field {
                let _ = self.field(number, value);
                return;
            }
            let Ok(Some((number, value))) = next_field(&mut rest) else {
                return;
            };
            let _ = self.field(number, value);
        }
    }

    fn read(bytes: &'a [u8]) -> Result<Self, Malformed>
    where
        Self: Default,
    {
        let mut message = Self::default();
        message.merge(bytes)?;
        Ok(message)
    }

    /// One more of a field that repeats.
    fn read_onto(list: &mut Vec<Self>, value: Value<'a>) -> Result<(), Malformed>
    where
        Self: Default,
    {
        list.push(Self::read(value.bytes()?)?);
        Ok(())
    }
}

/// What follows the number of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number(u64),
    /// So many bytes.
    Length(usize),
    /// So many bytes that are a number.
    Fixed(usize),
}

/// The head of a field: its number, what follows, and how many bytes the head has. `None` where more bytes are needed.
pub(crate) fn header(bytes: &[u8]) -> Option<Result<(u32, Kind, usize), Malformed>> {
    let (tag, tag_length) = match varint(bytes)? {
        Ok(tag) => tag,
        Err(malformed) => return Some(Err(malformed)),
    };
    let (Ok(number @ 1..), wire_type) = (u32::try_from(tag >> 3), tag & 7) else {
        return Some(Err(Malformed::new("is no number of a field")));
    };
    let kind = match wire_type {
        0 | 2 => {
            let (value, length) = match varint(&bytes[tag_length..])? {
                Ok(value) => value,
                Err(malformed) => return Some(Err(malformed.inside(number))),
            };
            let used = tag_length + length;
            if wire_type == 0 {
                return Some(Ok((number, Kind::Number(value), used)));
            }
            let length = usize::try_from(value).unwrap_or(usize::MAX);
            return Some(Ok((number, Kind::Length(length), used)));
        }
        1 => Kind::Fixed(8),
        5 => Kind::Fixed(4),
        _ => return Some(Err(Malformed::new("has an unknown type").inside(number))),
    };
    Some(Ok((number, kind, tag_length)))
}

/// A number of up to ten bytes, and how many they are.
fn varint(bytes: &[u8]) -> Option<Result<(u64, usize), Malformed>> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(Ok((number, index + 1)));
        }
    }
    (bytes.len() >= 10).then_some(Err(Malformed::new("has a number without end")))
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, Value<'a>)>, Malformed> {
    const ENDS: Malformed = Malformed {
        fields: Vec::new(),
        what: "ends in the middle",
    };
    if rest.is_empty() {
        return Ok(None);
    }
    let (number, kind, used) = header(rest).ok_or(ENDS)??;
    let (value, length) = match kind {
        Kind::Number(value) => (Some(Value::Number(value)), 0),
        Kind::Length(length) => (None, length),
        Kind::Fixed(length) => (Some(Value::Fixed), length),
    };
    let (bytes, after) = rest[used..]
        .split_at_checked(length)
        .ok_or(ENDS)
        .map_err(|malformed| malformed.inside(number))?;
    *rest = after;
    Ok(Some((number, value.unwrap_or(Value::Bytes(bytes)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Debug, PartialEq)]
    struct Pair {
        number: i64,
        texts: Vec<String>,
    }

    impl Message<'_> for Pair {
        fn field(&mut self, number: u32, value: Value<'_>) -> Result<(), Malformed> {
            match number {
                1 => self.number = value.int32()?,
                2 => self.texts.push(value.text()?),
                _ => {}
            }
            Ok(())
        }
    }

    #[test]
    fn fields_are_read_and_others_skipped() {
        let bytes = [
            0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x12,
            0x00,
        ];
        let pair = Pair {
            number: 150,
            texts: vec!["hi".into(), String::new()],
        };
        assert_eq!(Pair::read(&bytes), Ok(pair));
        let minus_one = [&[0x08][..], &[0xff; 9], &[0x01]].concat();
        assert_eq!(Pair::read(&minus_one).map(|pair| pair.number), Ok(-1));
        assert_eq!(
            Pair::read(&[0x12, 1, 0xff]).map(|pair| pair.texts),
            Ok(vec!["\u{fffd}".into()])
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field() {
        for (bytes, text) in [
            (&[0x12, 0x05, b'h'][..], "field 2 ends in the middle"),
            (&[0x08], "field ends in the middle"),
            (&[0x0a, 0x00], "field 1 is not a number"),
            (&[0x10, 0x00], "field 2 is a number where text is due"),
            (&[0x0b], "field 1 has an unknown type"),
            (&[0x00, 0x00], "field is no number of a field"),
            (&[0xff; 12], "field has a number without end"),
        ] {
            assert_eq!(Pair::read(bytes).unwrap_err().to_string(), text, "{bytes:x?}");
        }
    }

    #[test]
    fn a_beginning_is_read_as_far_as_it_goes() {
        let bytes = [0x12, 0x01, b'a', 0x12, 0x05, b'h', b'e'];
        for (length, texts) in [
            (7, &["a", "he"][..]),
            (5, &["a", ""]),
            (4, &["a"]),
            (3, &["a"]),
            (1, &[]),
        ] {
            let mut pair = Pair::default();
            pair.merge_beginning(&bytes[..length]);
            assert_eq!(pair.texts, texts, "{length} bytes");
        }
    }
}
