//! Small HTTP servers that remember what they were asked, in clear or with TLS.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ferry_sources::kube::{Api, ClientTiming, Connection, Trouble};
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::pki::Pki;

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) version: http::Version,
    /// The connection that it came on, and the certificate that was presented there.
    pub(crate) connection: usize,
    pub(crate) certificate: Option<Vec<u8>>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

type Reply = Box<dyn Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync>;

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    replies: Mutex<VecDeque<Reply>>,
    connections: Mutex<usize>,
}

/// What is spoken below HTTP.
pub(crate) enum Security {
    Clear,
    /// The certificate and key of that name, and the protocols that are offered.
    Tls {
        name: &'static str,
        protocols: &'static [&'static str],
    },
}

pub(crate) const BOTH: &[&str] = &["h2", "http/1.1"];

/// A server that answers 200 unless it was told what to answer.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    tls: Option<Arc<Mutex<Arc<rustls::ServerConfig>>>>,
    pub(crate) runtime: Runtime,
}

impl Server {
    pub(crate) fn start(pki: &Pki, security: &Security) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let state = Arc::<State>::default();
        let tls = match security {
            Security::Clear => None,
            Security::Tls { name, protocols } => Some(Arc::new(Mutex::new(config(pki, name, protocols)))),
        };
        let server = Server {
            address: listener.local_addr().unwrap(),
            state: Arc::clone(&state),
            tls: tls.clone(),
            runtime,
        };
        server.runtime.spawn(accept(listener, state, tls));
        server
    }

    pub(crate) fn tls(pki: &Pki, name: &'static str) -> Self {
        Server::start(
            pki,
            &Security::Tls {
                name,
                protocols: BOTH,
            },
        )
    }

    pub(crate) fn clear(pki: &Pki) -> Self {
        Server::start(pki, &Security::Clear)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// New connections see this certificate.
    pub(crate) fn present(&self, pki: &Pki, name: &str) {
        *self.tls.as_ref().unwrap().lock().unwrap() = config(pki, name, BOTH);
    }

    /// Answers the next request that way.
    pub(crate) fn reply(&self, reply: impl Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync + 'static) {
        self.state.replies.lock().unwrap().push_back(Box::new(reply));
    }

    pub(crate) fn refuse_once(&self) {
        self.reply(|_| status(401));
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request")
    }

    pub(crate) fn connections(&self) -> usize {
        *self.state.connections.lock().unwrap()
    }
}

pub(crate) fn status(code: u16) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::default()).unwrap()
}

fn config(pki: &Pki, name: &str, protocols: &[&str]) -> Arc<rustls::ServerConfig> {
    let chain = CertificateDer::pem_file_iter(pki.path(&format!("{name}.crt")))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_file(pki.path(&format!("{name}.key"))).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(Arc::new(Anyone))
        .with_cert_resolver(Arc::new(One(Arc::new(rustls::sign::CertifiedKey::new(
            chain, key,
        )))));
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Presents one certificate, whatever it is like.
#[derive(Debug)]
struct One(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for One {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Asks for a client's certificate and takes any.
#[derive(Debug)]
struct Anyone;

impl ClientCertVerifier for Anyone {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

async fn accept(
    listener: TcpListener,
    state: Arc<State>,
    tls: Option<Arc<Mutex<Arc<rustls::ServerConfig>>>>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let (state, config) = (
            Arc::clone(&state),
            tls.as_ref().map(|tls| Arc::clone(&tls.lock().unwrap())),
        );
        tokio::spawn(async move {
            let number = {
                let mut connections = state.connections.lock().unwrap();
                *connections += 1;
                *connections
            };
            match config {
                None => serve(TokioIo::new(stream), state, number, None, None).await,
                Some(config) => {
                    let acceptor = tokio_rustls::TlsAcceptor::from(config);
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let session = stream.get_ref().1;
                        let certificate = session.peer_certificates().map(|chain| chain[0].to_vec());
                        let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
                        serve(
                            TokioIo::new(stream),
                            state,
                            number,
                            certificate,
                            protocol.as_deref(),
                        )
                        .await;
                    }
                }
            }
        });
    }
}

async fn serve(
    io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    state: Arc<State>,
    connection: usize,
    certificate: Option<Vec<u8>>,
    protocol: Option<&[u8]>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = Seen {
            target: request.uri().to_string(),
            headers: request.headers().clone(),
            version: request.version(),
            connection,
            certificate: certificate.clone(),
        };
        let reply = state.replies.lock().unwrap().pop_front();
        let answer = reply.map_or_else(|| status(200), |reply| reply(&seen));
        state.seen.lock().unwrap().push(seen);
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ = match protocol {
        Some(b"h2") => {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.serve_connection(io, service).await
        }
        _ => {
            hyper::server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await
        }
    };
}

/// A kubeconfig with one cluster and one user, in flow YAML.
pub(crate) fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {cluster}\n\
         contexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {user}\n"
    )
}

/// How to connect by a kubeconfig in the directory of the certificates.
pub(crate) fn connection(pki: &Pki, cluster: &str, user: &str) -> Connection {
    Connection {
        kubeconfig: Some(pki.write("kubeconfig", kubeconfig(cluster, user))),
        user_agent: "test/1".into(),
        qps: -1.0,
        ..Connection::default()
    }
}

pub(crate) fn quick() -> ClientTiming {
    ClientTiming {
        reload_interval: Duration::from_millis(50),
        ..ClientTiming::default()
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks for a path; the whole answer, or why there is none.
pub(crate) fn get(runtime: &Runtime, api: &Api, path: &str) -> Result<Vec<u8>, Trouble> {
    runtime.block_on(async {
        let request = Request::get(path).body(Bytes::new()).unwrap();
        let mut body = api
            .send(request, ferry_lab::patience(ANSWER_TIMEOUT))
            .await?
            .into_body();
        let mut whole = Vec::new();
        while let Some(piece) = body.next().await {
            whole.extend_from_slice(&piece.unwrap());
        }
        Ok(whole)
    })
}

/// Asks a server once by a kubeconfig.
pub(crate) fn ask(server: &Server, connection: &Connection) -> Result<Seen, String> {
    let api = connection.connect().map_err(|error| error.to_string())?;
    get(&server.runtime, &api, "/version").map_err(|trouble| trouble.to_string())?;
    Ok(server.last())
}
