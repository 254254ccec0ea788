//! A kubeconfig: read (`file`), checked as client-go checks it, and turned into settings.
//!
//! Touches nothing; the files that a kubeconfig names are others' to read. Always holds: nothing of its values is
//! repeated in an error, as they may be secrets or stand next to one.

mod file;

use std::path::{Path, PathBuf};

pub(in crate::kube) use file::Kubeconfig;
use file::{AuthInfo, Cluster, Context, ExecConfig};

use super::address::{Url, without_user};
use super::exec::{self, Plugin};
use super::secret::Secret;
use super::settings::{Impersonation, Settings, Source, Tokens, Trust, User};

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

impl Kubeconfig {
    /// Whether it says nothing about any cluster that would be used, so that it may as well not be there.
    pub(in crate::kube) fn is_empty(&self) -> bool {
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
    pub(in crate::kube) fn settings(
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

/// Reads the API server's URL, in which only http and https make sense.
pub(in crate::kube) fn server_url(field: &str, text: &str) -> Result<Url, Refused> {
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
