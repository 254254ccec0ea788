//! `/flagz` and `/statusz`: text for people, or JSON or YAML for those who name the exact kind they want.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::{KUBERNETES_VERSION, clock};

/// One of the two pages, in both forms.
#[derive(Debug)]
pub struct Component {
    kind: &'static str,
    text: String,
    fields: Value,
}

/// A page in the form that the client accepts.
#[derive(Debug, PartialEq, Eq)]
pub enum Rendered {
    /// For people.
    Text(String),
    /// For programs.
    Structured {
        /// JSON or YAML.
        content_type: &'static str,
        /// The object.
        body: String,
        /// Said of a deprecated version.
        warning: Option<&'static str>,
    },
    /// The client wants something that does not exist; the body says so.
    NotAcceptable(String),
}

const NOTICE: &str = "Warning: this page is for people; its form may change at any time.";
const DEPRECATED: &str = "299 - \"config.k8s.io/v1alpha1 is deprecated, use config.k8s.io/v1beta1\"";
/// The Kubernetes release whose behaviour is offered.
const EMULATED: &str = "1.36";

impl Component {
    /// Every flag with its value.
    pub fn flagz(flags: &[(&'static str, String)]) -> Self {
        let mut text = format!("\nkube-proxy flagz\n{NOTICE}\n\n");
        for (name, value) in flags {
            let _ = writeln!(text, "{name}={value}");
        }
        let flags: serde_json::Map<_, _> = flags
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        Self {
            kind: "Flagz",
            text,
            fields: json!({ "flags": flags }),
        }
    }

    /// What runs here and since when.
    pub fn statusz(started: SystemTime, now: SystemTime) -> Self {
        let up = now.duration_since(started).unwrap_or_default().as_secs();
        let paths = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"];
        let binary = KUBERNETES_VERSION.trim_start_matches('v');
        let compiled = format!("none (ferry {}, rustc)", env!("CARGO_PKG_VERSION"));
        let text = format!(
            "\nkube-proxy statusz\n{NOTICE}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {compiled}\n\
             Binary version: {binary}\nEmulation version: {EMULATED}\nPaths: {}\n",
            clock::unix_date(&clock::local(started)),
            up / 3600,
            up / 60 % 60,
            up % 60,
            paths.join(" "),
        );
        let fields = json!({
            "startTime": clock::rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(clock::unix_seconds(started) as u64)),
            "uptimeSeconds": up,
            "goVersion": compiled,
            "binaryVersion": binary,
            "emulationVersion": EMULATED,
            "paths": paths,
        });
        Self {
            kind: "Statusz",
            text,
            fields,
        }
    }

    /// Picks the form by the `Accept` header: text for anyone who takes it, else exactly this kind of object.
    pub fn render(&self, accept: &str) -> Rendered {
        if accept.trim().is_empty() {
            return Rendered::Text(self.text.clone());
        }
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            match media {
                "*/*" | "text/*" | "text/plain" => return Rendered::Text(self.text.clone()),
                "application/json" => {
                    if let Some(version) = self.asked_version(parts) {
                        return self.structured("application/json", version, self.json(version));
                    }
                }
                "application/yaml" => {
                    if let Some(version) = self.asked_version(parts)
                        && let Ok(body) = serde_saphyr::to_string(&self.object(version))
                    {
                        return self.structured("application/yaml", version, body);
                    }
                }
                _ => {}
            }
        }
        Rendered::NotAcceptable(not_acceptable())
    }

    /// The version that the parameters `v`, `g` and `as` ask for, if they ask for this kind.
    fn asked_version<'a>(&self, parameters: impl Iterator<Item = &'a str>) -> Option<&'static str> {
        let (mut version, mut group, mut kind) = (None, None, None);
        for parameter in parameters {
            match parameter.split_once('=') {
                Some(("v", value)) => version = Some(value),
                Some(("g", value)) => group = Some(value),
                Some(("as", value)) => kind = Some(value),
                _ => {}
            }
        }
        if group != Some("config.k8s.io") || kind != Some(self.kind) {
            return None;
        }
        ["v1beta1", "v1alpha1"]
            .into_iter()
            .find(|known| version == Some(known))
    }

    fn structured(&self, content_type: &'static str, version: &str, body: String) -> Rendered {
        let warning = (version == "v1alpha1").then_some(DEPRECATED);
        Rendered::Structured {
            content_type,
            body,
            warning,
        }
    }

    fn object(&self, version: &str) -> Value {
        let mut object = self.fields.clone();
        object["kind"] = self.kind.into();
        object["apiVersion"] = format!("config.k8s.io/{version}").into();
        object["metadata"] = json!({ "name": "kube-proxy" });
        object
    }

    /// With what says what it is in front.
    fn json(&self, version: &str) -> String {
        let mut body = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"config.k8s.io/{version}\",\"metadata\":{{\"name\":\"kube-proxy\"}}",
            self.kind
        );
        if let Value::Object(fields) = &self.fields {
            for (name, value) in fields {
                let _ = write!(body, ",\"{name}\":{value}");
            }
        }
        body.push('}');
        body
    }
}

fn not_acceptable() -> String {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "only these media types are served: text/plain, and application/json or application/yaml \
                    with the parameters v, g and as",
        "reason": "NotAcceptable",
        "code": 406,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Component {
        Component::flagz(&[("bind-address", "0.0.0.0".into()), ("v", "2".into())])
    }

    #[test]
    fn people_get_text() {
        for accept in ["", "*/*", "text/plain", "text/html,*/*;q=0.8"] {
            let Rendered::Text(text) = flags().render(accept) else {
                panic!("{accept:?}")
            };
            assert!(text.starts_with("\nkube-proxy flagz\n"), "{text}");
            assert!(text.ends_with("\nbind-address=0.0.0.0\nv=2\n"), "{text}");
        }
    }

    #[test]
    fn programs_get_the_kind_they_name() {
        assert_eq!(
            flags().render("application/json;v=v1beta1;g=config.k8s.io;as=Flagz"),
            Rendered::Structured {
                content_type: "application/json",
                body: "{\"kind\":\"Flagz\",\"apiVersion\":\"config.k8s.io/v1beta1\",\
                       \"metadata\":{\"name\":\"kube-proxy\"},\
                       \"flags\":{\"bind-address\":\"0.0.0.0\",\"v\":\"2\"}}"
                    .into(),
                warning: None,
            }
        );
        let old = flags().render("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz");
        assert!(
            matches!(old, Rendered::Structured { warning: Some(_), .. }),
            "{old:?}"
        );
        let Rendered::Structured {
            content_type, body, ..
        } = flags().render("application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz")
        else {
            panic!()
        };
        assert_eq!(content_type, "application/yaml");
        assert_eq!(
            body,
            "apiVersion: config.k8s.io/v1beta1\nflags:\n  bind-address: \"0.0.0.0\"\n  v: \"2\"\nkind: Flagz\n\
             metadata:\n  name: kube-proxy\n"
        );
        for refused in [
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
            "image/png",
        ] {
            assert!(
                matches!(flags().render(refused), Rendered::NotAcceptable(_)),
                "{refused}"
            );
        }
    }

    #[test]
    fn status_tells_start_and_uptime() {
        let started = SystemTime::UNIX_EPOCH + Duration::new(1_794_739_671, 5);
        let page = Component::statusz(started, started + Duration::from_secs(3723));
        assert!(
            page.text.contains(&format!(
                "\nStarted: {}\n",
                clock::unix_date(&clock::local(started))
            )),
            "{}",
            page.text
        );
        assert!(page.text.contains("\nUp: 1 hr 02 min 03 sec\n"), "{}", page.text);
        assert_eq!(page.fields["startTime"], "2026-11-15T10:47:51Z");
        assert_eq!(page.fields["uptimeSeconds"], 3723);
        assert!(
            page.text
                .contains("\nBinary version: 1.36.4\nEmulation version: 1.36\n"),
            "{}",
            page.text
        );
    }
}
