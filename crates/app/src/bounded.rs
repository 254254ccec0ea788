//! Text that may come from anywhere, cut to a length at which it can be kept and printed. Pure.

/// The beginning of a text, and how much there would be more.
pub(crate) fn bounded(mut text: String, most: usize) -> String {
    if text.len() > most {
        let left = text.floor_char_boundary(most);
        let more = text.len() - left;
        text.truncate(left);
        text.push_str(&format!("... ({more} bytes more)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_ends_with_a_letter_and_says_so() {
        assert_eq!(bounded("short".into(), 5), "short");
        assert_eq!(bounded("äöü".into(), 3), "ä... (4 bytes more)");
        assert!(bounded("x".repeat(1_000_000), 100).len() < 130);
    }
}
