//! Where objects come from: starts following the API server or a directory.

use std::path::Path;
use std::sync::Arc;

use ferry_sources::Mailbox;
use ferry_sources::kube::{Api, ClientTiming, Connection, KubeSource};
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
            let api = connection(client).connect()?;
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
pub(crate) fn connection(client: &ApiClient) -> Connection {
    let program = std::env::args_os().next().unwrap_or_default();
    Connection {
        kubeconfig: client.kubeconfig.clone(),
        master: client.master.clone(),
        user_agent: user_agent(Path::new(&program)),
        qps: client.qps.unwrap_or(-1.0),
        burst: client.burst,
        preferred: client.encoding,
        timing: ClientTiming::default(),
    }
}

/// What the API server sees of us. Where the program stands in under kube-proxy's name, audit rules and priorities
/// for that name fit.
fn user_agent(program: &Path) -> String {
    let platform = format!("{}/{}", std::env::consts::OS, architecture());
    let version = env!("CARGO_PKG_VERSION");
    if program.file_name().is_some_and(|name| name == "kube-proxy") {
        format!("kube-proxy/{KUBERNETES_VERSION} ({platform}) ferry/{version}")
    } else {
        format!("ferry/{version} ({platform}) kubernetes/{KUBERNETES_VERSION}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_begins_with_the_name_that_the_program_was_started_by() {
        let agent = |program: &str| user_agent(Path::new(program));
        assert!(agent("/usr/local/bin/kube-proxy").starts_with("kube-proxy/v1.36.4 (linux/"));
        assert!(agent("kube-proxy").ends_with(&format!(") ferry/{}", env!("CARGO_PKG_VERSION"))));
        assert!(agent("/usr/local/bin/ferry").starts_with("ferry/"));
        assert!(agent("").ends_with(" kubernetes/v1.36.4"));
    }
}
