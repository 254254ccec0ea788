//! Cuts what arrives from an API server into JSON texts of bounded size, without waiting for the whole answer.

use bytes::{Buf, BytesMut};

/// No object that an API server can store is larger as JSON.
pub(super) const MAX_OBJECT: usize = 8 << 20;
/// What surrounds the items of a list, or the whole of an error.
const MAX_ENVELOPE: usize = 1 << 20;
/// As deep as the decoder goes.
const MAX_DEPTH: u32 = 127;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("it is not JSON: it begins with \"{0}\"")]
    NotJson(String),
    #[error("{what} is longer than {limit} bytes")]
    TooLong { what: &'static str, limit: usize },
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("its brackets do not match")]
    Unbalanced,
    #[error("it ends in the middle, after {0} bytes")]
    Truncated(usize),
}

/// Takes the answer to a list apart: each item by itself, and the envelope that is left without them.
///
/// Only brackets, strings and commas are looked at; whether an item is an object is found out when it is decoded.
#[derive(Debug, Default)]
pub(super) struct ListReader {
    envelope: Vec<u8>,
    item: Vec<u8>,
    depth: u32,
    in_items: bool,
    in_string: bool,
    escaped: bool,
    done: bool,
    seen: usize,
}

impl ListReader {
    /// Takes the next piece of the answer; hands out each item that it completes.
    pub(super) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), FrameError> {
        self.seen += bytes.len();
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if self.depth == 0 && (self.done || first != b'{') {
                rest = self.outside(rest)?;
                continue;
            }
            let plain = self.plain_length(rest);
            self.keep(&rest[..plain])?;
            let Some(&byte) = rest.get(plain) else {
                return Ok(());
            };
            self.step(byte, &mut each)?;
            rest = &rest[plain + 1..];
        }
        Ok(())
    }

    /// The answer has ended; what was not an item.
    pub(super) fn finish(self) -> Result<Vec<u8>, FrameError> {
        if self.done {
            Ok(self.envelope)
        } else {
            Err(FrameError::Truncated(self.seen))
        }
    }

    /// Around the answer there may be white space only.
    fn outside<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], FrameError> {
        let rest = bytes.trim_ascii_start();
        match rest.first() {
            None => Ok(rest),
            Some(b'{') if !self.done => Ok(rest),
            Some(_) => Err(FrameError::NotJson(excerpt(rest))),
        }
    }

    /// How many bytes follow that change nothing.
    fn plain_length(&self, bytes: &[u8]) -> usize {
        let special = |byte: &u8| match self.in_string {
            true => self.escaped || matches!(byte, b'"' | b'\\'),
            false => matches!(byte, b'"' | b'{' | b'}' | b'[' | b']' | b','),
        };
        bytes.iter().position(special).unwrap_or(bytes.len())
    }

    fn step(&mut self, byte: u8, each: &mut impl FnMut(&[u8])) -> Result<(), FrameError> {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return self.keep(&[byte]);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => return self.open(byte),
            b'}' | b']' => return self.close(byte, each),
            b',' if self.in_items && self.depth == 2 => {
                self.end_item(each);
                return Ok(());
            }
            _ => {}
        }
        self.keep(&[byte])
    }

    fn open(&mut self, byte: u8) -> Result<(), FrameError> {
        let items = byte == b'[' && self.depth == 1 && !self.in_items && self.at_items();
        self.keep(&[byte])?;
        self.in_items |= items;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(FrameError::TooDeep)
        } else {
            Ok(())
        }
    }

    fn close(&mut self, byte: u8, each: &mut impl FnMut(&[u8])) -> Result<(), FrameError> {
        if self.in_items && self.depth == 2 {
            self.end_item(each);
            self.in_items = false;
        }
        self.keep(&[byte])?;
        self.depth = self.depth.checked_sub(1).ok_or(FrameError::Unbalanced)?;
        self.done |= self.depth == 0;
        Ok(())
    }

    /// Whether the value that begins now is that of the key `items`.
    fn at_items(&self) -> bool {
        let before = self
            .envelope
            .trim_ascii_end()
            .strip_suffix(b":")
            .map(<[u8]>::trim_ascii_end);
        before
            .and_then(|key| key.strip_suffix(b"\"items\""))
            .is_some_and(|head| head.last() != Some(&b'\\'))
    }

    fn end_item(&mut self, each: &mut impl FnMut(&[u8])) {
        let item = self.item.trim_ascii();
        if !item.is_empty() {
            each(item);
        }
        self.item.clear();
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let (into, what, limit) = match self.in_items {
            true => (&mut self.item, "an item", MAX_OBJECT),
            false => (&mut self.envelope, "what surrounds the items", MAX_ENVELOPE),
        };
        if into.len() + bytes.len() > limit {
            return Err(FrameError::TooLong { what, limit });
        }
        into.extend_from_slice(bytes);
        Ok(())
    }
}

/// The lines of a watch.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no end of line.
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// What came after the last end of line.
    pub(super) fn rest(&mut self) -> Option<BytesMut> {
        self.searched = 0;
        Some(trim(self.buffer.split())).filter(|rest| !rest.is_empty())
    }

    /// The next complete line that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<BytesMut>, FrameError> {
        loop {
            let Some(end) = self.buffer[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            else {
                self.searched = self.buffer.len();
                return match self.searched > MAX_OBJECT {
                    true => Err(FrameError::TooLong {
                        what: "a line",
                        limit: MAX_OBJECT,
                    }),
                    false => Ok(None),
                };
            };
            let line = trim(self.buffer.split_to(self.searched + end + 1));
            self.searched = 0;
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

fn trim(mut line: BytesMut) -> BytesMut {
    line.truncate(line.trim_ascii_end().len());
    let blank = line.len() - line.trim_ascii_start().len();
    line.advance(blank);
    line
}

/// The beginning of something that was not expected.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const MAX: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX)]);
    let dots = if bytes.len() > MAX { "..." } else { "" };
    format!("{}{dots}", text.escape_debug())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(json: &str, piece: usize) -> Result<(Vec<String>, String), FrameError> {
        let mut reader = ListReader::default();
        let mut items = Vec::new();
        for bytes in json.as_bytes().chunks(piece) {
            reader.push(bytes, |item| {
                items.push(String::from_utf8_lossy(item).into_owned())
            })?;
        }
        Ok((items, String::from_utf8_lossy(&reader.finish()?).into_owned()))
    }

    #[test]
    fn lists_come_apart_wherever_they_are_cut() {
        let json = r#" {"kind":"L","metadata":{"items":[1],"x":"items"}, "items" : [ {"a":[1,2],"s":"},]\"{"} ,
            {"items":[{}]}, null,{"b":"\\"}], "more":["items",[3]]} "#;
        for piece in 1..json.len() {
            let (items, envelope) = read(json, piece).unwrap();
            assert_eq!(
                items,
                [
                    r#"{"a":[1,2],"s":"},]\"{"}"#,
                    r#"{"items":[{}]}"#,
                    "null",
                    r#"{"b":"\\"}"#
                ]
            );
            let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
            assert_eq!(envelope["items"], serde_json::json!([]));
            assert_eq!(envelope["metadata"]["items"], serde_json::json!([1]));
            assert_eq!(envelope["more"], serde_json::json!(["items", [3]]));
        }
    }

    /// Any JSON value, with the characters that could mislead a reader of brackets.
    fn value() -> impl Strategy<Value = serde_json::Value> {
        const TEXT: &str = r#"[a"\\{}\[\],: ü]{0,6}"#;
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i32>().prop_map(serde_json::Value::from),
            TEXT.prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            let key = prop_oneof![Just("items".to_owned()), TEXT];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::hash_map(key, inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn items_are_what_the_decoder_would_find(
            items in prop::collection::vec(value(), 0..5),
            before in value(),
            after in value(),
            pretty in any::<bool>(),
            piece in 1..40_usize,
        ) {
            let list = serde_json::json!({"a": before, "items": items, "z": after});
            let text = if pretty { format!("{list:#}") } else { list.to_string() };
            let (found, envelope) = read(&text, piece).unwrap();
            let found: Vec<serde_json::Value> =
                found.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            prop_assert_eq!(found, items);
            let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
            prop_assert_eq!(envelope, serde_json::json!({"a": before, "items": [], "z": after}));
        }
    }

    #[test]
    fn lists_may_be_empty_or_none() {
        assert_eq!(
            read(r#"{"items":[]}"#, 3).unwrap(),
            (vec![], r#"{"items":[]}"#.into())
        );
        assert_eq!(
            read(r#"{"items":null}"#, 3).unwrap(),
            (vec![], r#"{"items":null}"#.into())
        );
        let tricky = r#"{"a\"items":[1],"b":"items","c":[2]}"#;
        assert_eq!(read(tricky, 5).unwrap(), (vec![], tricky.into()));
    }

    #[test]
    fn what_is_no_list_is_refused_early() {
        assert_eq!(read("<html>", 2), Err(FrameError::NotJson("<h".into())));
        assert_eq!(read("[1]", 9), Err(FrameError::NotJson("[1]".into())));
        assert_eq!(read("{} {}", 9), Err(FrameError::NotJson("{}".into())));
        assert_eq!(read("", 1), Err(FrameError::Truncated(0)));
        assert_eq!(read(r#"{"items":[{"a":1}"#, 4), Err(FrameError::Truncated(17)));
        assert_eq!(
            read(&("{\"a\":".to_owned() + &"[".repeat(200)), 7),
            Err(FrameError::TooDeep)
        );
        let garbage = |head: &str| read(&(head.to_owned() + &"x".repeat(10 << 20)), 1 << 16);
        assert!(matches!(
            garbage("{"),
            Err(FrameError::TooLong {
                limit: MAX_ENVELOPE,
                ..
            })
        ));
        assert!(matches!(
            garbage("{\"items\":["),
            Err(FrameError::TooLong {
                limit: MAX_OBJECT,
                ..
            })
        ));
    }

    #[test]
    fn lines_come_apart_wherever_they_are_cut() {
        let text = b"one\n\n two \r\nthree";
        for piece in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for bytes in text.chunks(piece) {
                lines.push(bytes);
                while let Some(line) = lines.next().unwrap() {
                    found.push(line.to_vec());
                }
            }
            assert_eq!(found, [&b"one"[..], b"two"]);
            assert_eq!(lines.rest().as_deref(), Some(&b"three"[..]));
            assert_eq!(lines.rest(), None);
        }
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut lines = Lines::default();
        let mut fed = 0;
        while lines.next().is_ok() {
            lines.push(&[b'x'; 1 << 16]);
            fed += 1 << 16;
            assert!(fed <= MAX_OBJECT + (1 << 17));
        }
    }
}
