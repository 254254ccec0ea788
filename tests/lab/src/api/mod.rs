//! A small Kubernetes API server, for tests and for play.
//!
//! Lives here: list, watch, get and simple writes of the kinds that a service proxy reads, as the real server
//! does them (selectors, resource versions, pages, bookmarks, streaming lists, 410), in JSON and in protobuf, and
//! every way in which it can fail ([`Faults`]). May touch one listening socket. Always holds: what a watch delivers, in order,
//! turns the list it started from into the list that stands now.

mod discovery;
mod faults;
pub mod generate;
mod http;
mod kinds;
pub mod objects;
pub mod protobuf;
mod query;
mod selector;
mod store;
mod table;
mod watch;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

pub use faults::{Faults, Garbage, Protobuf};
pub use store::Seen;

use crate::netns::Namespace;
use store::Store;

/// A Kubernetes object.
pub type Object = Value;

/// A running server. Dropping it closes every connection.
#[derive(Debug)]
pub struct Api {
    address: SocketAddr,
    namespace: Option<PathBuf>,
    store: Arc<Store>,
    runtime: Runtime,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Api {
    /// Starts on a free port of this machine's loopback.
    pub fn start() -> Result<Api> {
        Api::start_at(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    pub fn start_at(address: SocketAddr) -> Result<Api> {
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
        Api::with(listener, None)
    }

    /// Starts on a port of a namespace's loopback; 0 takes a free one.
    pub fn start_in(namespace: &Namespace, port: u16) -> Result<Api> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let listener = namespace.run(|| TcpListener::bind(address))?;
        let listener =
            listener.with_context(|| format!("cannot listen at {address} in {}", namespace.name()))?;
        Api::with(listener, Some(namespace.path()))
    }

    fn with(listener: TcpListener, namespace: Option<PathBuf>) -> Result<Api> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("api")
            .enable_all()
            .build()
            .context("cannot start the server's runtime")?;
        let address = listener.local_addr()?;
        let api = Api {
            address,
            namespace,
            store: Arc::default(),
            runtime,
            accepting: Mutex::default(),
        };
        api.accept(listener)?;
        Ok(api)
    }

    fn accept(&self, listener: TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let entered = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        drop(entered);
        let task = self
            .runtime
            .spawn(http::accept(listener, Arc::clone(&self.store)));
        *self.accepting.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig for this server into that directory.
    pub fn kubeconfig(&self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url()}}],
            "users": [{"name": "lab", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        });
        std::fs::write(&path, config.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Creates or replaces objects.
    pub fn apply(&self, objects: impl IntoIterator<Item = Value>) -> Result<()> {
        objects
            .into_iter()
            .try_for_each(|object| self.store.apply(object).map(drop))
    }

    /// Removes objects, found by kind, namespace and name; what is not there stays not there.
    pub fn delete<'a>(&self, objects: impl IntoIterator<Item = &'a Value>) -> Result<()> {
        objects
            .into_iter()
            .try_for_each(|object| self.store.delete(object))
    }

    /// Ends every open watch, as a load balancer or a restarted server does.
    pub fn cut_watches(&self) {
        self.store.cut();
    }

    /// Forgets history: every open watch gets 410 Gone, and so does a watch from an older version.
    pub fn expire(&self) {
        self.store.expire();
    }

    /// The version that the server is at.
    pub fn version(&self) -> u64 {
        self.store.version()
    }

    /// Goes back to an older version and ends every watch, as a server whose etcd was restored from a backup. The
    /// objects stay; versions are given out a second time, and a watch from the future is accepted and silent.
    pub fn rewind(&self, version: u64) {
        self.store.rewind(version);
    }

    /// Sends a bookmark on every watch that asked for them.
    pub fn bookmark(&self) {
        self.store.bookmark();
    }

    /// What shall go wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.store.set_faults(faults);
    }

    /// Events that clients have written, as they stand now.
    pub fn events(&self) -> Vec<Value> {
        self.store.events()
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Seen> {
        self.store.requests()
    }

    /// Watches that are open now.
    pub fn open_watches(&self) -> usize {
        self.store.open_watches()
    }

    /// The server goes away: the port is closed and so is every connection. Its objects stay.
    pub fn pause(&self) {
        let task = self
            .accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(task) = task {
            task.abort();
            // the port is free only when the task has really ended
            let _ = self.runtime.block_on(task);
        }
    }

    /// The server comes back at the same address.
    pub fn resume(&self) -> Result<()> {
        let bind = || -> io::Result<TcpListener> {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(self.address),
                socket2::Type::STREAM,
                None,
            )?;
            socket.set_reuse_address(true)?;
            socket.bind(&self.address.into())?;
            socket.listen(128)?;
            Ok(socket.into())
        };
        let listener = match &self.namespace {
            None => bind(),
            Some(path) => std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    crate::netns::enter(path)
                        .map_err(io::Error::other)
                        .and_then(|()| bind())
                });
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        };
        self.accept(listener.with_context(|| format!("cannot listen at {} again", self.address))?)
    }

    /// Waits until so many watches are open: the client has everything and follows.
    pub fn wait_for_watches(&self, count: usize) -> Result<()> {
        if crate::wait_until(Duration::from_secs(30), || self.open_watches() >= count) {
            return Ok(());
        }
        anyhow::bail!(
            "{} watches are open, not {count}; requests: {:#?}",
            self.open_watches(),
            self.requests()
        )
    }
}

/// The node of the lab's network and the cluster's service CIDRs: what every scenario starts from.
pub fn default_objects() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "node-a",
                "labels": {"kubernetes.io/hostname": "node-a", "topology.kubernetes.io/zone": "zone-a"},
            },
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"]},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "192.0.2.10"},
                {"type": "InternalIP", "address": "2001:db8:2::10"},
            ]},
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/12", "fd00:10:96::/112"]},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "", "message": "",
            }]},
        }),
    ]
}
