//! The metrics server: `/metrics` and what operators of kube-proxy find beside it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::{ACCEPT, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::runtime::Handle;

use super::component::{Component, Rendered};
use super::listen::{self, ListenError, Wildcard};
use super::serve::{JSON, Reply, Server, TEXT, not_found, reply};
use crate::metrics::{Format, Metrics};
use crate::modes::Mode;

/// What the server shows beside the metrics.
pub struct Exposed {
    /// The mode, for `/proxyMode`.
    pub mode: Mode,
    /// The metrics themselves.
    pub metrics: Arc<Metrics>,
    /// The body of `/configz`.
    pub configz: String,
    /// Every flag with its value, sorted.
    pub flags: Vec<(&'static str, String)>,
    /// Whether `/flagz` is served.
    pub flagz: bool,
    /// Whether `/statusz` is served.
    pub statusz: bool,
    /// Whether `/debug/...` is served.
    pub profiling: bool,
    /// When the daemon started.
    pub started: SystemTime,
    /// Changes how much is logged.
    pub set_verbosity: Box<dyn Fn(u32) + Send + Sync>,
}

impl std::fmt::Debug for Exposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exposed")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// Opens the metrics server.
pub fn start(address: SocketAddr, exposed: Arc<Exposed>, runtime: &Handle) -> Result<Server, ListenError> {
    let listener = listen::bind(address, Wildcard::BothFamilies)?;
    Server::start("metrics", listener, runtime, move |request| {
        answer(request, Arc::clone(&exposed))
    })
    .map_err(|source| ListenError::new(address, source))
}

async fn answer(request: Request<Incoming>, exposed: Arc<Exposed>) -> Reply {
    let (head, body) = request.into_parts();
    match head.uri.path() {
        "/healthz" => health(head.uri.query().unwrap_or_default(), &exposed.metrics),
        "/healthz/ping" => {
            exposed.metrics.health_check_passed();
            reply(StatusCode::OK, TEXT, "ok")
        }
        "/proxyMode" => reply(StatusCode::OK, TEXT, exposed.mode.as_str()),
        "/metrics" => metrics(exposed, format(&head.headers)).await,
        "/metrics/slis" if head.method == Method::DELETE => {
            exposed.metrics.reset_slis();
            reply(StatusCode::OK, TEXT, "metrics reset\n")
        }
        "/metrics/slis" => {
            let format = format(&head.headers);
            exposition(exposed.metrics.sli_text(format), format, exposed.started)
        }
        "/configz" => reply(StatusCode::OK, JSON, exposed.configz.clone()),
        "/flagz" if exposed.flagz => component(&head.headers, &Component::flagz(&exposed.flags)),
        "/statusz" if exposed.statusz => component(
            &head.headers,
            &Component::statusz(exposed.started, SystemTime::now()),
        ),
        path if exposed.profiling && path.starts_with("/debug/") => {
            debug(path, &head.method, body, &exposed).await
        }
        _ => not_found(),
    }
}

/// The only check is that the process answers, so there is little to exclude.
fn health(query: &str, metrics: &Metrics) -> Reply {
    let mut verbose = false;
    let mut excluded = false;
    for pair in query.split('&') {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("verbose", _) => verbose = true,
            ("exclude", "ping") => excluded = true,
            _ => {}
        }
    }
    metrics.health_check_passed();
    let line = if excluded {
        "[+]ping excluded: ok"
    } else {
        "[+]ping ok"
    };
    if verbose {
        reply(StatusCode::OK, TEXT, format!("{line}\nhealthz check passed\n"))
    } else {
        reply(StatusCode::OK, TEXT, "ok")
    }
}

/// Collectors may wait for the kernel or the loop, so they get a thread of their own.
async fn metrics(exposed: Arc<Exposed>, format: Format) -> Reply {
    let started = exposed.started;
    match tokio::task::spawn_blocking(move || exposed.metrics.text(format)).await {
        Ok(text) => exposition(text, format, started),
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn format(headers: &HeaderMap) -> Format {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    Format::preferred(accept.unwrap_or_default())
}

fn exposition(text: String, format: Format, started: SystemTime) -> Reply {
    let kind = match format {
        Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
        Format::OpenMetrics => {
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
        }
    };
    let mut reply = reply(StatusCode::OK, kind, text);
    let headers = reply.headers_mut();
    headers.remove(http::header::X_CONTENT_TYPE_OPTIONS);
    let started = crate::clock::unix_seconds(started) as u64;
    headers.insert("process-start-time-unix", HeaderValue::from(started));
    reply
}

fn component(headers: &HeaderMap, component: &Component) -> Reply {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    match component.render(accept) {
        Rendered::Text(text) => reply(StatusCode::OK, TEXT, text),
        Rendered::Structured {
            content_type,
            body,
            warning,
        } => {
            let mut reply = reply(StatusCode::OK, content_type, body);
            if let Some(warning) = warning {
                reply
                    .headers_mut()
                    .insert("warning", HeaderValue::from_static(warning));
            }
            reply
        }
        Rendered::NotAcceptable(body) => reply(StatusCode::NOT_ACCEPTABLE, JSON, body),
    }
}

/// What of Go's debug pages makes sense here: the command line and the verbosity. Profiles are `perf`'s trade.
async fn debug(path: &str, method: &Method, body: Incoming, exposed: &Exposed) -> Reply {
    match path {
        "/debug/pprof" => {
            let mut moved = reply(StatusCode::FOUND, TEXT, "");
            moved
                .headers_mut()
                .insert(LOCATION, HeaderValue::from_static("/debug/pprof/"));
            moved
        }
        "/debug/pprof/" => reply(StatusCode::OK, TEXT, PPROF_INDEX),
        "/debug/pprof/cmdline" => {
            let arguments: Vec<String> = std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            reply(StatusCode::OK, TEXT, arguments.join("\0"))
        }
        path if path.starts_with("/debug/pprof/") => reply(StatusCode::NOT_IMPLEMENTED, TEXT, NO_PROFILE),
        "/debug/flags" | "/debug/flags/" => reply(StatusCode::OK, TEXT, "v\n"),
        "/debug/flags/v" if method == Method::PUT => set_verbosity(body, exposed).await,
        "/debug/flags/v" => reply(StatusCode::NOT_ACCEPTABLE, TEXT, "unsupported http method\n"),
        _ => not_found(),
    }
}

const PPROF_INDEX: &str = "cmdline\n\nCPU and memory profiles: perf record -g -p PID\n";
const NO_PROFILE: &str = "this program has no such profile; use perf record -g -p PID\n";

async fn set_verbosity(body: Incoming, exposed: &Exposed) -> Reply {
    let body = match Limited::new(body, 64).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            return reply(
                StatusCode::BAD_REQUEST,
                TEXT,
                format!("can't read the level: {error}\n"),
            );
        }
    };
    let text = String::from_utf8_lossy(&body);
    match text.trim().parse() {
        Ok(level) => {
            (exposed.set_verbosity)(level);
            reply(
                StatusCode::OK,
                TEXT,
                format!("successfully set klog.logging.verbosity to {level}\n"),
            )
        }
        Err(error) => reply(
            StatusCode::BAD_REQUEST,
            TEXT,
            format!("failed set klog.logging.verbosity {:?}: {error}\n", text.trim()),
        ),
    }
}
