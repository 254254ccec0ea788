//! The file as it is written, with the checks that need no more than the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Refused, refused};
use crate::kube::client::secret::Secret;

/// Longer ones are no kubeconfigs.
const MAX_TEXT: usize = 8 << 20;
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;

/// The file. Fields that are not listed are passed over, as client-go does.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(in crate::kube) struct Kubeconfig {
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable", rename = "apiVersion")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "nullable")]
    pub(super) users: Vec<NamedUser>,
    #[serde(deserialize_with = "nullable")]
    pub(super) contexts: Vec<NamedContext>,
    #[serde(deserialize_with = "nullable")]
    pub(super) current_context: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedCluster {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedUser {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) user: AuthInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedContext {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) context: Context,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    #[serde(deserialize_with = "nullable")]
    pub(super) cluster: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) user: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Cluster {
    #[serde(deserialize_with = "nullable")]
    pub(super) server: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) tls_server_name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) insecure_skip_tls_verify: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) certificate_authority: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) certificate_authority_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    pub(super) proxy_url: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) disable_compression: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) extensions: Vec<Extension>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Extension {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    pub(super) extension: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct AuthInfo {
    #[serde(deserialize_with = "nullable")]
    pub(super) client_certificate: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) client_certificate_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    pub(super) client_key: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) client_key_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    pub(super) token: Secret,
    #[serde(deserialize_with = "nullable", rename = "tokenFile")]
    pub(super) token_file: PathBuf,
    #[serde(deserialize_with = "nullable", rename = "as")]
    pub(super) impersonate: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) as_uid: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) as_groups: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) as_user_extra: BTreeMap<String, Vec<String>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) username: Secret,
    #[serde(deserialize_with = "nullable")]
    pub(super) password: Secret,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<ExecConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExecConfig {
    #[serde(deserialize_with = "nullable")]
    pub(super) command: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) args: Vec<Secret>,
    #[serde(deserialize_with = "nullable")]
    pub(super) env: Vec<Variable>,
    #[serde(deserialize_with = "nullable")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) install_hint: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) provide_cluster_info: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) interactive_mode: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) value: Secret,
}

/// A field that is null is as good as none.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

fn base64<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text: String = nullable(from)?;
    let text: Vec<u8> = text
        .bytes()
        .filter(|byte| !matches!(byte, b'\r' | b'\n'))
        .collect();
    data_encoding::BASE64
        .decode(&text)
        .map_err(|_| serde::de::Error::custom("not base64, expected base64"))
}

impl Kubeconfig {
    /// The first document of a text; an empty text is an empty kubeconfig.
    pub(in crate::kube) fn parse(mut text: &[u8]) -> Result<Kubeconfig, Refused> {
        if text.len() > MAX_TEXT {
            return refused("the file", format!("it is longer than {} MiB", MAX_TEXT >> 20));
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_reader_input_bytes: Some(MAX_TEXT),
                max_events: 2 * MAX_NODES,
                max_nodes: MAX_NODES,
                max_total_scalar_bytes: MAX_TEXT,
                max_depth: MAX_DEPTH,
            },
            with_snippet: false,
        };
        let first = serde_saphyr::read_with_options::<_, Value>(&mut text, options).next();
        let value = match first {
            None => Value::Null,
            Some(Ok(value)) => value,
            Some(Err(error)) => {
                // The message may repeat what stands in the file.
                return match error.location() {
                    Some(place) => refused(format!("line {}", place.line()), "this is not valid YAML"),
                    None => refused("the file", "it is not valid YAML"),
                };
            }
        };
        if value.is_null() {
            return Ok(Kubeconfig::default());
        }
        check_mappings(&value)?;
        let config: Kubeconfig = serde_path_to_error::deserialize(value).map_err(|error| Refused {
            field: error.path().to_string(),
            // Before this stands what was found.
            reason: match error.inner().to_string().rsplit_once("expected ") {
                Some((_, wanted)) => format!("it must be {wanted}"),
                None => "it has the wrong type".into(),
            },
        })?;
        config.check_whole()?;
        Ok(config)
    }

    fn check_whole(&self) -> Result<(), Refused> {
        if !matches!(self.kind.as_str(), "" | "Config") {
            return refused("kind", "it must be Config");
        }
        if !matches!(self.api_version.as_str(), "" | "v1") {
            return refused("apiVersion", "it must be v1");
        }
        for (field, names) in [
            (
                "clusters",
                self.clusters.iter().map(|named| &named.name).collect::<Vec<_>>(),
            ),
            ("users", self.users.iter().map(|named| &named.name).collect()),
            (
                "contexts",
                self.contexts.iter().map(|named| &named.name).collect(),
            ),
        ] {
            let mut sorted = names;
            sorted.sort();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return refused(field, format!("the name {:?} stands twice", twice[0]));
            }
        }
        Ok(())
    }
}

/// A list in the place of a mapping would pass for one whose fields stand in order.
fn check_mappings(value: &Value) -> Result<(), Refused> {
    let check = |value: &Value, field: &dyn Fn() -> String| {
        if value.is_object() || value.is_null() {
            Ok(())
        } else {
            refused(field(), "it must be a mapping")
        }
    };
    check(value, &|| "the file".into())?;
    for (list, key) in [
        ("clusters", "cluster"),
        ("users", "user"),
        ("contexts", "context"),
    ] {
        for (at, item) in value[list].as_array().into_iter().flatten().enumerate() {
            check(item, &|| format!("{list}[{at}]"))?;
            check(&item[key], &|| format!("{list}[{at}].{key}"))?;
            for inner in ["exec", "auth-provider"] {
                check(&item[key][inner], &|| format!("{list}[{at}].{key}.{inner}"))?;
            }
            let nested = item[key]["exec"]["env"].as_array().into_iter();
            for variable in nested.chain(item[key]["extensions"].as_array()).flatten() {
                check(variable, &|| format!("{list}[{at}].{key}"))?;
            }
        }
    }
    Ok(())
}
