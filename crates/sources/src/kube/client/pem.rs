//! PEM: base64 between lines that say what it is.

use data_encoding::BASE64;

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) label: String,
    pub(super) der: Vec<u8>,
}

/// The blocks of a text that can be read; what is between them, or cannot be read, is passed over.
pub(super) fn blocks(text: &[u8]) -> Vec<Block> {
    let text = String::from_utf8_lossy(text);
    let mut blocks = Vec::new();
    let mut rest: &str = &text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        rest = after;
        let Some((label, body)) = after.split_once("-----") else {
            break;
        };
        let Some((body, _)) = body.split_once(&format!("-----END {label}-----")) else {
            continue;
        };
        let body: Vec<u8> = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        if let Ok(der) = BASE64.decode(&body) {
            blocks.push(Block {
                label: label.to_owned(),
                der,
            });
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_among_anything() {
        let text = "junk\n-----BEGIN A-----\naGVs\r\nbG8=\n-----END A-----\n-----BEGIN B-----\n!!!\n-----END B-----\n\
                    -----BEGIN C-----\n-----BEGIN D-----\naGk=\n-----END D-----\n-----BEGIN";
        let found: Vec<_> = blocks(text.as_bytes())
            .into_iter()
            .map(|block| (block.label, String::from_utf8(block.der).unwrap()))
            .collect();
        assert_eq!(found, [("A".into(), "hello".into()), ("D".into(), "hi".into())]);
        assert!(blocks(b"\xff\xfe-----BEGIN ").is_empty());
    }
}
