//! The daemon's end of the socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferry_backends::Backend;
use ferry_model::Planner;
use ferry_sources::Mailbox;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use super::report::{Facts, StatusReport, rows};
use super::{PlanReport, Reply, Request, TraceReport};
use crate::config::{Settings, Source};
use crate::sync::{Board, Signal};

/// How long the loop may take to answer a question about rows, plan or packet.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a client may take to ask.
const QUESTION: Duration = Duration::from_secs(10);
/// No question is longer.
const LONGEST: u64 = 4096;
/// How long until a socket that could not be opened is tried again: a predecessor that is about to end has it.
const RETRY: Duration = Duration::from_secs(1);
/// Clients served at a time.
const CLIENTS: usize = 16;

struct Answerer {
    facts: Facts,
    mailbox: Arc<Mailbox>,
    board: Arc<Board>,
    signal: Arc<Signal>,
}

/// Opens the socket, if one is configured. A socket that cannot be opened is no reason not to serve traffic.
pub fn serve(
    settings: &Settings,
    node: &str,
    started: SystemTime,
    mailbox: &Arc<Mailbox>,
    board: &Arc<Board>,
    signal: &Arc<Signal>,
    runtime: &Handle,
) {
    let Some(path) = &settings.status_socket else {
        return;
    };
    let source = match &settings.source {
        Source::Manifests(dir) => format!("manifests in {}", dir.display()),
        Source::Api(client) => match (&client.master, &client.kubeconfig) {
            (Some(master), _) => format!("API server {master}"),
            (None, Some(kubeconfig)) => format!("API server of {}", kubeconfig.display()),
            (None, None) => "API server of this cluster".into(),
        },
    };
    let facts = Facts {
        mode: settings.mode,
        node: node.to_owned(),
        source,
        started,
    };
    let answerer = Answerer {
        facts,
        mailbox: Arc::clone(mailbox),
        board: Arc::clone(board),
        signal: Arc::clone(signal),
    };
    let path = path.clone();
    runtime.spawn(async move {
        let mut told = false;
        let listener = loop {
            match bind(&path) {
                Ok(listener) => break listener,
                Err(error) if told => tracing::debug!(err = %error, "Still no status socket"),
                Err(error) => tracing::warn!(
                    socket = %path.display(),
                    err = %error,
                    "No status socket yet, so no `ferry status`; --status-socket names another place"
                ),
            }
            told = true;
            tokio::time::sleep(RETRY).await;
        };
        accept(listener, Arc::new(answerer)).await;
    });
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if path.exists() {
        // A socket that nobody answers is what an earlier daemon has left.
        if BlockingStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another daemon answers there",
            ));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, answerer: Arc<Answerer>) {
    let room = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answerer = Arc::clone(&answerer);
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &answerer).await {
                        tracing::trace!(err = %error, "A status client went away");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(err = %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, answerer: &Answerer) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = BufReader::new(read.take(LONGEST));
    tokio::time::timeout(QUESTION, lines.read_line(&mut line))
        .await
        .map_err(io::Error::other)??;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answerer.answer(request).await,
        Err(error) => Reply::Error(format!("question not understood: {error}")),
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    write.write_all(&text).await?;
    write.shutdown().await
}

impl Answerer {
    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Status => self.status().await,
            Request::Plan => {
                let (mode, skipped) = (self.facts.mode, self.skipped());
                let plan = self
                    .ask(move |planner, _| PlanReport::of(planner.plan(), mode, skipped))
                    .await;
                plan.map_or_else(busy, Reply::Plan)
            }
            Request::Trace(request) => {
                let report = self
                    .ask(move |planner, _| TraceReport::of(planner.plan(), &request))
                    .await;
                match report {
                    Some(Some(report)) => Reply::Trace(report),
                    Some(None) => Reply::Error("no such protocol".into()),
                    None => busy(),
                }
            }
        }
    }

    async fn status(&self) -> Reply {
        let told = self
            .ask(|planner, backend| {
                // Without counters the rows are still worth showing.
                let traffic = backend.traffic().unwrap_or_default();
                (
                    rows(planner.plan().services().map(|service| &**service), &traffic),
                    backend.notes(),
                )
            })
            .await;
        let mut report = StatusReport::of(&self.facts, &self.board.read(), &self.mailbox, SystemTime::now());
        if let Some((rows, notes)) = told {
            report.rows = Some(rows);
            report.notes = notes;
        }
        Reply::Status(Box::new(report))
    }

    fn skipped(&self) -> Vec<String> {
        let contested = self.board.read().contested;
        self.mailbox
            .skipped()
            .into_iter()
            .chain(contested)
            .map(|skipped| skipped.to_string())
            .collect()
    }

    /// Asks the loop; `None` if it is busy for too long.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Planner, &mut dyn Backend) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.signal.ask(Box::new(move |planner, backend| {
            let _ = tell.send(question(planner, backend));
        }));
        tokio::time::timeout(PATIENCE, told).await.ok()?.ok()
    }
}

fn busy() -> Reply {
    Reply::Error("the daemon is busy with a long sync; ask again later".into())
}
