//! How connections are used, and what becomes of those that are no longer good.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::pki::{P256, Pki};
use crate::server::{Security, Server, ask, connection, get};

fn pki() -> Pki {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("api", P256, "ca");
    pki
}

fn cluster(url: &str) -> String {
    format!("{{server: '{url}', certificate-authority: ca.crt}}")
}

#[test]
fn one_http2_connection_serves_everything() {
    let pki = pki();
    let server = Server::tls(&pki, "api");
    let api = connection(&pki, &cluster(&server.url()), "{}").connect().unwrap();
    let answers = server.runtime.block_on(async {
        let ask = |n: usize| {
            let api = api.clone();
            async move {
                let request = Request::get(format!("/{n}")).body(Bytes::new()).unwrap();
                api.send(request, Duration::from_secs(60))
                    .await
                    .map(|answer| answer.status())
            }
        };
        futures::future::join_all((0..20).map(ask)).await
    });
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_ref().is_ok_and(|code| *code == 200)),
        "{answers:?}"
    );
    assert_eq!(server.connections(), 1);
    let seen = server.seen();
    assert!(
        seen.iter().all(|seen| seen.version == Version::HTTP_2),
        "{seen:?}"
    );
    assert!(seen[0].target.starts_with("https://127.0.0.1:"), "{:?}", seen[0]);
}

#[test]
fn servers_without_http2_are_spoken_to_in_http1() {
    let pki = pki();
    let old = Security::Tls {
        name: "api",
        protocols: &["http/1.1"],
    };
    let silent = Security::Tls {
        name: "api",
        protocols: &[],
    };
    for security in [old, silent, Security::Clear] {
        let server = Server::start(&pki, &security);
        let api = connection(
            &pki,
            &format!(
                "{{server: '{}/prefix', insecure-skip-tls-verify: true}}",
                server.url()
            ),
            "{}",
        )
        .connect()
        .unwrap();
        for _ in 0..5 {
            get(&server.runtime, &api, "/api?x=y").unwrap();
        }
        let seen = server.last();
        assert_eq!(seen.version, Version::HTTP_11);
        assert_eq!(seen.target, "/prefix/api?x=y");
        assert_eq!(seen.header("host"), Some(server.address.to_string().as_str()));
        assert_eq!(server.connections(), 1, "an idle connection is used again");
    }
}

#[test]
fn redirects_are_answers() {
    let pki = pki();
    let server = Server::clear(&pki);
    server.reply(|_| {
        Response::builder()
            .status(302)
            .header("location", "http://192.0.2.1/")
            .body(Full::default())
            .unwrap()
    });
    let error = ask(&server, &connection(&pki, &cluster(&server.url()), "{token: t}")).unwrap_err();
    assert!(error.contains("answered 302"), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn packed_answers_are_unpacked() {
    let pki = pki();
    let text = "all the services ".repeat(100_000);
    for (server, scheme) in [(Server::clear(&pki), "clear"), (Server::tls(&pki, "api"), "tls")] {
        let packed = text.clone();
        server.reply(move |seen| {
            assert_eq!(seen.header("accept-encoding"), Some("gzip"));
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(packed.as_bytes()).unwrap();
            let body = Full::new(Bytes::from(encoder.finish().unwrap()));
            Response::builder()
                .header("content-encoding", "gzip")
                .body(body)
                .unwrap()
        });
        let api = connection(&pki, &cluster(&server.url()), "{}").connect().unwrap();
        let answer = get(&server.runtime, &api, "/api").unwrap();
        assert!(answer == text.as_bytes(), "{scheme}");
        let sizes = api
            .requests()
            .measured(ferry_sources::kube::Measure::ResponseSize);
        assert_eq!(sizes[0].1.sum, text.len() as f64);
    }
}

/// Passes bytes on in both directions until it is told to swallow them, as a network does that lost its way.
struct Relay {
    address: std::net::SocketAddr,
    swallow: Arc<AtomicBool>,
}

impl Relay {
    fn start(server: &Server) -> Self {
        let (to, swallow) = (server.address, Arc::new(AtomicBool::new(false)));
        let listener = server.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let dead = Arc::clone(&swallow);
        server.runtime.spawn(async move {
            loop {
                let (inner, _) = listener.accept().await.unwrap();
                let outer = TcpStream::connect(to).await.unwrap();
                // What is swallowed is what was open then; new connections work.
                let dead = if dead.load(Ordering::Relaxed) {
                    Arc::default()
                } else {
                    Arc::clone(&dead)
                };
                let (from, to) = (inner.into_split(), outer.into_split());
                tokio::spawn(pass(from.0, to.1, Arc::clone(&dead)));
                tokio::spawn(pass(to.0, from.1, dead));
            }
        });
        Relay { address, swallow }
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    swallow: Arc<AtomicBool>,
) {
    let mut buffer = [0; 4096];
    loop {
        match tokio::io::AsyncReadExt::read(&mut from, &mut buffer).await {
            Ok(0) | Err(_) if swallow.load(Ordering::Relaxed) => std::future::pending().await,
            Ok(0) | Err(_) => return,
            Ok(_) if swallow.load(Ordering::Relaxed) => {}
            Ok(read) => {
                if to.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[test]
fn a_connection_that_swallows_everything_is_noticed() {
    let pki = pki();
    let server = Server::tls(&pki, "api");
    let relay = Relay::start(&server);
    let mut connection = connection(&pki, &cluster(&format!("https://{}", relay.address)), "{}");
    assert!(connection.timing.ping_interval + connection.timing.ping_timeout <= Duration::from_secs(45));
    connection.timing.ping_interval = Duration::from_millis(400);
    connection.timing.ping_timeout = Duration::from_millis(400);
    let api = connection.connect().unwrap();
    get(&server.runtime, &api, "/before").unwrap();
    // A connection that is merely silent stays.
    std::thread::sleep(Duration::from_secs(2));
    get(&server.runtime, &api, "/silence").unwrap();
    assert_eq!(server.connections(), 1);
    relay.swallow.store(true, Ordering::Relaxed);
    let start = Instant::now();
    // The request is caught in the dead connection, and made again on another.
    get(&server.runtime, &api, "/after").unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(
        (server.connections(), server.last().target.ends_with("/after")),
        (2, true)
    );
}

#[test]
fn a_server_that_is_away_is_named_with_the_reason() {
    let pki = pki();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut impatient = connection(&pki, &cluster(&format!("https://{address}")), "{}");
    impatient.timing.handshake_timeout = Duration::from_millis(200);
    let error = get(&runtime, &impatient.connect().unwrap(), "/api")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!("cannot reach https://{address}/api: no TLS handshake with {address} within 0.2 s")
    );
    drop(listener);
    let error = get(&runtime, &impatient.connect().unwrap(), "/api")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!(
            "cannot reach https://{address}/api: cannot connect to {address}: Connection refused (os error 111)"
        )
    );
    let unknown = connection(&pki, &cluster("https://nowhere.invalid"), "{}")
        .connect()
        .unwrap();
    let error = get(&runtime, &unknown, "/api").unwrap_err().to_string();
    assert!(error.contains("cannot look up nowhere.invalid"), "{error}");
    let clear = Server::clear(&pki);
    let https = connection(&pki, &cluster(&format!("https://{}", clear.address)), "{}")
        .connect()
        .unwrap();
    let error = get(&runtime, &https, "/api").unwrap_err().to_string();
    assert!(error.contains("TLS with 127.0.0.1"), "{error}");
}
