//! From a kubeconfig, a `--master` or a pod's service account to a client.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::api::Api;
use super::client::{self, Client, Kubeconfig, Refused, Settings};
use super::frame::Encoding;
use super::requests::Requests;

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

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
    /// What is asked for. A server may answer in JSON all the same.
    pub preferred: Encoding,
    pub timing: client::Timing,
}

/// Why there can be no client. Nothing of what it was to be made from is repeated but names.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read kubeconfig {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot use kubeconfig {}: {refused}", .path.display())]
    Kubeconfig { path: PathBuf, refused: Refused },
    #[error("{0}")]
    Master(Refused),
    #[error(
        "neither a kubeconfig nor a master URL is given, and the service account of a pod cannot be used: {0}"
    )]
    InCluster(String),
    #[error("cannot make a client for {server}: {reason}")]
    Client { server: String, reason: String },
}

impl Connection {
    /// Reads what there is to read and builds the client. Asks the server nothing yet, and runs no plugin.
    pub fn connect(&self) -> Result<Api, ConnectError> {
        let requests = Arc::<Requests>::default();
        let settings = self.settings()?;
        let server = settings.server.to_string();
        let client = Client::new(settings, &self.user_agent, &self.timing, Arc::clone(&requests))
            .map_err(|reason| ConnectError::Client { server, reason })?;
        Ok(Api::new(client, requests, self.preferred, self.qps, self.burst))
    }

    fn settings(&self) -> Result<Settings, ConnectError> {
        let master = self.master.as_deref().filter(|master| !master.is_empty());
        let mut settings = match (&self.kubeconfig, master) {
            (Some(path), master) => from_file(path, master)?,
            (None, Some(master)) => {
                Settings::anonymous(client::server_url("master", master).map_err(ConnectError::Master)?)
            }
            (None, None) => {
                tracing::info!("neither kubeconfig nor master URL given, using the pod's service account");
                in_cluster()?
            }
        };
        if settings.proxy.is_none() {
            settings.proxy = client::environment_proxy(&settings.server).map_err(ConnectError::Master)?;
        }
        Ok(settings)
    }
}

fn from_file(path: &Path, master: Option<&str>) -> Result<Settings, ConnectError> {
    let text = client::read_file(path).map_err(|source| ConnectError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let refused = |refused| ConnectError::Kubeconfig {
        path: path.to_owned(),
        refused,
    };
    let kubeconfig = Kubeconfig::parse(&text).map_err(refused)?;
    // An empty kubeconfig in a pod means the pod's own account, to client-go.
    if master.is_none() && kubeconfig.is_empty() && Path::new(SERVICE_ACCOUNT).join("token").is_file() {
        return in_cluster();
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    kubeconfig.settings(directory, master).map_err(refused)
}

fn in_cluster() -> Result<Settings, ConnectError> {
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| ConnectError::InCluster(format!("{name} is not set")))
    };
    let (host, port) = (
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?,
    );
    client::in_cluster(&host, &port, Path::new(SERVICE_ACCOUNT)).map_err(ConnectError::InCluster)
}

/// Whether a kubeconfig's text could be used, as far as that can be said without its files: it is read, checked and
/// brought to settings, and the certificates and keys in it are read too.
pub fn check_kubeconfig(text: &[u8], master: Option<&str>) -> Result<String, Refused> {
    let settings = Kubeconfig::parse(text)?.settings(Path::new(""), master)?;
    client::check_inline(&settings)?;
    Ok(settings.server.to_string())
}
