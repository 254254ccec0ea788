//! The daemon's end of the socket.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferry_backends::Backend;
use ferry_model::{Asker, Explanation, Family, Planner, PortName, Subject, explain};
use ferry_sources::{Kind, Mailbox};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::report::{self, Identity, StatusReport, rows};
use super::{
    AddressSource, DiffReport, FlowsRequest, PlanReport, Reply, Request, RulesReport, ServiceDetail,
    TraceReport,
};
use crate::config::{Settings, Source};
use crate::explain::{ExplainReport, ExplainRequest, Inspected, SourceState, interface_to, look};
use crate::facts::Facts;
use crate::flows;
use crate::history::History;
use crate::servers::connections::{Connections, Limits, Seat};
use crate::servers::serve::ACCEPT_RETRY_INTERVAL;
use crate::sync::{Board, FamilyNotice, Signal};

/// How long the loop may take to answer a question about rows, plan or packet.
const LOOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long it may take to compare everything with the kernel; less than a client waits.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(14);
/// How long a client may take to ask.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read its answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// No question is longer.
const LONGEST_QUESTION: u64 = 4096;
/// How long until a socket that could not be opened is tried again: a predecessor that is about to end has it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Clients served at a time.
const LIMITS: Limits = Limits {
    total: 16,
    per_address: 16,
};

struct Answerer {
    facts: Identity,
    settings: Arc<Settings>,
    mailbox: Arc<Mailbox>,
    board: Arc<Board>,
    history: Arc<History>,
    signal: Arc<Signal>,
}

/// What is asked about.
#[derive(Debug)]
pub struct Sources<'a> {
    pub mailbox: &'a Arc<Mailbox>,
    pub board: &'a Arc<Board>,
    pub history: &'a Arc<History>,
    pub signal: &'a Arc<Signal>,
}

/// Opens the socket, if one is configured. A socket that cannot be opened is no reason not to serve traffic.
pub fn serve(settings: &Settings, node: &str, started: SystemTime, sources: &Sources<'_>, runtime: &Handle) {
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
    let facts = Identity {
        mode: settings.mode,
        node: node.to_owned(),
        source,
        started,
    };
    let answerer = Answerer {
        facts,
        settings: Arc::new(settings.clone()),
        mailbox: Arc::clone(sources.mailbox),
        board: Arc::clone(sources.board),
        history: Arc::clone(sources.history),
        signal: Arc::clone(sources.signal),
    };
    let path = path.clone();
    runtime.spawn(async move {
        let listener = open(&path).await;
        accept(listener, Arc::new(answerer)).await;
    });
}

/// Tries until the socket is there. Each reason why it is not is told once.
async fn open(path: &Path) -> UnixListener {
    let mut told = String::new();
    loop {
        match bind(path) {
            Ok(listener) => return listener,
            Err(error) => {
                let reason = error.to_string();
                if reason != told {
                    tracing::warn!(
                        socket = %path.display(),
                        err = reason,
                        "No status socket yet, so no `ferry status`; --status-socket names another place"
                    );
                    told = reason;
                }
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Listens at this path. The only thing that is ever removed to make way is a socket that nobody answers, which is
/// what an earlier daemon has left.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is something else than a socket at this path; it is left alone",
            ));
        }
        Ok(_) if BlockingStream::connect(path).is_ok() => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another daemon answers there",
            ));
        }
        Ok(_) => std::fs::remove_file(path)?,
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, answerer: Arc<Answerer>) {
    let connections = Connections::new("status", LIMITS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (answerer, seat) = (Arc::clone(&answerer), connections.admit(None));
                tokio::spawn(async move {
                    tokio::select! {
                        ended = converse(stream, &seat, &answerer) => {
                            if let Err(error) = ended {
                                tracing::trace!(err = %error, "A status client went away");
                            }
                        }
                        () = seat.taken() => {}
                    }
                });
            }
            Err(error) => {
                tracing::debug!(err = %error, "Can't accept a status client");
                connections.make_room();
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, seat: &Seat, answerer: &Answerer) -> io::Result<()> {
    // The file's mode says the same, but not from its first moment on.
    let client = stream.peer_cred()?.uid();
    if client != 0 && client != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = BufReader::new(read.take(LONGEST_QUESTION));
    tokio::time::timeout(QUESTION_TIMEOUT, lines.read_line(&mut line)).await??;
    seat.answering();
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answerer.answer(request).await,
        Err(error) => Reply::Error(format!("question not understood: {error}")),
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    tokio::time::timeout(READ_TIMEOUT, write.write_all(&text)).await??;
    write.shutdown().await
}

impl Answerer {
    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Status => self.status().await,
            Request::Plan => {
                let (mode, skipped) = (self.facts.mode, self.skipped());
                let plan = self
                    .ask(move |planner, _| PlanReport::of(planner.plan(), mode, AddressSource::Host, skipped))
                    .await;
                plan.map_or_else(busy, Reply::Plan)
            }
            Request::Rules => {
                let settings = Arc::clone(&self.settings);
                let rules = self
                    .ask(move |planner, _| RulesReport::of(planner.plan(), &settings, AddressSource::Host))
                    .await;
                rules.map_or_else(busy, Reply::Rules)
            }
            Request::Trace(request) => {
                let report = self
                    .ask(move |planner, _| TraceReport::of(planner.plan(), &request))
                    .await;
                report.map_or_else(busy, Reply::Trace)
            }
            Request::Explain(request) => self.explain(request).await,
            Request::Diff => {
                let (mode, families) = (self.facts.mode, self.board.read().families);
                let families: Vec<Family> = families.into_keys().collect();
                let compare = move |planner: &Planner, backend: &mut dyn Backend| {
                    DiffReport::of(mode.as_str(), &families, planner.plan(), backend)
                };
                let report = self.ask_within(COMPARE_TIMEOUT, compare).await;
                report.map_or_else(busy, Reply::Diff)
            }
            Request::Facts => self.everything().await,
            Request::Service { name } => {
                let detail = self
                    .ask(move |planner, _| ServiceDetail::of(planner, &name))
                    .await;
                detail.map_or_else(busy, |detail| Reply::Service(detail.map(Box::new)))
            }
            Request::Flows(request) => self.flows(request).await,
            Request::Pulse => {
                let (now, notice) = (SystemTime::now(), self.board.read());
                let report = StatusReport::of(&self.facts, &notice, &self.mailbox, now);
                Reply::Status(Box::new(report))
            }
            Request::History(request) => {
                let span = request
                    .since_seconds
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let since = span.and_then(|span| SystemTime::now().checked_sub(span));
                Reply::History(self.history.report(request.service.as_deref(), since))
            }
        }
    }

    /// Asks the relay, where there is one, else the kernel's table on a thread of its own; names come from the plan.
    async fn flows(&self, request: FlowsRequest) -> Reply {
        let window = Duration::try_from_secs_f64(request.seconds).unwrap_or_default();
        let window = window.min(flows::LONGEST_WINDOW);
        let service = request.service.clone();
        let asked = self.ask(move |planner, backend| {
            let keys = service.map(|service| flows::frontends_of(planner.plan(), &service));
            (flows::relayed(backend), keys)
        });
        let Some((relayed, keys)) = asked.await else {
            return busy();
        };
        if let Some(first) = relayed {
            let mut last = None;
            if !window.is_zero() {
                tokio::time::sleep(window).await;
                last = self.ask(|_, backend| flows::relayed(backend)).await.flatten();
            }
            return Reply::Flows(flows::of_relay(&first, last.as_ref(), request.service.as_deref()));
        }
        let counted = tokio::task::spawn_blocking(move || flows::read(keys.as_deref(), window)).await;
        match counted {
            Ok(Ok(counted)) => {
                let named = self
                    .ask(move |planner, _| flows::named(counted, planner.plan()))
                    .await;
                named.map_or_else(busy, Reply::Flows)
            }
            Ok(Err(error)) => Reply::Error(error.to_string()),
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    async fn everything(&self) -> Reply {
        let Some(known) = self.ask(|planner, _| planner.snapshot().facts()).await else {
            return busy();
        };
        let (settings, node, skipped) = (
            Arc::clone(&self.settings),
            self.facts.node.clone(),
            self.skipped(),
        );
        // Of many objects this takes a while, which is not the loop's.
        let told = tokio::task::spawn_blocking(move || Facts::of(&known, &settings, &node, skipped)).await;
        match told {
            Ok(facts) => Reply::Facts(Box::new(facts)),
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    /// The plan and the rules are read by the loop, between two syncs; the rest of the kernel beside it.
    async fn explain(&self, request: ExplainRequest) -> Reply {
        let mut question = match request.question() {
            Ok(question) => question,
            Err(why) => return Reply::Error(why),
        };
        if let Asker::Address(address, interface) = &mut question.from {
            *interface = interface_to(*address);
        }
        let subject = question.subject.clone();
        let told = self
            .ask(move |planner, backend| {
                let explanation = explain(planner, &question);
                let inspected = inspect(planner, backend, &explanation);
                (explanation, inspected)
            })
            .await;
        let Some((explanation, inspected)) = told else {
            return busy();
        };
        let mut services: Vec<_> = explanation
            .places
            .iter()
            .map(|place| place.port.service.clone())
            .collect();
        if let Subject::Service { name, .. } = subject {
            services.push(name);
        }
        let more = self.source_state().findings(&services, SystemTime::now());
        let mode = self.facts.mode;
        let looked = tokio::task::spawn_blocking(move || {
            let (kernel, mut findings) = look(&explanation, mode, inspected);
            findings.extend(more);
            ExplainReport::of(request, mode.as_str(), &explanation, Some(kernel), findings)
        });
        match looked.await {
            Ok(report) => Reply::Explain(Box::new(report)),
            Err(error) => Reply::Error(format!("the kernel could not be looked at: {error}")),
        }
    }

    fn source_state(&self) -> SourceState {
        let notice = self.board.read();
        let failing = |(family, state): (&Family, &FamilyNotice)| Some((*family, state.error.clone()?));
        SourceState {
            source: self.facts.source.clone(),
            problems: self.mailbox.problems(),
            missing: self.mailbox.missing().into_iter().map(Kind::as_str).collect(),
            skipped: self.mailbox.skipped(),
            sync_errors: notice.families.iter().filter_map(failing).collect(),
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
        report::skipped(&self.mailbox, &self.board.read().contested)
    }

    /// Asks the loop; `None` if it is busy for too long.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Planner, &mut dyn Backend) -> T + Send + 'static,
    ) -> Option<T> {
        self.ask_within(LOOP_TIMEOUT, question).await
    }

    async fn ask_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        question: impl FnOnce(&Planner, &mut dyn Backend) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.signal.ask(Box::new(move |planner, backend| {
            // Nobody may be waiting any more.
            if !tell.is_closed() {
                let _ = tell.send(question(planner, backend));
            }
        }));
        tokio::time::timeout(timeout, told).await.ok()?.ok()
    }
}

/// What the kernel holds for each service port of an explanation.
fn inspect(planner: &Planner, backend: &mut dyn Backend, explanation: &Explanation) -> Inspected {
    let plan = planner.plan();
    let ports: BTreeSet<(Family, &PortName)> = explanation
        .places
        .iter()
        .map(|place| (place.key.family(), &place.port))
        .collect();
    let ports = ports.into_iter().filter_map(|(family, name)| {
        let mut ports = plan.service(&name.service)?.ports(family);
        ports.find(|port| port.name == *name)
    });
    ports
        .map(|port| {
            let found = backend.inspect(plan, port).map_err(|error| error.to_string());
            (port.name.clone(), found)
        })
        .collect()
}

fn busy() -> Reply {
    Reply::Error("the daemon is busy with a long sync; ask again later".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_was_left_is_replaced_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/ferry.sock");
        let listener = bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = bind(&path).unwrap_err();
        assert_eq!(taken.to_string(), "another daemon answers there");
        drop(listener);
        bind(&path).unwrap();

        let target = dir.path().join("target.sock");
        drop(bind(&target).unwrap());
        let (file, link, directory) = (dir.path().join("file"), dir.path().join("link"), dir.path());
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for path in [&file, &link, directory] {
            let error = bind(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{}", path.display());
            assert!(error.to_string().contains("left alone"), "{error}");
            assert!(path.symlink_metadata().is_ok());
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }
}
