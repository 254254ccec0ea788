//! What looks like a credential is struck out. Nothing that is gathered should hold one; this is for what nobody
//! thought of: an error message that quotes a URL, a comment in somebody else's rule. Pure.

const STRUCK: &str = "(struck out)";

/// The text without passwords in URLs, bearer tokens, JSON web tokens and private keys.
pub fn struck_out(text: &str) -> String {
    let text = without_keys(text);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let line = without_userinfo(line);
        out.push_str(&without_tokens(&line));
    }
    out
}

/// Everything between the lines that begin and end a private key.
fn without_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(BEGIN) {
        let key = &rest[start..];
        let stop = key.find(END).and_then(|end| {
            let tail = &key[end + END.len()..];
            tail.find("-----").map(|dashes| end + END.len() + dashes + 5)
        });
        out.push_str(&rest[..start]);
        out.push_str(STRUCK);
        rest = &key[stop.unwrap_or(key.len())..];
    }
    out + rest
}

/// `scheme://user:password@host` without what stands before the host.
fn without_userinfo(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(start) = rest.find("://") {
        let after = start + 3;
        let authority = rest[after..]
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '<' | '>' | '?' | '#'))
            .map_or(rest.len(), |end| after + end);
        out.push_str(&rest[..after]);
        match rest[after..authority].rfind('@') {
            Some(at) => {
                out.push_str(STRUCK);
                out.push_str(&rest[after + at..authority]);
            }
            None => out.push_str(&rest[after..authority]),
        }
        rest = &rest[authority..];
    }
    out + rest
}

/// Words that are a JSON web token, that follow `Bearer`, or that are the value of a field of a telling name. A service may be
/// called `token`: only `token=...` and `token: ...` are fields.
fn without_tokens(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '=' | '~');
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    let mut strike = false;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        let (gap, tail) = tail.split_at(tail.find(is_part).unwrap_or(tail.len()));
        let is_web_token = word.starts_with("eyJ") && word.matches('.').count() >= 2;
        let is_field_of = |name: &str| {
            let fields = ["token", "password", "access_token", "id_token"];
            fields.iter().any(|known| name.eq_ignore_ascii_case(known))
        };
        match word.split_once('=') {
            _ if is_web_token || strike => out.push_str(STRUCK),
            Some((name, value)) if is_field_of(name) && !value.is_empty() => {
                out.push_str(&format!("{name}={STRUCK}"));
            }
            _ => out.push_str(word),
        }
        let is_name = is_field_of(word) && !out.ends_with(&format!(":{word}"));
        let follows = gap.trim_matches(|c: char| c == '"' || c == '\'' || c == ' ');
        strike =
            (word.eq_ignore_ascii_case("bearer") && gap == " ") || (is_name && matches!(follows, ":" | "="));
        out.push_str(gap);
        rest = tail;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_struck_out_and_nothing_else_is() {
        for (text, without) in [
            ("https://10.0.0.1:6443/api", "https://10.0.0.1:6443/api"),
            (
                "proxy http://joe:hunter2@proxy:3128 refused",
                "proxy http://(struck out)@proxy:3128 refused",
            ),
            (
                "Authorization: Bearer abc.def-ghi\n",
                "Authorization: Bearer (struck out)\n",
            ),
            ("\"token\": \"abcdef\"", "\"token\": \"(struck out)\""),
            ("?token=abc&x=1", "?token=(struck out)&x=1"),
            ("got eyJhbGciOi.eyJpc3Mi.c2ln here", "got (struck out) here"),
            (
                "tokens are fine, 10.96.0.1:80/tcp",
                "tokens are fine, 10.96.0.1:80/tcp",
            ),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb",
                "a\n(struck out)\nb",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMIIE", "(struck out)"),
            ("{\"a\": [1, 2]}\n", "{\"a\": [1, 2]}\n"),
        ] {
            assert_eq!(struck_out(text), without);
        }
    }
}
