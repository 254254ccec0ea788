//! How to reach a server and as whom: what a kubeconfig or a pod's service account comes down to.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use super::address::Url;
use super::exec::Plugin;
use super::secret::Secret;

/// Certificates, keys and tokens are far shorter.
const MAX_FILE: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Settings {
    pub(in super::super) server: Url,
    pub(super) trust: Trust,
    /// The name that the server's certificate must have, where it is not the host's.
    pub(super) server_name: Option<String>,
    pub(super) user: User,
    pub(super) impersonation: Impersonation,
    pub(in super::super) proxy: Option<Url>,
    pub(super) compression: bool,
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trust {
    /// The machine's authorities.
    System,
    Authority(Source),
    /// Any, unread.
    Anyone,
}

/// Bytes, or where they are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Source {
    Data(Arc<[u8]>),
    File(PathBuf),
}

/// The ways to authenticate; several may be given.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct User {
    /// Certificate and key.
    pub(super) certificate: Option<(Source, Source)>,
    pub(super) tokens: Option<Tokens>,
    /// Name and password.
    pub(super) basic: Option<(Secret, Secret)>,
    pub(super) plugin: Option<Plugin>,
}

/// A bearer token. What the file says goes before what is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) inline: Option<Secret>,
    pub(super) file: Option<PathBuf>,
}

/// The headers that ask the server to take us for somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Impersonation(pub(super) Vec<(HeaderName, HeaderValue)>);

impl Settings {
    /// For a server that is told nothing about us.
    pub(in super::super) fn anonymous(server: Url) -> Self {
        Settings {
            server,
            trust: Trust::System,
            server_name: None,
            user: User::default(),
            impersonation: Impersonation::default(),
            proxy: None,
            compression: true,
        }
    }
}

/// A pod's own account: the server by its environment, the token and the authority by its files.
pub(in super::super) fn in_cluster(host: &str, port: &str, account: &Path) -> Result<Settings, String> {
    let place = match host.parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("https://[{address}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    };
    let server = Url::parse(&place, "https").map_err(|reason| format!("{place:?} is not a URL: {reason}"))?;
    let mut settings = Settings::anonymous(server);
    let authority = account.join("ca.crt");
    match super::tls::holds_certificates(&authority) {
        Ok(()) => settings.trust = Trust::Authority(Source::File(authority)),
        Err(reason) => tracing::error!(err = reason, "Expected to load root CA config"),
    }
    settings.user.tokens = Some(Tokens {
        inline: None,
        file: Some(account.join("token")),
    });
    Ok(settings)
}

impl Source {
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Source::Data(data) => Ok(data.to_vec()),
            Source::File(path) => {
                read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
            }
        }
    }

    /// As errors name it.
    pub(super) fn name(&self, what: &str) -> String {
        match self {
            Source::Data(_) => format!("the {what} of the kubeconfig"),
            Source::File(path) => format!("the {what} {}", path.display()),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Data(_) => f.write_str("..."),
            Source::File(path) => path.fmt(f),
        }
    }
}

/// A file, which must be of a sensible length.
pub(in super::super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!(
            "it is longer than {} MiB",
            MAX_FILE >> 20
        )));
    }
    Ok(bytes)
}

impl Impersonation {
    /// Fails with the field of a kubeconfig whose text no header can hold.
    pub(super) fn new(
        user: &str,
        uid: &str,
        groups: &[String],
        extra: &[(&String, &Vec<String>)],
    ) -> Result<Self, &'static str> {
        if user.is_empty() {
            return Ok(Impersonation::default());
        }
        let value = |text: &str, field| HeaderValue::from_str(text).map_err(|_| field);
        let mut headers = vec![(HeaderName::from_static("impersonate-user"), value(user, "as")?)];
        if !uid.is_empty() {
            headers.push((HeaderName::from_static("impersonate-uid"), value(uid, "as-uid")?));
        }
        for group in groups {
            headers.push((
                HeaderName::from_static("impersonate-group"),
                value(group, "as-groups")?,
            ));
        }
        for (key, values) in extra {
            let name = format!("impersonate-extra-{}", escape(&key.to_ascii_lowercase()));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "as-user-extra")?;
            for text in *values {
                headers.push((name.clone(), value(text, "as-user-extra")?));
            }
        }
        Ok(Impersonation(headers))
    }
}

/// Percent-encodes what a header's name may not have.
fn escape(text: &str) -> String {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if allowed(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pods_own_account_is_a_token_file_and_an_authority() {
        let account = tempfile::tempdir().unwrap();
        let settings = in_cluster("10.96.0.1", "443", account.path()).unwrap();
        assert_eq!(settings.server.to_string(), "https://10.96.0.1:443");
        assert_eq!(
            settings.trust,
            Trust::System,
            "without a good file, as in client-go"
        );
        let tokens = settings.user.tokens.unwrap();
        assert_eq!(tokens.file, Some(account.path().join("token")));
        let settings = in_cluster("2001:db8::1", "6443", account.path()).unwrap();
        assert_eq!(settings.server.to_string(), "https://[2001:db8::1]:6443");
        assert!(
            in_cluster("10.96.0.1", "https", account.path())
                .unwrap_err()
                .contains("port")
        );
        // The token is trimmed and read again like any other, and must be there.
        let requests = Default::default();
        let credentials = |settings: &Settings| {
            super::super::credentials::Credentials::new(settings, std::time::Duration::ZERO, &requests)
        };
        assert!(
            credentials(&settings)
                .unwrap_err()
                .contains("cannot read the token file")
        );
        std::fs::write(account.path().join("token"), "\n").unwrap();
        assert!(credentials(&settings).unwrap_err().contains("is empty"));
        std::fs::write(account.path().join("token"), "of-pod\n").unwrap();
        let current = credentials(&settings).unwrap().current().await.unwrap();
        assert_eq!(current.authorization.as_ref().unwrap(), "Bearer of-pod");
    }
}
