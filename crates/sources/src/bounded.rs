//! Text from outside, as it is kept and printed: on one line, and never at any length.

/// As long as a reason needs to be, with a field's path and the beginning of a value.
const MAX_REASON: usize = 300;
/// The same with the URL of a request.
const MAX_TROUBLE: usize = 1000;

/// Why an object, or a part of it, is not served.
pub(crate) fn reason(text: &str) -> String {
    line(text, MAX_REASON)
}

/// Why a source cannot be followed.
pub(crate) fn trouble(text: &str) -> String {
    line(text, MAX_TROUBLE)
}

fn line(text: &str, most: usize) -> String {
    let shown = excerpt(text, most);
    let mut bounded = String::with_capacity(shown.len());
    for character in shown.chars() {
        if character.is_control() {
            bounded.extend(character.escape_debug());
        } else {
            bounded.push(character);
        }
    }
    if shown.len() < text.len() {
        bounded.push_str("...");
    }
    bounded
}

/// A value as a reason shows it: quoted, escaped, and only its beginning.
pub(crate) fn quote(value: &str) -> String {
    const MAX: usize = 80;
    let shown = excerpt(value, MAX);
    let dots = if shown.len() < value.len() { "..." } else { "" };
    format!("\"{}{dots}\"", shown.escape_debug())
}

/// At most so many characters of the beginning.
pub(crate) fn excerpt(text: &str, most: usize) -> &str {
    match text.char_indices().nth(most) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_short_line() {
        assert_eq!(reason("spec.port: \"ü\""), "spec.port: \"ü\"");
        assert_eq!(reason("two\nlines"), "two\\nlines");
        let long = reason(&"ü".repeat(3 << 20));
        assert_eq!(long.chars().count(), MAX_REASON + 3);
        assert_eq!(quote(&"x".repeat(100)).len(), 80 + 2 + 3);
    }
}
