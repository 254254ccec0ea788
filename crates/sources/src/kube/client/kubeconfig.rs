//! A kubeconfig: read, checked as client-go checks it, and turned into settings. Reads no file itself.
//!
//! Nothing of a kubeconfig's values is repeated in an error: they may be secrets, or stand next to one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::address::{Url, without_user};
use super::exec::{self, Plugin};
use super::secret::Secret;
use super::settings::{Impersonation, Settings, Source, Tokens, Trust, User};

/// Longer ones are no kubeconfigs.
const MAX_TEXT: usize = 8 << 20;
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;

/// What is wrong with a kubeconfig, and with which part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Refused {
    pub field: String,
    pub reason: String,
}

pub(super) fn refused<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T, Refused> {
    Err(Refused {
        field: field.into(),
        reason: reason.into(),
    })
}

/// The file. Fields that are not listed are passed over, as client-go does.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(in super::super) struct Kubeconfig {
    #[serde(deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable", rename = "apiVersion")]
    api_version: String,
    #[serde(deserialize_with = "nullable")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "nullable")]
    users: Vec<NamedUser>,
    #[serde(deserialize_with = "nullable")]
    contexts: Vec<NamedContext>,
    #[serde(deserialize_with = "nullable")]
    current_context: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    user: AuthInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    context: Context,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Context {
    #[serde(deserialize_with = "nullable")]
    cluster: String,
    #[serde(deserialize_with = "nullable")]
    user: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    #[serde(deserialize_with = "nullable")]
    server: String,
    #[serde(deserialize_with = "nullable")]
    tls_server_name: String,
    #[serde(deserialize_with = "nullable")]
    insecure_skip_tls_verify: bool,
    #[serde(deserialize_with = "nullable")]
    certificate_authority: PathBuf,
    #[serde(deserialize_with = "base64")]
    certificate_authority_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    proxy_url: String,
    #[serde(deserialize_with = "nullable")]
    disable_compression: bool,
    #[serde(deserialize_with = "nullable")]
    extensions: Vec<Extension>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Extension {
    #[serde(deserialize_with = "nullable")]
    name: String,
    extension: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct AuthInfo {
    #[serde(deserialize_with = "nullable")]
    client_certificate: PathBuf,
    #[serde(deserialize_with = "base64")]
    client_certificate_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    client_key: PathBuf,
    #[serde(deserialize_with = "base64")]
    client_key_data: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    token: Secret,
    #[serde(deserialize_with = "nullable", rename = "tokenFile")]
    token_file: PathBuf,
    #[serde(deserialize_with = "nullable", rename = "as")]
    impersonate: String,
    #[serde(deserialize_with = "nullable")]
    as_uid: String,
    #[serde(deserialize_with = "nullable")]
    as_groups: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    as_user_extra: BTreeMap<String, Vec<String>>,
    #[serde(deserialize_with = "nullable")]
    username: Secret,
    #[serde(deserialize_with = "nullable")]
    password: Secret,
    auth_provider: Option<AuthProvider>,
    exec: Option<ExecConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct AuthProvider {
    #[serde(deserialize_with = "nullable")]
    name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecConfig {
    #[serde(deserialize_with = "nullable")]
    command: String,
    #[serde(deserialize_with = "nullable")]
    args: Vec<Secret>,
    #[serde(deserialize_with = "nullable")]
    env: Vec<Variable>,
    #[serde(deserialize_with = "nullable")]
    api_version: String,
    #[serde(deserialize_with = "nullable")]
    install_hint: String,
    #[serde(deserialize_with = "nullable")]
    provide_cluster_info: bool,
    #[serde(deserialize_with = "nullable")]
    interactive_mode: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Variable {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    value: Secret,
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
    pub(in super::super) fn parse(mut text: &[u8]) -> Result<Kubeconfig, Refused> {
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

    /// Whether it says nothing about any cluster that would be used, so that it may as well not be there.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.cluster(&self.context().unwrap_or_default())
            .is_none_or(|cluster| *cluster == Cluster::default())
    }

    fn context(&self) -> Result<Context, Refused> {
        let wanted = &self.current_context;
        match self.contexts.iter().find(|named| named.name == *wanted) {
            Some(named) => Ok(named.context.clone()),
            None if wanted.is_empty() => Ok(Context::default()),
            None => refused("current-context", format!("there is no context {wanted:?}")),
        }
    }

    fn cluster(&self, context: &Context) -> Option<&Cluster> {
        self.clusters
            .iter()
            .find(|named| named.name == context.cluster)
            .map(|named| &named.cluster)
    }

    /// What it says, with `master` in place of its server. Paths are relative to `directory`.
    pub(in super::super) fn settings(
        &self,
        directory: &Path,
        master: Option<&str>,
    ) -> Result<Settings, Refused> {
        let context = self.context()?;
        let cluster_field = format!("cluster {:?}", context.cluster);
        let mut cluster = self.cluster(&context).cloned().unwrap_or_default();
        let user = self.users.iter().find(|named| named.name == context.user);
        let user = user.map(|named| named.user.clone()).unwrap_or_default();
        if let Some(master) = master {
            master.clone_into(&mut cluster.server);
            // The name belongs to the server that was given with it.
            cluster.tls_server_name.clear();
        }
        let server_field = match master {
            Some(_) => "master".to_owned(),
            None => format!("{cluster_field}: server"),
        };
        if cluster.server.is_empty() {
            return refused(server_field, "no server is given");
        }
        let server = server_url(&server_field, &cluster.server)?;
        let user_field = format!("user {:?}", context.user);
        user.check(&user_field)?;
        cluster.check(&cluster_field)?;
        let proxy = match cluster.proxy_url.as_str() {
            "" => None,
            text => Some(proxy_url(&format!("{cluster_field}: proxy-url"), text)?),
        };
        let impersonation = user.impersonation(&user_field)?;
        let mut settings = Settings::anonymous(server);
        settings.proxy = proxy;
        settings.impersonation = impersonation;
        settings.compression = !cluster.disable_compression;
        // Whoever listens on the way would read everything, so nothing is shown to them.
        if settings.server.is_https() {
            settings.trust = cluster.trust(&cluster_field, directory)?;
            settings.server_name = Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty());
            settings.user = user.user(&user_field, directory, &cluster, &settings)?;
        }
        Ok(settings)
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

/// Reads the API server's URL, in which only http and https make sense.
pub(in super::super) fn server_url(field: &str, text: &str) -> Result<Url, Refused> {
    let bad = |reason: String| Refused {
        field: field.to_owned(),
        reason: format!("{:?} is not a URL: {reason}", without_user(text)),
    };
    let url = Url::parse(text, "http").map_err(bad)?;
    match url.scheme.as_str() {
        "http" | "https" => Ok(url),
        _ => Err(bad("its scheme is neither http nor https".into())),
    }
}

pub(super) fn proxy_url(field: &str, text: &str) -> Result<Url, Refused> {
    let bad = |reason: String| Refused {
        field: field.to_owned(),
        reason: format!("{:?} is not a URL: {reason}", without_user(text)),
    };
    let url = Url::parse(text, "").map_err(bad)?;
    match url.scheme.as_str() {
        "http" | "https" | "socks5" | "socks5h" => Ok(url),
        _ => Err(bad("its scheme must be http, https or socks5".into())),
    }
}

/// A file or data, of which at most one may be given.
fn one_of(
    field: &str,
    name: &str,
    file: &Path,
    data: &[u8],
    directory: &Path,
) -> Result<Option<Source>, Refused> {
    match (file.as_os_str().is_empty(), data.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Ok(Some(Source::Data(data.into()))),
        (false, true) => Ok(Some(Source::File(directory.join(file)))),
        (false, false) => refused(
            format!("{field}: {name}"),
            format!("{name} and {name}-data are both given"),
        ),
    }
}

impl Cluster {
    fn check(&self, field: &str) -> Result<(), Refused> {
        let nowhere = Path::new("");
        let (file, data) = (&self.certificate_authority, &self.certificate_authority_data);
        one_of(field, "certificate-authority", file, data, nowhere).map(drop)
    }

    fn trust(&self, field: &str, directory: &Path) -> Result<Trust, Refused> {
        let (file, data) = (&self.certificate_authority, &self.certificate_authority_data);
        let authority = one_of(field, "certificate-authority", file, data, directory)?;
        match (authority, self.insecure_skip_tls_verify) {
            (Some(_), true) => refused(
                format!("{field}: insecure-skip-tls-verify"),
                "a certificate-authority is given too, and nothing would be verified with it",
            ),
            (None, true) => Ok(Trust::Anyone),
            (Some(authority), false) => Ok(Trust::Authority(authority)),
            (None, false) => Ok(Trust::System),
        }
    }
}

impl AuthInfo {
    fn has_certificate(&self) -> bool {
        !self.client_certificate.as_os_str().is_empty() || !self.client_certificate_data.is_empty()
    }

    fn check(&self, field: &str) -> Result<(), Refused> {
        let basic = !self.username.is_empty() || !self.password.is_empty();
        if basic && !self.token.is_empty() {
            return refused(
                format!("{field}: username"),
                "token is given too, and only one way to authenticate may be",
            );
        }
        if self.has_certificate() {
            let nowhere = Path::new("");
            let (file, data) = (&self.client_certificate, &self.client_certificate_data);
            one_of(field, "client-certificate", file, data, nowhere)?;
            let key = one_of(
                field,
                "client-key",
                &self.client_key,
                &self.client_key_data,
                nowhere,
            )?;
            if key.is_none() {
                return refused(
                    format!("{field}: client-key"),
                    "it must be given for the client certificate",
                );
            }
        }
        if let Some(exec) = &self.exec {
            if self.auth_provider.is_some() {
                return refused(format!("{field}: auth-provider"), "exec is given too");
            }
            exec.check(field)?;
        }
        Ok(())
    }

    fn impersonation(&self, field: &str) -> Result<Impersonation, Refused> {
        let more = !self.as_uid.is_empty() || !self.as_groups.is_empty() || !self.as_user_extra.is_empty();
        if self.impersonate.is_empty() && more {
            return refused(
                format!("{field}: as"),
                "it must be given with as-uid, as-groups or as-user-extra",
            );
        }
        let extra: Vec<(&String, &Vec<String>)> = self.as_user_extra.iter().collect();
        Impersonation::new(&self.impersonate, &self.as_uid, &self.as_groups, &extra).map_err(|name| Refused {
            field: format!("{field}: {name}"),
            reason: "it has a character that no HTTP header may have".into(),
        })
    }

    /// How to authenticate, in client-go's order of precedence.
    fn user(
        &self,
        field: &str,
        directory: &Path,
        cluster: &Cluster,
        settings: &Settings,
    ) -> Result<User, Refused> {
        if let Some(provider) = &self.auth_provider {
            return refused(
                format!("{field}: auth-provider"),
                format!("there is no provider {:?}; use exec in its place", provider.name),
            );
        }
        let mut user = User::default();
        if self.has_certificate() {
            let (file, data) = (&self.client_certificate, &self.client_certificate_data);
            let certificate = one_of(field, "client-certificate", file, data, directory)?;
            let key = one_of(
                field,
                "client-key",
                &self.client_key,
                &self.client_key_data,
                directory,
            )?;
            user.certificate = certificate.zip(key);
        }
        let token_file = Some(&self.token_file).filter(|file| !file.as_os_str().is_empty());
        if token_file.is_some() && !self.username.is_empty() {
            return refused(
                format!("{field}: username"),
                "tokenFile is given too, and only one way to authenticate may be",
            );
        }
        if !self.token.is_empty() || token_file.is_some() {
            check_header_text(&self.token, &format!("{field}: token"))?;
            user.tokens = Some(Tokens {
                inline: Some(self.token.clone()).filter(|token| !token.is_empty()),
                file: token_file.map(|file| directory.join(file)),
            });
        } else if !self.username.is_empty() {
            user.basic = Some((self.username.clone(), self.password.clone()));
        }
        if let Some(exec) = &self.exec
            && user == User::default()
        {
            user.plugin = Some(exec.plugin(directory, cluster, settings));
        }
        Ok(user)
    }
}

/// A token stands in a header, where it must fit.
fn check_header_text(text: &Secret, field: &str) -> Result<(), Refused> {
    if text.expose().bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        Ok(())
    } else {
        refused(
            field,
            "it has a line break, a control character or a letter that is not ASCII",
        )
    }
}

impl ExecConfig {
    fn check(&self, field: &str) -> Result<(), Refused> {
        let field = |name: &str| format!("{field}: exec.{name}");
        if self.command.is_empty() {
            return refused(field("command"), "it must be given");
        }
        match self.api_version.as_str() {
            "" => return refused(field("apiVersion"), "it must be given"),
            exec::V1 | exec::V1BETA1 => {}
            _ => {
                return refused(
                    field("apiVersion"),
                    format!("it must be {} or {}", exec::V1, exec::V1BETA1),
                );
            }
        }
        if self.env.iter().any(|variable| variable.name.is_empty()) {
            return refused(field("env"), "a variable has no name");
        }
        let forbidden = |text: &str| text.contains('\0');
        if forbidden(&self.command)
            || self.args.iter().any(|arg| forbidden(arg.expose()))
            || self
                .env
                .iter()
                .any(|v| forbidden(v.value.expose()) || forbidden(&v.name) || v.name.contains('='))
        {
            return refused(
                field("command"),
                "it, an argument or a variable has a character that it cannot have",
            );
        }
        match self.interactive_mode.as_str() {
            "Never" | "IfAvailable" => Ok(()),
            // The older version of the interface knows a default.
            "" if self.api_version == exec::V1BETA1 => Ok(()),
            "" => refused(field("interactiveMode"), "it must be given"),
            "Always" => refused(
                field("interactiveMode"),
                "a daemon has no terminal, so Always cannot work",
            ),
            _ => refused(
                field("interactiveMode"),
                "it must be Never, IfAvailable or Always",
            ),
        }
    }

    fn plugin(&self, directory: &Path, cluster: &Cluster, settings: &Settings) -> Plugin {
        // A command with a slash in it is a path like the others; any other is looked for in PATH.
        let command = if self.command.contains('/') {
            directory.join(&self.command)
        } else {
            PathBuf::from(&self.command)
        };
        let extension = cluster
            .extensions
            .iter()
            .find(|extension| extension.name == exec::CLUSTER_EXTENSION);
        Plugin {
            command,
            args: self.args.clone(),
            env: self
                .env
                .iter()
                .map(|v| (v.name.clone(), v.value.clone()))
                .collect(),
            api_version: self.api_version.clone(),
            install_hint: self.install_hint.clone(),
            cluster: self.provide_cluster_info.then(|| exec::ClusterInfo {
                server: settings.server.to_string(),
                server_name: settings.server_name.clone(),
                trust: settings.trust.clone(),
                proxy: (!cluster.proxy_url.is_empty()).then(|| cluster.proxy_url.clone()),
                disable_compression: cluster.disable_compression,
                config: extension.map(|extension| extension.extension.clone()),
            }),
        }
    }
}
