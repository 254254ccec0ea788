//! A source that follows a server of ours, and the objects there.

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use ferry_lab::api::objects::{endpoints, slice};
use ferry_lab::api::{Api as Server, default_objects, objects};
use ferry_lab::patience;
use ferry_model::{ServiceName, Snapshot};
use ferry_sources::kube::{Connection, KubeSource, Timing};
use ferry_sources::{Kind, Mailbox};
use serde_json::Value;
use tokio::runtime::Runtime;

/// A source that follows a server, and the loop that takes its mail.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) snapshot: Snapshot,
    _directory: tempfile::TempDir,
    _runtime: Runtime,
}

pub(crate) fn quick() -> Timing {
    Timing {
        backoff_first: Duration::from_millis(10),
        backoff_most: Duration::from_millis(100),
        answer: patience(Duration::from_secs(30)),
        missing: Duration::from_millis(50),
        settle: Duration::from_millis(50),
        poll: Duration::from_millis(50),
        ..Timing::default()
    }
}

impl Rig {
    pub(crate) fn new(server: Server) -> Self {
        Self::with_timing(server, quick())
    }

    pub(crate) fn with_timing(server: Server, timing: Timing) -> Self {
        Self::with_rate(server, timing, -1.0, 0)
    }

    pub(crate) fn with_rate(server: Server, timing: Timing, qps: f32, burst: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let connection = Connection {
            kubeconfig: Some(server.kubeconfig(directory.path()).expect("a kubeconfig")),
            user_agent: "ferry/test".into(),
            qps,
            burst,
            ..Connection::default()
        };
        let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let api = connection.connect().expect("a client");
        runtime.spawn(
            KubeSource::new(api, "node-a")
                .with_timing(timing)
                .run(mailbox.clone()),
        );
        Rig {
            server,
            mailbox,
            snapshot: Snapshot::default(),
            _directory: directory,
            _runtime: runtime,
        }
    }

    pub(crate) fn take(&mut self) {
        for event in self.mailbox.take().events {
            self.snapshot.apply(event);
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut yes: impl FnMut(&Rig) -> bool) {
        let end = Instant::now() + patience(Duration::from_secs(60));
        loop {
            self.take();
            if yes(self) {
                return;
            }
            assert!(
                Instant::now() < end,
                "not {what}; services {:?}, problems {:?}, requests {:#?}",
                self.services(),
                self.mailbox.problems(),
                self.server.requests(),
            );
            self.mailbox
                .wait(Some(Instant::now() + Duration::from_millis(20)));
        }
    }

    /// Waits for a change that must not take longer than this, as far as a loaded machine can tell.
    pub(crate) fn soon(&mut self, limit: Duration, what: &str, yes: impl FnMut(&Rig) -> bool) {
        let start = Instant::now();
        self.until(what, yes);
        let took = start.elapsed();
        assert!(took < patience(limit), "{what} took {took:?}");
    }

    pub(crate) fn until_services(&mut self, expected: &[&str]) {
        self.until(&format!("services {expected:?}"), |rig| {
            rig.mailbox.is_open() && rig.services() == expected
        });
    }

    pub(crate) fn services(&self) -> Vec<&str> {
        self.snapshot
            .services()
            .map(|service| service.name.name())
            .collect()
    }

    pub(crate) fn endpoints(&self, service: &str) -> Vec<String> {
        let service = ServiceName::new("shop", service);
        let slices = self.snapshot.slices(&service);
        slices
            .flat_map(|slice| &slice.endpoints)
            .map(|endpoint| endpoint.address.to_string())
            .collect()
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.mailbox
            .problems()
            .into_iter()
            .map(|problem| format!("{}: {}", problem.about, problem.reason))
            .collect()
    }

    /// Requests for everything that is at a path, other than by a watch.
    pub(crate) fn lists(&self, path: &str) -> usize {
        self.server
            .requests()
            .iter()
            .filter(|seen| seen.path.starts_with(path))
            .filter(|seen| !seen.path.contains("watch=") && !seen.path.contains("limit="))
            .count()
    }

    /// Requests for a path with all of these parameters.
    pub(crate) fn asked(&self, path: &str, parameters: &[&str]) -> usize {
        let fits = |seen: &str| seen.starts_with(path) && parameters.iter().all(|p| seen.contains(p));
        self.server
            .requests()
            .iter()
            .filter(|seen| fits(&seen.path))
            .count()
    }
}

pub(crate) fn server(services: &[&str]) -> Server {
    let server = Server::start().expect("a server");
    server.apply(default_objects()).expect("objects");
    server
        .apply(services.iter().map(|name| service(name)))
        .expect("services");
    server
}

/// A service at an address that follows from its name.
pub(crate) fn service(name: &str) -> Value {
    let last: u32 = name.bytes().map(u32::from).sum();
    objects::service(name, &format!("10.96.{}.{}", last / 250, last % 250))
}

pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const STREAMED: &str = "sendInitialEvents=true";
