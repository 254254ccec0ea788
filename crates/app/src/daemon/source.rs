//! Where objects come from: starts following the API server or a directory.

use std::sync::Arc;

use ferry_sources::Mailbox;
use ferry_sources::kube::{Api, Connection, KubeSource};
use ferry_sources::manifests::ManifestSource;
use tokio::runtime::{Handle, Runtime};

use super::node;
use crate::KUBERNETES_VERSION;
use crate::config::{ApiClient, Settings, Source};
use crate::events::{ApiSink, Recorder};
use crate::metrics::{Metrics, architecture};

/// What is being followed.
#[derive(Debug)]
pub(crate) enum Following {
    /// An API server, on the runtime.
    Api(Api),
    /// A directory, for as long as this lives.
    Manifests { _source: ManifestSource },
}

/// Starts following; what changes arrives in the mailbox.
pub(crate) fn follow(
    settings: &Settings,
    node_name: &str,
    mailbox: &Arc<Mailbox>,
    runtime: &Runtime,
) -> anyhow::Result<Following> {
    match &settings.source {
        Source::Api(client) => {
            let api = runtime.block_on(connection(client).connect())?;
            tracing::debug!(server = api.server(), "Following the API server");
            runtime.spawn(KubeSource::new(api.clone(), node_name).run(Arc::clone(mailbox)));
            Ok(Following::Api(api))
        }
        Source::Manifests(dir) => {
            tracing::debug!(dir = %dir.display(), "Following manifests");
            let source = ManifestSource::start(dir, node_name, Arc::clone(mailbox))?;
            Ok(Following::Manifests { _source: source })
        }
    }
}

/// How to reach the API server, and as whom.
pub(super) fn connection(client: &ApiClient) -> Connection {
    let version = env!("CARGO_PKG_VERSION");
    let platform = format!("{}/{}", std::env::consts::OS, architecture());
    Connection {
        kubeconfig: client.kubeconfig.clone(),
        master: client.master.clone(),
        user_agent: format!("ferry/{version} ({platform}) kubernetes/{KUBERNETES_VERSION}"),
        qps: client.qps.unwrap_or(-1.0),
        burst: client.burst,
    }
}

impl Following {
    /// Where events go: the API server, or the log alone.
    pub(super) fn recorder(&self, metrics: &Arc<Metrics>, runtime: &Handle) -> Recorder {
        match self {
            Self::Api(api) => Recorder::start(
                ApiSink(api.clone()),
                &node::host_name(),
                Arc::clone(metrics),
                runtime,
            ),
            Self::Manifests { .. } => Recorder::log_only(Arc::clone(metrics)),
        }
    }
}
