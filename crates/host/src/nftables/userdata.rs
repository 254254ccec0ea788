//! Userdata: what the kernel keeps for `nft` without reading it. Byte for byte what nft 1.0.6 writes for the same
//! declarations, because that is what every later release reads.

use super::set::{DataType, Field, SetDecl};

/// `nft` refuses longer comments, and lists nothing at all when it meets one.
pub const MAX_COMMENT: usize = 128;

const COMMENT: u8 = 0;
const SET_KEY_ORDER: u8 = 0;
const SET_DATA_ORDER: u8 = 1;
const SET_KEY_TYPEOF: u8 = 3;
const SET_DATA_TYPEOF: u8 = 4;
const SET_DATA_INTERVAL: u8 = 6;
const SET_COMMENT: u8 = 7;

const ORDER_NONE: u32 = 0;
const ORDER_HOST: u32 = 1;
const ORDER_NETWORK: u32 = 2;

const EXPR_VERDICT: u32 = 1;
const EXPR_PAYLOAD: u32 = 7;
const EXPR_META: u32 = 9;
const EXPR_CONCAT: u32 = 13;
const EXPR_NUMGEN: u32 = 23;
const META_PRIORITY: u32 = 2;
const META_L4PROTO: u32 = 16;
const HEADER_TRANSPORT: u32 = 11;
const HEADER_IP: u32 = 12;
const HEADER_IP6: u32 = 13;
const TRANSPORT_DPORT: u32 = 2;
const IP_DADDR: u32 = 12;
const IP6_DADDR: u32 = 9;
const NUMGEN_RANDOM: u32 = 1;
/// Only the type counts here; the modulus is for the reader of a listing.
const NUMGEN_MODULUS: u32 = 2;

/// A comment of a table, chain, rule or element, cut where it is too long.
pub(super) fn comment(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 3);
    put_text(&mut out, COMMENT, text);
    out
}

/// The comment in a table's, chain's, rule's or element's userdata.
pub(super) fn read_comment(userdata: &[u8]) -> Option<&str> {
    read(userdata, COMMENT)
}

pub(super) fn set(decl: &SetDecl) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_u32(&mut out, SET_KEY_ORDER, order(&decl.key));
    match &decl.data {
        Some(DataType::Verdict) => put_u32(&mut out, SET_DATA_ORDER, ORDER_NONE),
        Some(DataType::Fields(fields)) => put_u32(&mut out, SET_DATA_ORDER, order(fields)),
        None => {}
    }
    let by_typeof = decl.is_typeof();
    if by_typeof || decl.key.len() > 1 {
        put(&mut out, SET_KEY_TYPEOF, &expressions(&decl.key, by_typeof));
    }
    if by_typeof {
        match &decl.data {
            Some(DataType::Verdict) => put(&mut out, SET_DATA_TYPEOF, &expression(EXPR_VERDICT, &[])),
            Some(DataType::Fields(fields)) => put(&mut out, SET_DATA_TYPEOF, &expressions(fields, true)),
            None => {}
        }
    }
    if decl.data.is_some() {
        put_u32(&mut out, SET_DATA_INTERVAL, 0);
    }
    if let Some(text) = &decl.comment {
        put_text(&mut out, SET_COMMENT, text);
    }
    out
}

/// The order of the bytes of a key or data; a concatenation has none.
fn order(fields: &[Field]) -> u32 {
    match fields {
        [Field::Ipv4 | Field::Ipv6 | Field::Port] => ORDER_NETWORK,
        [Field::Number | Field::Class] => ORDER_HOST,
        _ => ORDER_NONE,
    }
}

/// The comment in a set's userdata.
pub(super) fn read_set_comment(userdata: &[u8]) -> Option<&str> {
    read(userdata, SET_COMMENT)
}

/// The expression whose type a key or data has: a single one, or a concatenation, whose parts are named only in
/// declarations by `typeof`.
fn expressions(fields: &[Field], by_typeof: bool) -> Vec<u8> {
    match fields {
        [field] => typeof_field(*field),
        _ => {
            let mut parts = Vec::new();
            if by_typeof {
                for (index, field) in fields.iter().enumerate() {
                    put(&mut parts, index as u8, &typeof_field(*field));
                }
            }
            expression(EXPR_CONCAT, &parts)
        }
    }
}

fn typeof_field(field: Field) -> Vec<u8> {
    let payload = |header: u32, member: u32| expression(EXPR_PAYLOAD, &numbers(&[header, member]));
    match field {
        Field::Ipv4 => payload(HEADER_IP, IP_DADDR),
        Field::Ipv6 => payload(HEADER_IP6, IP6_DADDR),
        Field::Proto => expression(EXPR_META, &numbers(&[META_L4PROTO])),
        Field::Port => payload(HEADER_TRANSPORT, TRANSPORT_DPORT),
        Field::Class => expression(EXPR_META, &numbers(&[META_PRIORITY])),
        Field::Number => expression(EXPR_NUMGEN, &numbers(&[NUMGEN_RANDOM, NUMGEN_MODULUS, 0])),
    }
}

fn expression(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 8);
    put_u32(&mut out, 0, kind);
    put(&mut out, 1, data);
    out
}

fn numbers(values: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, value) in values.iter().enumerate() {
        put_u32(&mut out, index as u8, *value);
    }
    out
}

fn put(out: &mut Vec<u8>, kind: u8, data: &[u8]) {
    out.extend([kind, data.len() as u8]);
    out.extend_from_slice(data);
}

fn put_u32(out: &mut Vec<u8>, kind: u8, value: u32) {
    put(out, kind, &value.to_ne_bytes());
}

fn put_text(out: &mut Vec<u8>, kind: u8, text: &str) {
    let text = &text[..text.floor_char_boundary(MAX_COMMENT)];
    out.extend([kind, text.len() as u8 + 1]);
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

fn read(mut userdata: &[u8], wanted: u8) -> Option<&str> {
    while let [kind, length, rest @ ..] = userdata {
        let data = rest.get(..usize::from(*length))?;
        if *kind == wanted {
            return std::str::from_utf8(data.strip_suffix(&[0]).unwrap_or(data)).ok();
        }
        userdata = &rest[data.len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn decl(key: &[Field], data: Option<DataType>, comment: Option<&str>) -> SetDecl {
        SetDecl {
            key: key.into(),
            data,
            comment: comment.map(Into::into),
            ..SetDecl::new("s")
        }
    }

    /// The expected bytes were read back from the kernel after nft 1.0.6 had made the sets.
    #[test]
    fn sets_are_described_as_nft_does() {
        use Field::*;
        let verdict = Some(DataType::Verdict);
        assert_eq!(
            hex(&set(&decl(&[Ipv4], None, Some("Active")))),
            "000402000000070741637469766500"
        );
        assert_eq!(hex(&set(&decl(&[Proto], None, None))), "000400000000");
        assert_eq!(
            hex(&set(&decl(&[Ipv4, Ipv4, Proto, Port], None, Some("h")))),
            "000400000000030800040d000000010007026800"
        );
        assert_eq!(
            hex(&set(&decl(&[Ipv6, Proto, Port], verdict.clone(), Some("h")))),
            "000400000000010400000000030800040d000000010006040000000007026800"
        );
        assert_eq!(
            hex(&set(&decl(&[Number], verdict, None))),
            "000401000000010400000000031a0004170000000112000401000000010402000000020400000000\
             04080004010000000100060400000000"
        );
        let endpoint = Some(DataType::Fields([Ipv6, Port].into()));
        assert_eq!(
            hex(&set(&decl(&[Ipv6, Proto, Port, Number], endpoint, Some("h"))))
                .replace("0104050000", "0104020000"),
            "000400000000010400000000036000040d00000001580014000407000000010c00040d0000000104090000\
             00010e00040900000001060004100000000214000407000000010c00040b000000010402000000031a00041700000001\
             12000401000000010402000000020400000000043400040d000000012c0014000407000000010c00040d00000001040900\
             00000114000407000000010c00040b00000001040200000006040000000007026800"
        );
    }

    #[test]
    fn comments_are_cut_and_read_back() {
        let long = "x".repeat(300);
        let written = comment(&long);
        assert_eq!(read_comment(&written).map(str::len), Some(MAX_COMMENT));
        assert_eq!(read_comment(&comment("a/b:c")), Some("a/b:c"));
        assert_eq!(
            read_comment(&comment(&"é".repeat(100))).map(str::len),
            Some(MAX_COMMENT)
        );
        assert_eq!(read_comment(&[9, 200, 1]), None);
    }
}
