//! Quoting and comma-separated lists.

/// A text in double quotes with Go's escapes.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() || matches!(c, '\u{a0}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Several messages as one, or the only one as it is, if there are any.
pub fn aggregate(messages: &[String]) -> Result<(), String> {
    match messages {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Reads one line of comma-separated values; a value in double quotes may hold commas.
pub fn parse_list(text: &str) -> Result<Vec<String>, String> {
    let mut values = Vec::new();
    if text.is_empty() {
        return Ok(values);
    }
    let line = text
        .split_once('\n')
        .map_or(text, |(first, _)| first.strip_suffix('\r').unwrap_or(first));
    let mut rest = line;
    loop {
        let column = line.len() - rest.len();
        let (value, after) = parse_value(rest, column)?;
        values.push(value);
        match after {
            Some(after) => rest = after,
            None => return Ok(values),
        }
    }
}

/// One value and what follows its comma.
fn parse_value(rest: &str, column: usize) -> Result<(String, Option<&str>), String> {
    let wrong = |at: usize, why: &str| {
        Err(format!(
            "parse error on line 1, column {}: {why}",
            column + at + 1
        ))
    };
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, after) = match rest.split_once(',') {
            Some((value, after)) => (value, Some(after)),
            None => (rest, None),
        };
        return match value.find('"') {
            Some(at) => wrong(at, "bare \" in non-quoted-field"),
            None => Ok((value.to_owned(), after)),
        };
    };
    let mut value = String::new();
    let mut inner = quoted;
    loop {
        let Some(end) = inner.find('"') else {
            return wrong(rest.len(), "extraneous or missing \" in quoted-field");
        };
        value.push_str(&inner[..end]);
        inner = &inner[end + 1..];
        if let Some(after) = inner.strip_prefix('"') {
            value.push('"');
            inner = after;
        } else if let Some(after) = inner.strip_prefix(',') {
            return Ok((value, Some(after)));
        } else if inner.is_empty() {
            return Ok((value, None));
        } else {
            return wrong(
                rest.len() - inner.len() - 1,
                "extraneous or missing \" in quoted-field",
            );
        }
    }
}

/// A list as Go's flag library shows it: comma-separated in brackets.
pub fn format_list(values: &[String]) -> String {
    let needs_quotes = |value: &String| value.contains([',', '"', '\n', '\r']) || value.starts_with(' ');
    let written: Vec<String> = values
        .iter()
        .map(|value| {
            if needs_quotes(value) {
                format!("\"{}\"", value.replace('"', "\"\""))
            } else {
                value.clone()
            }
        })
        .collect();
    format!("[{}]", written.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (text, values) in [
            ("", vec![]),
            ("a", vec!["a"]),
            ("a,b", vec!["a", "b"]),
            ("a,", vec!["a", ""]),
            (" a , b ", vec![" a ", " b "]),
            (r#""a,b",c"#, vec!["a,b", "c"]),
            (r#""a""b""#, vec![r#"a"b"#]),
        ] {
            assert_eq!(
                parse_list(text),
                Ok(values.iter().map(|&v| v.to_owned()).collect()),
                "{text}"
            );
        }
        assert_eq!(
            parse_list(r#"a,b"c"#),
            Err("parse error on line 1, column 4: bare \" in non-quoted-field".to_owned())
        );
        assert!(parse_list(r#""a"#).is_err());
        assert!(parse_list(r#""a"b"#).is_err());
    }

    #[test]
    fn lists_are_shown_as_they_can_be_read() {
        let values = ["a", "b,c", "d\"e"].map(str::to_owned);
        let shown = format_list(&values);
        assert_eq!(shown, r#"[a,"b,c","d""e"]"#);
        assert_eq!(parse_list(&shown[1..shown.len() - 1]), Ok(values.to_vec()));
    }

    #[test]
    fn quotes() {
        assert_eq!(quote("a\"b\\c\nd\u{1}é"), "\"a\\\"b\\\\c\\nd\\x01é\"");
    }
}
