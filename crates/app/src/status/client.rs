//! The asking end of the socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::explain::{ExplainReport, ExplainRequest};
use crate::facts::Facts;
use crate::flows::FlowsReport;
use crate::history::HistoryReport;

use super::{
    DiffReport, FlowsRequest, HistoryRequest, PlanReport, Reply, Request, RulesReport, ServiceDetail,
    StatusReport, TraceReport, TraceRequest,
};

/// How long the daemon may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no socket.
    #[error("no daemon is running here: there is no socket {}", .0.display())]
    Absent(PathBuf),
    /// There is one that nobody answers.
    #[error("no daemon is running here: nobody answers at {}", .0.display())]
    Deserted(PathBuf),
    /// It is somebody else's.
    #[error("not allowed to ask at {}; try as root", .0.display())]
    Forbidden(PathBuf),
    /// The conversation broke off.
    #[error("no answer at {}: {source}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The daemon could not answer.
    #[error("{0}")]
    Refused(String),
}

/// Asks for the state.
pub fn ask_status(socket: &Path) -> Result<StatusReport, AskError> {
    match ask(socket, &Request::Status)? {
        Reply::Status(report) => Ok(*report),
        other => Err(unexpected(other)),
    }
}

/// Asks for the plan.
pub fn ask_plan(socket: &Path) -> Result<PlanReport, AskError> {
    match ask(socket, &Request::Plan)? {
        Reply::Plan(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks for what is written.
pub fn ask_rules(socket: &Path) -> Result<RulesReport, AskError> {
    match ask(socket, &Request::Rules)? {
        Reply::Rules(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks about a packet.
pub fn ask_trace(socket: &Path, request: TraceRequest) -> Result<TraceReport, AskError> {
    match ask(socket, &Request::Trace(request))? {
        Reply::Trace(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks why a service is or is not reached.
pub fn ask_explain(socket: &Path, request: ExplainRequest) -> Result<ExplainReport, AskError> {
    match ask(socket, &Request::Explain(request))? {
        Reply::Explain(report) => Ok(*report),
        other => Err(unexpected(other)),
    }
}

/// Asks what happened lately.
pub fn ask_history(socket: &Path, request: HistoryRequest) -> Result<HistoryReport, AskError> {
    match ask(socket, &Request::History(request))? {
        Reply::History(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks where the kernel differs from the plan.
pub fn ask_diff(socket: &Path) -> Result<DiffReport, AskError> {
    match ask(socket, &Request::Diff)? {
        Reply::Diff(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks for everything that the plan is made of.
pub fn ask_facts(socket: &Path) -> Result<Facts, AskError> {
    match ask(socket, &Request::Facts)? {
        Reply::Facts(facts) => Ok(*facts),
        other => Err(unexpected(other)),
    }
}

/// Asks about one service: `namespace/name`.
pub fn ask_service(socket: &Path, name: &str) -> Result<Option<ServiceDetail>, AskError> {
    let name = name.to_owned();
    match ask(socket, &Request::Service { name })? {
        Reply::Service(detail) => Ok(detail.map(|detail| *detail)),
        other => Err(unexpected(other)),
    }
}

/// Asks who talks to which service.
pub fn ask_flows(socket: &Path, request: FlowsRequest) -> Result<FlowsReport, AskError> {
    match ask(socket, &Request::Flows(request))? {
        Reply::Flows(report) => Ok(report),
        other => Err(unexpected(other)),
    }
}

/// Asks for the state without the rows.
pub fn ask_pulse(socket: &Path) -> Result<StatusReport, AskError> {
    match ask(socket, &Request::Pulse)? {
        Reply::Status(report) => Ok(*report),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: Reply) -> AskError {
    match reply {
        Reply::Error(reason) => AskError::Refused(reason),
        _ => AskError::Refused("the daemon answered another question; is it of another version?".into()),
    }
}

fn ask(socket: &Path, request: &Request) -> Result<Reply, AskError> {
    let path = socket.to_owned();
    let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => AskError::Absent(path.clone()),
        io::ErrorKind::ConnectionRefused => AskError::Deserted(path.clone()),
        io::ErrorKind::PermissionDenied => AskError::Forbidden(path.clone()),
        _ => AskError::Broken {
            path: path.clone(),
            source,
        },
    })?;
    converse(stream, request).map_err(|source| AskError::Broken { path, source })
}

fn converse(mut stream: UnixStream, request: &Request) -> io::Result<Reply> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
