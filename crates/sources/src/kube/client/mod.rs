//! A client of the API server: what a kubeconfig says, brought to HTTP.
//!
//! Lives here: kubeconfigs and credentials (`kubeconfig`, `credentials`, `exec`), the way to the server (`dial`,
//! `proxy`, `tls`, `x509`) and the connections (`connections`). Touches the network, the files and the programs that
//! a kubeconfig names, and the environment's proxy settings. Always holds: nothing secret is shown or sent in clear;
//! files are read again, so that what is replaced is used; no redirect is followed.

mod address;
mod body;
mod connections;
mod credentials;
mod dial;
mod exec;
mod kubeconfig;
mod pem;
mod proxy;
mod secret;
mod settings;
mod tls;
mod x509;

pub use body::Body;
pub use kubeconfig::Refused;
pub(super) use kubeconfig::{Kubeconfig, server_url};
pub(super) use proxy::environment_proxy;
pub(super) use settings::{Settings, in_cluster, read as read_file};
pub(super) use tls::check_inline;

use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HOST, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;

use super::requests::Requests;
use body::{Meter, Packed};
use connections::{Age, Connections, Lease};
use credentials::{Credential, Credentials};
use dial::{Protocol, Route, proxy_authorization};
use settings::Impersonation;
use tls::Tls;

/// How long the client waits for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    pub connect_timeout: Duration,
    pub handshake_timeout: Duration,
    /// How long an HTTP/2 connection may be silent before it is asked whether it lives, and how long it may take to
    /// answer that.
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    /// How often the files of open connections are looked at again.
    pub reload_interval: Duration,
    /// How long a credential plugin may take.
    pub plugin_timeout: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            reload_interval: Duration::from_secs(30),
            plugin_timeout: Duration::from_secs(60),
        }
    }
}

/// How many connections that were good before may turn out not to be, for one request.
const MAX_ATTEMPTS: u32 = 5;

/// One server, reached as one user; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    credentials: Credentials,
    impersonation: Impersonation,
    user_agent: Option<HeaderValue>,
    compression: bool,
    requests: Arc<Requests>,
    reload_interval: Duration,
    reloading: Once,
}

impl Client {
    /// Reads the files that the settings name, so that what is wrong with them is said at once.
    pub(super) fn new(
        settings: Settings,
        user_agent: &str,
        timing: &Timing,
        requests: Arc<Requests>,
    ) -> Result<Self, String> {
        let credentials = Credentials::new(&settings, timing.plugin_timeout, &requests)?;
        let tls = if settings.server.is_https() {
            let tls = Tls::new(&settings)?;
            tls.load(None)?;
            Some(tls)
        } else {
            None
        };
        let route = Route {
            server: settings.server,
            proxy: settings.proxy,
            connect_timeout: timing.connect_timeout,
            handshake_timeout: timing.handshake_timeout,
        };
        Ok(Client(Arc::new(Inner {
            connections: Arc::new(Connections::new(route, tls, timing)),
            credentials,
            impersonation: settings.impersonation,
            user_agent: HeaderValue::from_str(user_agent)
                .ok()
                .filter(|agent| !agent.is_empty()),
            compression: settings.compression,
            requests,
            reload_interval: timing.reload_interval,
            reloading: Once::new(),
        })))
    }

    /// The server's URL, without what is secret in it.
    pub(super) fn server(&self) -> String {
        self.0.connections.route.server.to_string()
    }

    /// Sends a request whose URI is a path; tells why there is no answer. What is refused as unauthenticated is sent
    /// once more if there is something else to authenticate with by now.
    pub(super) async fn send(&self, request: &Request<Bytes>) -> Result<Response<Body>, String> {
        let inner = &self.0;
        inner.reloading.call_once(|| self.start_reloading());
        let credential = inner.credentials.current().await?;
        if credential.certificate.is_some() {
            inner.connections.renew(credential.certificate.as_ref());
        }
        let answer = inner.exchange(request, &credential).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let (renewed, closed) = match inner.credentials.instead_of(&credential).await {
            Ok(renewed) => {
                let certificate = renewed.as_ref().unwrap_or(&credential).certificate.clone();
                (renewed, inner.connections.renew(certificate.as_ref()))
            }
            Err(reason) => {
                tracing::error!(err = reason, "Cannot renew refused credentials");
                (None, false)
            }
        };
        match renewed {
            Some(renewed) => inner.exchange(request, &renewed).await,
            None if closed => inner.exchange(request, &credential).await,
            None => Ok(answer),
        }
    }

    fn start_reloading(&self) {
        if self.0.connections.watches_files() {
            tokio::spawn(reload(Arc::downgrade(&self.0), self.0.reload_interval));
        }
    }
}

/// Closes connections whose files have changed, for as long as there is a client.
async fn reload(client: Weak<Inner>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(client) = client.upgrade() else {
            return;
        };
        let issued = client.credentials.issued_certificate();
        client.connections.renew(issued.as_ref());
    }
}

impl Inner {
    async fn exchange(
        &self,
        request: &Request<Bytes>,
        credential: &Credential,
    ) -> Result<Response<Body>, String> {
        let mut attempts = 0..MAX_ATTEMPTS;
        loop {
            let last = attempts.next().is_none();
            let issued = credential.certificate.as_ref();
            let (mut sender, age) = self.connections.sender(issued).await?;
            let outgoing = self.outgoing(request, credential, sender.protocol())?;
            match sender.send(outgoing).await {
                Ok(answer) => {
                    let lease = sender.lease(&self.connections);
                    return Ok(self.unpack(request, answer, lease));
                }
                // The server may have closed the connection just when the request was sent.
                Err(error)
                    if !last
                        && age == Age::Used
                        && (error.is_canceled() || request.method() == Method::GET) =>
                {
                    tracing::debug!(
                        err = describe(&error),
                        "A connection to the API server was no longer good"
                    );
                }
                Err(error) => return Err(describe(&error)),
            }
        }
    }

    fn outgoing(
        &self,
        request: &Request<Bytes>,
        credential: &Credential,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, String> {
        let route = &self.connections.route;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let path = format!("{}{path}", route.server.path);
        let authority = route.server.authority();
        let uri = if protocol == Protocol::Http2 || route.is_forwarded() {
            format!("{}://{authority}{path}", route.server.scheme)
        } else {
            path
        };
        let mut outgoing = Request::new(Full::new(request.body().clone()));
        *outgoing.method_mut() = request.method().clone();
        *outgoing.uri_mut() = uri.parse::<Uri>().map_err(|error| error.to_string())?;
        *outgoing.headers_mut() = self.headers(request.headers(), credential);
        if protocol == Protocol::Http1 {
            let host = HeaderValue::from_str(&authority).map_err(|error| error.to_string())?;
            outgoing.headers_mut().insert(HOST, host);
        }
        if let Some(user) = route.proxy.as_ref().and_then(|proxy| proxy.user.as_ref())
            && route.is_forwarded()
            && let Ok(value) = HeaderValue::from_str(&proxy_authorization(user))
        {
            outgoing.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        Ok(outgoing)
    }

    fn headers(&self, given: &HeaderMap, credential: &Credential) -> HeaderMap {
        let mut headers = given.clone();
        if let Some(agent) = &self.user_agent {
            headers.insert(USER_AGENT, agent.clone());
        }
        if self.compression {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(authorization) = &credential.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in &self.impersonation.0 {
            headers.append(name.clone(), value.clone());
        }
        headers
    }

    fn unpack(
        &self,
        request: &Request<Bytes>,
        answer: Response<hyper::body::Incoming>,
        lease: Option<Lease>,
    ) -> Response<Body> {
        let packed = match answer.headers().get(CONTENT_ENCODING) {
            Some(coding) if coding == "gzip" => Packed::Gzip,
            _ => Packed::Not,
        };
        // A watch has no size: it lasts.
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch="));
        let meter = (!is_watch).then(|| Meter {
            requests: Arc::clone(&self.requests),
            method: request.method().to_string(),
            bytes: 0,
        });
        answer.map(|incoming| Body::new(incoming, packed, meter, lease))
    }
}

/// An error of the HTTP library with its causes; the innermost says most.
fn describe(error: &hyper::Error) -> String {
    super::api::chain(error)
}
