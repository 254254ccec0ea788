//! Objects read with nothing overlooked.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    pub account: ServiceAccount,
    pub cluster_binding: ClusterRoleBinding,
    pub role: Role,
    pub binding: RoleBinding,
    pub daemons: DaemonSet,
    /// A kubeadm cluster has its own.
    pub config: Option<ConfigMap>,
}

/// The objects of a stream of YAML documents: each of the expected kinds once.
pub fn objects(yaml: &str) -> Result<Objects> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    let mut documents: Vec<Value> = documents.into_iter().filter(|d| !d.is_null()).collect();
    let mut take = |api_version: &str, kind: &str| -> Option<Value> {
        let at = documents
            .iter()
            .position(|d| d["apiVersion"] == api_version && d["kind"] == kind)?;
        Some(documents.remove(at))
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let found = Objects {
        account: strict(take("v1", "ServiceAccount"))?.context("no ServiceAccount")?,
        cluster_binding: strict(take(rbac, "ClusterRoleBinding"))?.context("no ClusterRoleBinding")?,
        role: strict(take(rbac, "Role"))?.context("no Role")?,
        binding: strict(take(rbac, "RoleBinding"))?.context("no RoleBinding")?,
        daemons: strict(take("apps/v1", "DaemonSet"))?.context("no DaemonSet")?,
        config: strict(take("v1", "ConfigMap"))?,
    };
    if let Some(other) = documents.first() {
        bail!("unexpected: {other:#}");
    }
    Ok(found)
}

/// Unknown fields are skipped in reading, so what was read is written again: both must say the same.
fn strict<T: DeserializeOwned + Serialize>(object: Option<Value>) -> Result<Option<T>> {
    let Some(object) = object else {
        return Ok(None);
    };
    let read: T = serde_json::from_value(object.clone()).with_context(|| format!("{object:#}"))?;
    let written = serde_json::to_value(&read)?;
    let lost = difference(&object, &written, "");
    if !lost.is_empty() {
        bail!(
            "{} {}: not known to Kubernetes: {}",
            object["kind"],
            object["metadata"]["name"],
            lost.join(", ")
        );
    }
    Ok(Some(read))
}

/// The fields of the first that the second has not, or has otherwise.
fn difference(first: &Value, second: &Value, path: &str) -> Vec<String> {
    match (first, second) {
        (Value::Object(a), Value::Object(b)) => a
            .iter()
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match b.get(key) {
                    Some(other) => difference(value, other, &path),
                    None => vec![path],
                }
            })
            .collect(),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs
                .flat_map(|(i, (a, b))| difference(a, b, &format!("{path}[{i}]")))
                .collect()
        }
        (a, b) if a == b => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_unknown_field_is_told_with_its_place() {
        let object = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "comand": ["ferry"]}]}}},
        });
        let error = strict::<DaemonSet>(Some(object)).unwrap_err().to_string();
        assert!(
            error.contains(".spec.template.spec.containers[0].comand"),
            "{error}"
        );
    }

    #[test]
    fn a_field_of_the_wrong_type_is_an_error() {
        let object = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"},
            "spec": {"selector": {}, "minReadySeconds": "ten", "template": {}},
        });
        assert!(strict::<DaemonSet>(Some(object)).is_err());
    }
}
