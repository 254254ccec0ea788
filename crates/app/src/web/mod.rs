//! `ferry web`: pages about the running daemon, for a browser on this machine.
//! A process of its own that asks over the status socket, so the daemon has no more doors than before. Only reads: any
//! method but GET and HEAD is refused. Pages hold no script and no style of others, and can be read without script; with
//! it, they follow what happens by server-sent events. Clients are bounded as those of the daemon's servers are.

mod html;
mod map;
mod pages;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::commands::packet_of;
use crate::servers::listen::{self, Wildcard};
use crate::servers::serve::{Reply, Server, TEXT, not_found, reply};
use crate::status::{self, AskError, FlowsRequest, HistoryRequest, StatusReport};
use html::{decoded, parameter};
use pages::Page;

const HTML: &str = "text/html; charset=utf-8";
/// Nothing from elsewhere, no inline script, no frame around us, forms only to ourselves.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";
const STYLE: &str = include_str!("ferry.css");
const SCRIPT: &str = include_str!("ferry.js");
/// How often the daemon is looked at while a browser waits for news, and for how long one answer waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// How soon a browser asks for more news.
const RETRY_MILLIS: u32 = 500;

/// Serves until a signal comes. Only addresses of this machine itself are taken, unless asked otherwise.
pub fn run(socket: &Path, address: SocketAddr, remote: Remote) -> anyhow::Result<()> {
    ensure!(
        address.ip().is_loopback() || remote == Remote::Allowed,
        "{address} is not a loopback address: whoever reaches it reads every service; --allow-remote says that this is meant"
    );
    // A daemon that is not there is said at once.
    status::ask_status(socket)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let listener = listen::bind(address, Wildcard::OwnFamily)?;
    let socket: Arc<Path> = Arc::from(socket);
    let answer = move |request: Request<Incoming>| answer(request, Arc::clone(&socket), remote);
    let server = Server::start("web", listener, runtime.handle(), answer)?;
    println!("http://{}/", server.address());
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        anyhow::Ok(())
    })
}

/// Whether others than this machine may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    Allowed,
    Refused,
}

async fn answer(request: Request<Incoming>, socket: Arc<Path>, remote: Remote) -> Reply {
    let (head, _) = request.into_parts();
    let mut reply = if head.method != Method::GET && head.method != Method::HEAD {
        reply(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "nothing can be changed here\n",
        )
    } else if remote == Remote::Refused && !is_for_us(&head.headers) {
        // Some page that a name was made to lead here for would read us through the browser.
        reply(
            StatusCode::FORBIDDEN,
            TEXT,
            "ask by an address of this machine, or as localhost\n",
        )
    } else {
        route(
            head.uri.path(),
            head.uri.query().unwrap_or_default(),
            &head.headers,
            socket,
        )
        .await
    };
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    reply
}

/// Whether the browser asks for an address, or for localhost.
fn is_for_us(headers: &HeaderMap) -> bool {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok()
}

async fn route(path: &str, query: &str, headers: &HeaderMap, socket: Arc<Path>) -> Reply {
    match path {
        "/ferry.css" => return reply(StatusCode::OK, "text/css; charset=utf-8", STYLE),
        "/ferry.js" => return reply(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT),
        "/events" => {
            let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
            return events(&socket, last.map(str::to_owned)).await;
        }
        _ => {}
    }
    let (path, query) = (path.to_owned(), query.to_owned());
    let made = tokio::task::spawn_blocking(move || page(&path, &query, &socket)).await;
    match made {
        Ok(Ok(Some(page))) => reply(StatusCode::OK, HTML, page.to_string()),
        Ok(Ok(None)) => not_found(),
        Ok(Err(error)) => {
            let page = Page::trouble(&error.to_string());
            reply(StatusCode::SERVICE_UNAVAILABLE, HTML, page.to_string())
        }
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

/// The page of a path; none where there is none.
fn page(path: &str, query: &str, socket: &Path) -> Result<Option<Page>, AskError> {
    if let Some(name) = path.strip_prefix("/service/") {
        return service_page(&decoded(name), query, socket);
    }
    Ok(match path {
        "/" => {
            let status = status::ask_status(socket)?;
            Some(Page::services(&status, parameter(query, "filter").as_deref()))
        }
        "/history" => {
            let service = parameter(query, "service");
            let request = HistoryRequest {
                service: service.clone(),
                since_seconds: None,
            };
            let history = status::ask_history(socket, request)?;
            Some(Page::history(&history, service.as_deref()))
        }
        "/trace" => {
            let (from, to) = (parameter(query, "from"), parameter(query, "to"));
            let traced = match (&from, &to) {
                (Some(from), Some(to)) => Some(match packet_of(from, to) {
                    Ok(packet) => Ok(status::ask_trace(socket, packet)?),
                    Err(refused) => Err(refused.to_string()),
                }),
                _ => None,
            };
            Some(Page::trace(from.as_deref(), to.as_deref(), traced))
        }
        _ => None,
    })
}

fn service_page(name: &str, query: &str, socket: &Path) -> Result<Option<Page>, AskError> {
    let Some(detail) = status::ask_service(socket, name)? else {
        return Ok(None);
    };
    let request = FlowsRequest {
        service: Some(name.to_owned()),
        // The first look is quick, the ones that follow have rates.
        seconds: if parameter(query, "live").is_some() {
            1.0
        } else {
            0.0
        },
    };
    // A kernel without connection tracking has no flows to show, and the rest all the same.
    let flows = status::ask_flows(socket, request).ok();
    let history = status::ask_history(
        socket,
        HistoryRequest {
            service: Some(name.to_owned()),
            since_seconds: None,
        },
    )?;
    Ok(Some(Page::service(&detail, flows.as_ref(), &history)))
}

/// One piece of news, as soon as there is any: a browser asks for the next by itself.
async fn events(socket: &Path, last: Option<String>) -> Reply {
    let until = Instant::now() + LONGEST_WAIT;
    let socket: PathBuf = socket.to_owned();
    loop {
        let asked = socket.clone();
        let status = tokio::task::spawn_blocking(move || status::ask_pulse(&asked)).await;
        let now = match status {
            Ok(Ok(status)) => pulse(&status),
            _ => "gone".to_owned(),
        };
        if last.as_ref() != Some(&now) || Instant::now() >= until {
            let text = format!("retry: {RETRY_MILLIS}\nid: {now}\ndata: {now}\n\n");
            return reply(StatusCode::OK, "text/event-stream", text);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What changes whenever something is worth drawing again.
fn pulse(status: &StatusReport) -> String {
    let families = status.families.iter();
    let families = families.map(|family| format!("{}.{}.{}", family.syncs, family.failures, family.repairs));
    format!(
        "{}-{}-{}",
        status.pid,
        families.collect::<Vec<_>>().join("-"),
        status.not_served
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_answered() {
        let asks = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_str(host).unwrap());
            is_for_us(&headers)
        };
        for good in [
            "127.0.0.1:8088",
            "localhost",
            "localhost:1",
            "[::1]:8088",
            "[::1]",
            "192.0.2.1",
        ] {
            assert!(asks(good), "{good}");
        }
        for bad in ["evil.example", "evil.example:8088", "127.0.0.1.evil.example", ""] {
            assert!(!asks(bad), "{bad}");
        }
    }
}
