//! What a terminal sends when keys are pressed. Pure.

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Back,
    Erase,
    Quit,
}

/// The keys in what was read at once; a sequence that is not known means nothing.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut keys = Vec::new();
    let mut rest = text.as_ref();
    const SEQUENCES: [(&str, Key); 8] = [
        ("\x1b[A", Key::Up),
        ("\x1bOA", Key::Up),
        ("\x1b[B", Key::Down),
        ("\x1bOB", Key::Down),
        ("\x1b[5~", Key::PageUp),
        ("\x1b[6~", Key::PageDown),
        ("\x1b[D", Key::Back),
        ("\x1b[C", Key::Enter),
    ];
    while let Some(first) = rest.chars().next() {
        if let Some((sequence, key)) = SEQUENCES.iter().find(|(sequence, _)| rest.starts_with(sequence)) {
            keys.push(*key);
            rest = &rest[sequence.len()..];
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '\x1b' if rest.starts_with(['[', 'O']) => {
                let end = rest[1..].find(|c: char| c.is_ascii_alphabetic() || c == '~');
                rest = end.map_or("", |end| &rest[1 + end + 1..]);
            }
            '\x1b' => keys.push(Key::Back),
            '\r' | '\n' => keys.push(Key::Enter),
            '\x08' | '\x7f' => keys.push(Key::Erase),
            '\x03' | '\x04' => keys.push(Key::Quit),
            other if !other.is_control() => keys.push(Key::Char(other)),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_told_from_letters() {
        assert_eq!(keys(b"a/\r"), [Key::Char('a'), Key::Char('/'), Key::Enter]);
        assert_eq!(keys(b"\x1b[A\x1b[6~x"), [Key::Up, Key::PageDown, Key::Char('x')]);
        assert_eq!(keys(b"\x1b"), [Key::Back]);
        assert_eq!(
            keys(b"\x1b[1;5Pq\x7f\x03"),
            [Key::Char('q'), Key::Erase, Key::Quit]
        );
        assert_eq!(keys(b"\x1b[9"), []);
    }
}
