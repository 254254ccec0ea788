//! The query of a request.

use std::collections::BTreeMap;

/// Parameters by name, percent-decoded; of a repeated one the last counts.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|p| !p.is_empty());
        Query(
            pairs
                .map(|p| p.split_once('=').unwrap_or((p, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        matches!(self.get(name), "1" | "t" | "true" | "True" | "TRUE")
    }

    /// A number; nothing, or something else, is `None`.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name).parse().ok()
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(|d| d.and_then(|d| char::from(d).to_digit(16)));
                if let [Some(high), Some(low)] = digits {
                    out.push((high * 16 + low) as u8);
                }
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn parameters() {
        let query =
            Query::parse("watch=true&labelSelector=%21a%2Cb+in+%28x%29&limit=5&empty=&resourceVersion=");
        assert!(query.is_set("watch") && !query.is_set("empty"));
        assert_eq!(query.get("labelSelector"), "!a,b in (x)");
        assert_eq!(query.number("limit"), Some(5));
        assert_eq!(query.number("resourceVersion"), None);
    }
}
