//! Text that becomes part of a page: escaped, always. Pure.

use std::fmt::{self, Display, Write};

/// A value as text of a page or of an attribute.
pub(super) struct Text<T>(pub(super) T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                other => self.0.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// What stands behind `?` by name, decoded; of two with one name the first.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(decoded(value)).filter(|value| !value.is_empty())
}

/// `%2F` and `+` as what they stand for.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let hex = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        assert_eq!(
            Text("<a b='c'>&\"").to_string(),
            "&lt;a b=&#39;c&#39;&gt;&amp;&quot;"
        );
        assert_eq!(
            parameter("a=1&to=10.0.0.1%3A80%2Fudp&to=x", "to").as_deref(),
            Some("10.0.0.1:80/udp")
        );
        assert_eq!(parameter("a=+&b", "a"), None);
        assert_eq!(decoded("a%2"), "a%2");
    }
}
