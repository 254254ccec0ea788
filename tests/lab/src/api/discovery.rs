//! What the server offers, for clients that look before they ask (kubectl does).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::kinds::KINDS;

/// Answers a discovery path, leaving out kinds that are said to be missing.
pub(super) fn answer(path: &str, missing: &BTreeSet<String>) -> Option<Value> {
    let served = || KINDS.iter().filter(|k| !missing.contains(k.plural));
    let groups: BTreeSet<&str> = served().map(|k| k.group).filter(|g| !g.is_empty()).collect();
    match path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "lab", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/lab",
        })),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> = groups.into_iter().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", name] if groups.contains(name) => Some(group(name)),
        ["api", "v1"] => Some(resources("", "v1", missing)),
        ["apis", name, "v1"] if groups.contains(name) => {
            Some(resources(name, &format!("{name}/v1"), missing))
        }
        _ => None,
    }
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, version: &str, missing: &BTreeSet<String>) -> Value {
    let kinds = KINDS
        .iter()
        .filter(|k| k.group == group && !missing.contains(k.plural));
    let resources: Vec<Value> = kinds
        .map(|k| {
            let short: Vec<&str> = Some(k.short).filter(|s| !s.is_empty()).into_iter().collect();
            json!({
                "name": k.plural, "singularName": k.kind.to_lowercase(), "namespaced": k.namespaced,
                "kind": k.kind, "shortNames": short,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}
