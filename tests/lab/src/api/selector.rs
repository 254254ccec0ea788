//! Label and field selectors as the real server reads them; what it refuses is refused.

use serde_json::Value;

use super::kinds::Kind;

/// Both selectors of a request, parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, Test)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::In(list) => value.is_some_and(|v| list.iter().any(|x| x == v)),
            Test::NotIn(list) => !value.is_some_and(|v| list.iter().any(|x| x == v)),
        }
    }
}

impl Selector {
    pub(super) fn parse(labels: &str, fields: &str, kind: &Kind) -> Result<Selector, String> {
        let labels = terms(labels).map(|t| label_term(&t)).collect::<Result<_, _>>()?;
        let fields = terms(fields)
            .map(|t| field_term(&t, kind))
            .collect::<Result<_, _>>()?;
        Ok(Selector { labels, fields })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels
            .iter()
            .all(|(key, test)| test.holds(labels[key].as_str()))
            && self
                .fields
                .iter()
                .all(|(path, test)| test.holds(Some(&field(object, path))))
    }
}

/// A field that is not there compares as the empty string.
fn field(object: &Value, path: &str) -> String {
    match path.split('.').fold(object, |value, part| &value[part]) {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Splits at commas that are not inside parentheses.
fn terms(text: &str) -> impl Iterator<Item = String> {
    let mut depth = 0;
    let mut out = vec![String::new()];
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push(c);
        }
    }
    out.into_iter()
        .map(|t| t.trim().to_owned())
        .filter(|t| !t.is_empty())
}

fn label_term(term: &str) -> Result<(String, Test), String> {
    let bad = || format!("unable to parse requirement: {term:?}");
    if let Some((key, list)) = term.strip_suffix(')').and_then(|t| t.split_once('(')) {
        let values = list.split(',').map(|v| v.trim().to_owned()).collect();
        return match key.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => Ok(((*key).to_owned(), Test::In(values))),
            [key, "notin"] => Ok(((*key).to_owned(), Test::NotIn(values))),
            _ => Err(bad()),
        };
    }
    let (key, test) = if let Some(key) = term.strip_prefix('!') {
        (key, Test::Missing)
    } else if let Some((key, value)) = term.split_once("!=") {
        (key, Test::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key, Test::In(vec![value.trim().to_owned()]))
    } else {
        (term, Test::Exists)
    };
    let key = key.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if key.is_empty() || !key.chars().all(fits) {
        Err(bad())
    } else {
        Ok((key.to_owned(), test))
    }
}

fn field_term(term: &str, kind: &Kind) -> Result<(String, Test), String> {
    let (path, test) = if let Some((path, value)) = term.split_once("!=") {
        (path, Test::NotIn(vec![value.to_owned()]))
    } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (path, Test::In(vec![value.to_owned()]))
    } else {
        return Err(format!("invalid selector: {term:?}; can't understand {term:?}"));
    };
    if !["metadata.name", "metadata.namespace"].contains(&path) && !kind.fields.contains(&path) {
        return Err(format!("field label not supported: {path}"));
    }
    Ok((path.to_owned(), test))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::KINDS;
    use super::*;

    fn selects(labels: &str, fields: &str) -> bool {
        let object = json!({
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "tier": ""}},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.1"},
        });
        Selector::parse(labels, fields, &KINDS[0])
            .unwrap()
            .selects(&object)
    }

    #[test]
    fn labels() {
        for yes in [
            "",
            "app",
            "app=web",
            "app==web",
            "app != db",
            "other!=x",
            "!other",
            "app in (db, web)",
            "app notin (db),tier",
            "other notin (x)",
            "tier=",
        ] {
            assert!(selects(yes, ""), "{yes}");
        }
        for no in [
            "!app",
            "app=db",
            "app!=web",
            "other",
            "app in (db)",
            "app,other=x",
            "app notin (db,web)",
        ] {
            assert!(!selects(no, ""), "{no}");
        }
        for bad in ["=x", "a b", "app in db", "app within (x)", "!"] {
            assert!(Selector::parse(bad, "", &KINDS[0]).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields() {
        assert!(selects("", "metadata.name=web,spec.type!=ClusterIP"));
        assert!(!selects("", "spec.clusterIP=None"));
        assert!(selects("", "spec.clusterIP!=None"));
        let refused = Selector::parse("", "spec.ports=1", &KINDS[0]).unwrap_err();
        assert_eq!(refused, "field label not supported: spec.ports");
        assert!(Selector::parse("", "metadata.name", &KINDS[0]).is_err());
    }
}
