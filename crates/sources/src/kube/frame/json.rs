//! Lists and watches in JSON, whose parts end where their brackets do.

use super::{Encoding, Found, FrameError, MAX_ENVELOPE, MAX_OBJECT, Size, Text, USUAL_OBJECT, excerpt};
use crate::objects::wire::MAX_TEXT;

/// As deep as the decoder goes.
const MAX_DEPTH: usize = 127;
/// How deep the fields lie that are left out of an object that is too large: `object.metadata.annotations`.
const LEVELS: usize = 4;

/// Takes the answer to a list apart: each item by itself, and the envelope that is left without them.
///
/// Only brackets, strings and commas are looked at; whether an item is an object is found out when it is decoded.
#[derive(Debug)]
pub(in super::super) struct ListReader {
    envelope: Value,
    item: Value,
    in_items: bool,
    /// The item is complete and was handed out.
    handed_out: bool,
    seen: usize,
}

impl Default for ListReader {
    fn default() -> Self {
        ListReader {
            envelope: Value::new(MAX_ENVELOPE),
            item: Value::new(MAX_OBJECT),
            in_items: false,
            handed_out: false,
            seen: 0,
        }
    }
}

impl ListReader {
    /// Takes from the next piece of the answer until it completes an item, or is used up (`None`).
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        if self.handed_out {
            self.item.clear();
        }
        let length = input.len();
        let found = self.advance(input);
        self.seen += length - input.len();
        let found = found?;
        self.handed_out = matches!(found, Some(Found::Gathered));
        Ok(found.map(|found| match found {
            Found::InPlace(json) => whole(json),
            Found::Gathered => self.item.text(),
        }))
    }

    /// What was not an item so far, made whole: the items follow the kind and version of a list.
    pub(super) fn envelope_so_far(&self) -> Vec<u8> {
        let mut envelope = self.envelope.bytes.clone();
        if self.in_items {
            envelope.extend_from_slice(b"]}");
        }
        envelope
    }

    /// The answer has ended; what was not an item.
    pub(super) fn finish(self) -> Result<Vec<u8>, FrameError> {
        if self.envelope.is_complete() {
            Ok(self.envelope.bytes)
        } else {
            Err(FrameError::Truncated(self.seen))
        }
    }

    /// Finds the next item that is complete.
    fn advance<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Found<'i>>, FrameError> {
        while !input.is_empty() {
            if !self.in_items {
                self.advance_envelope(input)?;
                continue;
            }
            if self.item.bytes.is_empty()
                && let Some(item) = whole_item(input)
            {
                return Ok(Some(Found::InPlace(item)));
            }
            let special = self.item.take_plain(input);
            match special {
                Some(end @ (b',' | b']')) if self.item.is_between() => {
                    *input = &input[1..];
                    if end == b']' {
                        self.in_items = false;
                        self.envelope.step(end)?;
                    }
                    if !self.item.is_blank() {
                        return Ok(Some(Found::Gathered));
                    }
                    self.item.bytes.clear();
                }
                Some(byte) => {
                    *input = &input[1..];
                    self.item.step(byte)?;
                }
                None => {}
            }
        }
        Ok(None)
    }

    fn advance_envelope(&mut self, input: &mut &[u8]) -> Result<(), FrameError> {
        if !self.envelope.is_open() && !skip_blank(input, self.envelope.is_complete())? {
            return Ok(());
        }
        if let Some(byte) = self.envelope.take_plain(input) {
            *input = &input[1..];
            self.in_items = byte == b'[' && self.envelope.at_value_of("items");
            self.envelope.step(byte)?;
        }
        if self.envelope.size == Size::Cut {
            return Err(FrameError::TooLong);
        }
        Ok(())
    }
}

/// Takes a watch apart: one JSON object after another.
#[derive(Debug)]
pub(in super::super) struct EventReader {
    event: Value,
}

impl Default for EventReader {
    fn default() -> Self {
        EventReader {
            event: Value::new(MAX_OBJECT),
        }
    }
}

impl EventReader {
    /// Takes from the next piece of the answer until it completes an event, or is used up (`None`).
    pub(super) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Text<'s>>, FrameError> {
        if self.event.is_complete() {
            self.event.clear();
        }
        while !input.is_empty() {
            if !self.event.is_open() {
                if !skip_blank(input, false)? {
                    continue;
                }
                if let Some(length) = whole_object(input) {
                    let (event, rest) = input.split_at(length);
                    *input = rest;
                    return Ok(Some(whole(event)));
                }
            }
            if let Some(byte) = self.event.take_plain(input) {
                *input = &input[1..];
                self.event.step(byte)?;
            }
            if self.event.is_complete() {
                return Ok(Some(self.event.text()));
            }
        }
        Ok(None)
    }
}

fn whole(json: &[u8]) -> Text<'_> {
    Text {
        bytes: json,
        encoding: Encoding::Json,
        size: Size::Whole,
    }
}

/// Takes an item that has arrived whole, up to the comma or bracket after it. Most do: looking at them where they are
/// is a good deal cheaper than gathering them.
fn whole_item<'i>(input: &mut &'i [u8]) -> Option<&'i [u8]> {
    let from = input.trim_ascii_start();
    let (item, rest) = from.split_at(whole_object(from)?);
    let rest = rest.trim_ascii_start();
    matches!(rest.first(), Some(b',' | b']')).then(|| *input = rest)?;
    Some(item)
}

/// The length of the object that the input begins with, if all of it is there and nothing of it is to be left out.
fn whole_object(input: &[u8]) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    if input.first() != Some(&b'{') {
        return None;
    }
    loop {
        match input.get(at)? {
            b'"' => at += 1 + string_length(&input[at + 1..])?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return (at <= MAX_OBJECT).then_some(at);
        }
        if depth > MAX_DEPTH {
            return None;
        }
    }
}

/// The length of a string up to its closing quote, if it is there and the string not too long.
fn string_length(input: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += input[at..].iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if input[at] == b'"' {
            return (at <= MAX_TEXT).then_some(at);
        }
        at += 2;
        if at > input.len() {
            return None;
        }
    }
}

/// Between objects there may be white space only. Tells whether an object begins.
fn skip_blank(input: &mut &[u8], ended: bool) -> Result<bool, FrameError> {
    *input = input.trim_ascii_start();
    match input.first() {
        None => Ok(false),
        Some(b'{') if !ended => Ok(true),
        Some(_) => Err(FrameError::NotJson(excerpt(input))),
    }
}

/// A JSON value that grows as it arrives, within bounds: long strings are replaced by a note, and where that is not
/// enough whole fields are left out and the value counts as cut.
#[derive(Debug)]
struct Value {
    bytes: Vec<u8>,
    limit: usize,
    size: Size,
    depth: usize,
    complete: bool,
    in_string: bool,
    escaped: bool,
    /// Where the present string begins.
    string: usize,
    /// How much of the present string is left out.
    left_out: usize,
    /// Where each of the open outer brackets stands.
    opened: [usize; LEVELS],
    /// Nothing is kept until this depth is reached again.
    resume_at: Option<usize>,
}

impl Value {
    fn new(limit: usize) -> Self {
        Value {
            bytes: Vec::new(),
            limit,
            size: Size::Whole,
            depth: 0,
            complete: false,
            in_string: false,
            escaped: false,
            string: 0,
            left_out: 0,
            opened: [0; LEVELS],
            resume_at: None,
        }
    }

    fn is_open(&self) -> bool {
        self.depth > 0
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    /// Outside of every bracket and string.
    fn is_between(&self) -> bool {
        self.depth == 0 && !self.in_string
    }

    fn text(&self) -> Text<'_> {
        Text {
            bytes: self.bytes.trim_ascii(),
            encoding: Encoding::Json,
            size: self.size,
        }
    }

    fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.shrink_to(USUAL_OBJECT);
        *self = Value {
            bytes,
            ..Value::new(self.limit)
        };
    }

    fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }

    /// Takes the bytes that change nothing; tells the one after them, which does.
    fn take_plain(&mut self, input: &mut &[u8]) -> Option<u8> {
        let special = |byte: &u8| {
            if self.in_string {
                self.escaped || matches!(byte, b'"' | b'\\')
            } else {
                matches!(byte, b'"' | b'{' | b'}' | b'[' | b']' | b',')
            }
        };
        let length = input.iter().position(special).unwrap_or(input.len());
        let (plain, rest) = input.split_at(length);
        self.keep(plain);
        *input = rest;
        rest.first().copied()
    }

    fn step(&mut self, byte: u8) -> Result<(), FrameError> {
        if self.in_string {
            if byte == b'"' && !self.escaped {
                self.end_string();
            }
            self.escaped = !self.escaped && byte == b'\\';
            self.keep(&[byte]);
            return Ok(());
        }
        match byte {
            b'"' => {
                self.keep(&[byte]);
                self.in_string = true;
                self.string = self.bytes.len();
                self.left_out = 0;
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => return self.close(byte),
            _ => self.keep(&[byte]),
        }
        Ok(())
    }

    fn end_string(&mut self) {
        self.in_string = false;
        if self.left_out > 0 {
            let note = format!("({} bytes left out)", self.left_out);
            self.keep(note.as_bytes());
        }
    }

    fn open(&mut self, byte: u8) {
        if let Some(opened) = self.opened.get_mut(self.depth) {
            *opened = self.bytes.len();
        }
        self.depth += 1;
        self.keep(&[byte]);
        if self.depth > MAX_DEPTH && self.resume_at.is_none() {
            self.leave_out(0);
        }
    }

    fn close(&mut self, byte: u8) -> Result<(), FrameError> {
        self.keep(&[byte]);
        self.depth = self.depth.checked_sub(1).ok_or(FrameError::Unbalanced)?;
        if self.resume_at == Some(self.depth) {
            self.resume_at = None;
        }
        self.complete |= self.depth == 0;
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.resume_at.is_some() {
            return;
        }
        if self.in_string && (self.left_out > 0 || self.bytes.len() - self.string + bytes.len() > MAX_TEXT) {
            self.left_out += self.bytes.len() - self.string + bytes.len();
            self.bytes.truncate(self.string);
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > self.limit {
            self.leave_out(self.limit / 8);
        }
    }

    /// Leaves out the innermost of the outer fields that is as large as that; the whole where there is none.
    fn leave_out(&mut self, at_least: usize) {
        self.size = Size::Cut;
        let length = self.bytes.len();
        let level = (1..self.depth.min(LEVELS))
            .rev()
            .find(|level| length - self.opened[*level] >= at_least)
            .unwrap_or_default();
        self.bytes.truncate(self.opened[level]);
        self.bytes.extend_from_slice(b"null");
        self.resume_at = Some(level);
    }

    /// Whether a value of this key of the outermost object begins now.
    fn at_value_of(&self, key: &str) -> bool {
        let before = self
            .bytes
            .trim_ascii_end()
            .strip_suffix(b":")
            .map(<[u8]>::trim_ascii_end);
        let head = before.and_then(|before| before.strip_suffix(format!("\"{key}\"").as_bytes()));
        self.depth == 1 && !self.in_string && head.is_some_and(|head| head.last() != Some(&b'\\'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Texts = Vec<(String, Size)>;

    fn read_list(json: &[u8], piece: usize) -> Result<(Texts, String), FrameError> {
        let mut reader = ListReader::default();
        let mut found = Vec::new();
        for mut bytes in json.chunks(piece) {
            while let Some(item) = reader.next(&mut bytes)? {
                found.push((String::from_utf8_lossy(item.bytes).into_owned(), item.size));
            }
        }
        Ok((found, String::from_utf8_lossy(&reader.finish()?).into_owned()))
    }

    fn read_events(json: &[u8], piece: usize) -> Result<Texts, FrameError> {
        let found = super::super::read_events(json, Encoding::Json, piece)?.into_iter();
        Ok(found
            .map(|(event, size)| (String::from_utf8_lossy(&event).into_owned(), size))
            .collect())
    }

    fn read(json: &str, piece: usize) -> Result<(Vec<String>, String), FrameError> {
        let (items, envelope) = read_list(json.as_bytes(), piece)?;
        Ok((items.into_iter().map(|(item, _)| item).collect(), envelope))
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
        let endless = |head: &str| read(&(head.to_owned() + &"x".repeat(10 << 20)), 1 << 16);
        assert_eq!(endless("{"), Err(FrameError::TooLong));
        assert!(matches!(endless("{\"items\":["), Err(FrameError::Truncated(_))));
    }

    #[test]
    fn the_envelope_can_be_read_when_the_items_begin() {
        let mut reader = ListReader::default();
        let mut input = &br#"{"kind":"L","metadata":{"resourceVersion":"7"},"items":[{"a":1},{"#[..];
        assert!(reader.next(&mut input).unwrap().is_some());
        let envelope: serde_json::Value = serde_json::from_slice(&reader.envelope_so_far()).unwrap();
        assert_eq!(envelope["metadata"]["resourceVersion"], "7");
        assert_eq!(reader.next(&mut input).unwrap(), None);
    }

    #[test]
    fn long_strings_are_replaced_by_a_note() {
        let fits = "\\n".repeat(MAX_TEXT / 2);
        let long = "ü\\u00fc\\\"".repeat(1 << 20);
        let json = format!(r#"{{"items":[{{"a":"{fits}","b":"{long}","c":"{{"}},{{"d":1}}]}}"#);
        for piece in [1, 7, 4096, 1 << 20] {
            let (items, _) = read_list(json.as_bytes(), piece).unwrap();
            let expected = format!(
                r#"{{"a":"{fits}","b":"({} bytes left out)","c":"{{"}}"#,
                long.len()
            );
            assert_eq!(
                items,
                [(expected, Size::Whole), (r#"{"d":1}"#.into(), Size::Whole)]
            );
        }
    }

    #[test]
    fn what_is_too_large_keeps_its_name_and_harms_nothing_else() {
        let many = |text: &str| vec![text; (10 << 20) / text.len()].join(",");
        let numbers = many("1234567");
        let entries: Vec<String> = (0..700_000).map(|n| format!("\"label-{n:06}\":\"x\"")).collect();
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        let objects = [
            format!(r#"{{"endpoints":[{numbers}],"metadata":{{"name":"a"}}}}"#),
            format!(
                r#"{{"metadata":{{"annotations":{{{}}},"name":"a"}}}}"#,
                entries.join(",")
            ),
            format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"ports":[{numbers}],"x":[{numbers}]}}}}"#),
            format!(r#"{{"metadata":{{"name":"a"}},"spec":{deep}}}"#),
        ];
        for object in objects {
            let (items, _) = read_list(format!(r#"{{"items":[1,{object},2]}}"#).as_bytes(), 10_007).unwrap();
            assert_eq!(items.len(), 3);
            let text = format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n{{}}\n");
            let events = read_events(text.as_bytes(), 10_007).unwrap();
            assert_eq!(events[1..], [("{}".into(), Size::Whole)]);
            for (cut, size) in [&items[1], &events[0]] {
                assert_eq!(*size, Size::Cut);
                assert!(cut.len() <= MAX_OBJECT);
                let value: serde_json::Value = serde_json::from_str(cut).unwrap();
                let object = value.get("object").unwrap_or(&value);
                assert_eq!(object["metadata"]["name"], "a");
            }
        }
    }

    #[test]
    fn an_object_without_fields_to_leave_out_is_left_out_whole() {
        let flat: Vec<String> = (0..1_000_000).map(|n| format!("\"k{n:06}\":1")).collect();
        let json = format!(r#"{{"items":[{{{}}},{{"a":1}}]}}"#, flat.join(","));
        let (items, _) = read_list(json.as_bytes(), 1 << 16).unwrap();
        assert_eq!(
            items,
            [("null".into(), Size::Cut), (r#"{"a":1}"#.into(), Size::Whole)]
        );
    }

    #[test]
    fn events_come_apart_wherever_they_are_cut() {
        let text = b"{\"a\":\"}\n{\"}\n\n {\"b\":[{}]} \r\n{\"c\":1}{}\n{\"half\":";
        for piece in 1..text.len() {
            let found: Vec<String> = read_events(text, piece)
                .unwrap()
                .into_iter()
                .map(|(event, _)| event)
                .collect();
            assert_eq!(
                found,
                [r#"{"a":"}\n{"}"#, r#"{"b":[{}]}"#, r#"{"c":1}"#, "{}"]
                    .map(|event| event.replace("\\n", "\n"))
            );
        }
        assert_eq!(
            read_events(b"{}\n<html>", 99),
            Err(FrameError::NotJson("<html>".into()))
        );
        assert_eq!(read_events(b"{}}", 1), Err(FrameError::NotJson("}".into())));
    }
}
