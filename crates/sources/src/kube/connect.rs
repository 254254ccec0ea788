//! From a kubeconfig, a `--master` or a pod's service account to a client.

use std::path::PathBuf;

use http::header::USER_AGENT;
use http::{HeaderValue, Uri};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::api::{Api, chain};
use super::proxy;

/// How to reach the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connection {
    /// The kubeconfig at exactly this path; no other place is looked at.
    pub kubeconfig: Option<PathBuf>,
    /// Takes the place of the kubeconfig's server. With neither, the pod's service account is used.
    pub master: Option<String>,
    pub user_agent: String,
    /// Requests a second; 0 means 5, a negative number no limit.
    pub qps: f32,
    /// Requests at once; 0 means 10.
    pub burst: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot use kubeconfig {}: {}", .path.display(), chain(.source))]
    Kubeconfig { path: PathBuf, source: KubeconfigError },
    #[error("neither a kubeconfig nor a master URL is given, and the service account of a pod cannot be used: {}",
        chain(.0))]
    InCluster(#[source] kube::config::InClusterError),
    #[error("{what} {text:?} is not a URL: {reason}")]
    Url {
        what: &'static str,
        text: String,
        reason: String,
    },
    #[error("cannot make a client for {server}: {}", chain(.source))]
    Client { server: String, source: kube::Error },
}

impl Connection {
    /// Reads what there is to read and builds the client. Asks the server nothing yet.
    pub async fn connect(&self) -> Result<Api, ConnectError> {
        let mut config = self.config().await?;
        // Retrying is the followers' business: they know what may be retried, and log it.
        config.default_retry = false;
        if let Ok(agent) = HeaderValue::from_str(&self.user_agent) {
            config.headers.push((USER_AGENT, agent));
        }
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|source| ConnectError::Client {
            server: server.clone(),
            source,
        })?;
        Ok(Api::new(client, server, self.qps, self.burst))
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let mut config = match (&self.kubeconfig, &self.master) {
            (Some(path), master) => return from_kubeconfig(path.clone(), master.as_deref()).await,
            (None, Some(master)) => Config::new(master_url(master, "http")?),
            (None, None) => {
                tracing::info!("neither kubeconfig nor master URL given, using the pod's service account");
                Config::incluster().map_err(ConnectError::InCluster)?
            }
        };
        config.proxy_url = environment_proxy(&config.cluster_url)?;
        Ok(config)
    }
}

async fn from_kubeconfig(path: PathBuf, master: Option<&str>) -> Result<Config, ConnectError> {
    let failed = |source| ConnectError::Kubeconfig {
        path: path.clone(),
        source,
    };
    let mut file = Kubeconfig::read_from(&path).map_err(failed)?;
    let context = file.current_context.clone().unwrap_or_default();
    let context = file
        .contexts
        .iter()
        .find(|named| named.name == context)
        .and_then(|named| named.context.as_ref());
    let cluster = context.map(|context| context.cluster.clone()).unwrap_or_default();
    let cluster = file
        .clusters
        .iter_mut()
        .find(|named| named.name == cluster)
        .and_then(|named| named.cluster.as_mut());
    let mut given_proxy = None;
    let mut authority = None;
    if let Some(cluster) = cluster {
        let tls = cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some();
        if let Some(master) = master {
            cluster.server = Some(master_url(master, if tls { "https" } else { "http" })?.to_string());
        }
        given_proxy = cluster.proxy_url.take().filter(|proxy| !proxy.is_empty());
        if cluster.certificate_authority_data.is_none() {
            authority = cluster.certificate_authority.clone();
        }
    }
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(failed)?;
    config.root_cert_file = authority.map(PathBuf::from);
    config.proxy_url = match given_proxy {
        Some(proxy) => Some(url("proxy-url", &proxy)?),
        None => environment_proxy(&config.cluster_url)?,
    };
    Ok(config)
}

/// The client library asks whether NO_PROXY covers the proxy; it must cover the API server, so it is done here.
fn environment_proxy(server: &Uri) -> Result<Option<Uri>, ConnectError> {
    let proxy = proxy::from_environment(server, |name| std::env::var(name).ok());
    proxy
        .map(|proxy| url("the environment's proxy", &proxy))
        .transpose()
}

fn master_url(text: &str, scheme: &str) -> Result<Uri, ConnectError> {
    match text.contains("://") {
        true => url("master", text),
        false => url("master", &format!("{scheme}://{text}")),
    }
}

fn url(what: &'static str, text: &str) -> Result<Uri, ConnectError> {
    let bad = |reason: String| ConnectError::Url {
        what,
        text: text.to_owned(),
        reason,
    };
    let url: Uri = text
        .parse()
        .map_err(|error: http::uri::InvalidUri| bad(error.to_string()))?;
    match url.host() {
        Some(host) if !host.is_empty() => Ok(url),
        _ => Err(bad("it names no host".into())),
    }
}
