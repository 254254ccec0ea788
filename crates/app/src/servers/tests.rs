//! The servers over real sockets: exact codes, headers and bodies.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ferry_model::{Family, NodePorts, ServiceName};

use super::health::{self, Health};
use super::metrics::{self, Exposed};
use super::service_health::{ServiceHealth, Wanted};
use crate::clock::Now;
use crate::events::Recorder;
use crate::metrics::{Build, Format, Metrics};
use crate::modes::Mode;

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

fn ask(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path, "", "")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn metrics_of(mode: Mode) -> Arc<Metrics> {
    Arc::new(Metrics::new(mode, Build::default()))
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn later(now: Now, seconds: u64) -> Now {
    let more = Duration::from_secs(seconds);
    Now {
        steady: now.steady + more,
        calendar: now.calendar + more,
    }
}

#[test]
fn health_answers_with_upstreams_bodies() {
    let runtime = runtime();
    let health = Arc::new(Health::new(Duration::from_secs(60)));
    let metrics = metrics_of(Mode::named("nftables").unwrap());
    let eligible = Arc::new(AtomicBool::new(false));
    let server = health::start(
        anywhere(),
        Arc::clone(&health),
        {
            let eligible = Arc::clone(&eligible);
            move || eligible.load(Ordering::Relaxed)
        },
        Arc::clone(&metrics),
        runtime.handle(),
    )
    .unwrap();

    let unseen = get(server.address(), "/healthz");
    assert_eq!(unseen.status, 503);
    let unseen_body = unseen.body.replace(&current_time(&unseen.body), "T");
    assert_eq!(
        unseen_body,
        "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"currentTime\":\"T\",\"nodeEligible\":false,\"healthy\":true}"
    );

    let at = SystemTime::UNIX_EPOCH + Duration::new(1_794_739_671, 94_935_038);
    eligible.store(true, Ordering::Relaxed);
    for family in Family::BOTH {
        health.updated(
            family,
            Now {
                calendar: at,
                ..Now::read()
            },
        );
    }
    let ready = get(server.address(), "/healthz");
    assert_eq!(ready.status, 200);
    assert_eq!(ready.header("content-type"), Some("application/json"));
    assert_eq!(ready.header("x-content-type-options"), Some("nosniff"));
    assert!(ready.header("date").is_some());
    let time = current_time(&ready.body);
    let one = "\"lastUpdated\":\"2026-11-15T10:47:51.094935038Z\",\"healthy\":true";
    assert_eq!(
        ready.body,
        format!(
            "{{\"lastUpdated\":\"{time}\",\"currentTime\":\"{time}\",\"nodeEligible\":true,\"healthy\":true,\
             \"status\":{{\"IPv4\":{{{one}}},\"IPv6\":{{{one}}}}}}}"
        )
    );
    assert_eq!(
        ready.header("content-length").unwrap(),
        ready.body.len().to_string()
    );

    eligible.store(false, Ordering::Relaxed);
    let drained = get(server.address(), "/healthz");
    assert_eq!(drained.status, 503);
    assert!(
        drained.body.contains("\"nodeEligible\":false,\"healthy\":true"),
        "{}",
        drained.body
    );
    assert!(
        drained
            .body
            .starts_with("{\"lastUpdated\":\"2026-11-15T10:47:51.094935038Z\""),
        "{}",
        drained.body
    );
    let live = get(server.address(), "/livez");
    assert_eq!(live.status, 200);
    assert!(!live.body.contains("nodeEligible"), "{}", live.body);

    for unknown in ["/", "/healthz/", "/metrics"] {
        let answer = get(server.address(), unknown);
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (404, "404 page not found\n"),
            "{unknown}"
        );
    }
    let head = ask(server.address(), "HEAD", "/livez", "", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(ask(server.address(), "POST", "/livez", "", "x").status, 200);
    let text = metrics.text(Format::Prometheus);
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 2",
        "kubeproxy_proxy_livez_total{code=\"200\"} 3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}");
    }
}

fn current_time(body: &str) -> String {
    let (_, rest) = body.split_once("\"currentTime\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn only_a_change_that_waits_makes_a_family_stale() {
    let health = Health::new(Duration::from_secs(60));
    let start = Now::read();
    health.queued(Family::V6, start);
    assert!(
        health.healthy(later(start, 1000)),
        "a family that never began cannot be late"
    );
    health.updated(Family::V4, start);
    health.updated(Family::V6, start);
    assert!(health.healthy(later(start, 100_000)), "idle is healthy");
    health.queued(Family::V4, later(start, 100));
    health.queued(Family::V4, later(start, 150));
    assert!(health.healthy(later(start, 159)));
    assert!(!health.healthy(later(start, 160)), "the oldest change counts");
    health.updated(Family::V6, later(start, 161));
    assert!(
        !health.healthy(later(start, 161)),
        "the other family does not help"
    );
    health.updated(Family::V4, later(start, 162));
    assert!(health.healthy(later(start, 10_000)));
}

fn exposed(metrics: &Arc<Metrics>, profiling: bool, verbosity: &Arc<Mutex<u32>>) -> Arc<Exposed> {
    let verbosity = Arc::clone(verbosity);
    Arc::new(Exposed {
        mode: Mode::named("nftables").unwrap(),
        metrics: Arc::clone(metrics),
        configz: "{\"kubeproxy.config.k8s.io\":{}}".into(),
        flags: vec![("v", "2".into())],
        flagz: true,
        statusz: true,
        profiling,
        started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_739_671_900),
        set_verbosity: Box::new(move |level| *verbosity.lock().unwrap() = level),
    })
}

#[test]
fn the_metrics_server_has_upstreams_pages() {
    let runtime = runtime();
    let metrics = metrics_of(Mode::named("nftables").unwrap());
    let verbosity = Arc::default();
    let server = metrics::start(anywhere(), exposed(&metrics, false, &verbosity), runtime.handle()).unwrap();
    let at = server.address();

    let plain = [
        ("/healthz", "ok"),
        ("/healthz?verbose", "[+]ping ok\nhealthz check passed\n"),
        (
            "/healthz?verbose&exclude=ping",
            "[+]ping excluded: ok\nhealthz check passed\n",
        ),
        ("/healthz/ping", "ok"),
        ("/proxyMode", "nftables"),
    ];
    for (path, body) in plain {
        let answer = get(at, path);
        assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8"),
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let configz = get(at, "/configz");
    assert_eq!(configz.header("content-type"), Some("application/json"));
    assert_eq!(configz.body, "{\"kubeproxy.config.k8s.io\":{}}");

    for method in ["GET", "DELETE"] {
        let scrape = ask(at, method, "/metrics", "", "");
        assert_eq!(scrape.status, 200);
        assert_eq!(
            scrape.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8; escaping=underscores")
        );
        assert_eq!(scrape.header("process-start-time-unix"), Some("1794739671"));
        assert!(
            scrape
                .body
                .contains("\nkubeproxy_sync_proxy_rules_service_changes_total 0\n")
        );
    }

    let open = ask(
        at,
        "GET",
        "/metrics",
        "Accept: application/openmetrics-text;version=1.0.0\r\n",
        "",
    );
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores")
    );
    assert!(open.body.ends_with("\n# EOF\n"), "{}", open.body);

    let slis = get(at, "/metrics/slis");
    assert_eq!(slis.header("process-start-time-unix"), Some("1794739671"));
    let slis = slis.body;
    assert!(slis.contains("# HELP kubernetes_healthcheck [STABLE] "), "{slis}");
    assert!(
        slis.contains("\nkubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"),
        "{slis}"
    );
    let total = "\nkubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 4\n";
    assert!(slis.contains(total), "{slis}");
    assert!(slis.contains("\nprocess_start_time_seconds "), "{slis}");
    let reset = ask(at, "DELETE", "/metrics/slis", "", "");
    assert_eq!((reset.status, reset.body.as_str()), (200, "metrics reset\n"));
    assert!(
        !get(at, "/metrics/slis")
            .body
            .contains("kubernetes_healthchecks_total")
    );

    assert!(get(at, "/flagz").body.ends_with("\nv=2\n"));
    let accept = "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Statusz\r\n";
    let statusz = ask(at, "GET", "/statusz", accept, "");
    let statusz: serde_json::Value = serde_json::from_str(&statusz.body).unwrap();
    assert_eq!(
        (&statusz["kind"], &statusz["binaryVersion"]),
        (&"Statusz".into(), &"1.36.4".into())
    );
    assert_eq!(
        ask(at, "GET", "/statusz", "Accept: application/json\r\n", "").status,
        406
    );

    for absent in ["/", "/livez", "/debug/pprof/", "/debug/flags/v", "/metrics/"] {
        assert_eq!(get(at, absent).status, 404, "{absent}");
    }
}

#[test]
fn with_profiling_the_verbosity_can_be_set() {
    let runtime = runtime();
    let metrics = metrics_of(Mode::named("nftables").unwrap());
    let verbosity: Arc<Mutex<u32>> = Arc::default();
    let server = metrics::start(anywhere(), exposed(&metrics, true, &verbosity), runtime.handle()).unwrap();
    let at = server.address();
    let set = ask(at, "PUT", "/debug/flags/v", "", "5");
    assert_eq!(
        (set.status, set.body.as_str()),
        (200, "successfully set klog.logging.verbosity to 5\n")
    );
    assert_eq!(*verbosity.lock().unwrap(), 5);
    let get_v = get(at, "/debug/flags/v");
    assert_eq!(
        (get_v.status, get_v.body.as_str()),
        (406, "unsupported http method\n")
    );
    assert_eq!(ask(at, "PUT", "/debug/flags/v", "", "loud").status, 400);
    assert_eq!(
        ask(at, "PUT", "/debug/flags/v", "", &"1".repeat(1000)).status,
        400
    );
    let moved = get(at, "/debug/pprof");
    assert_eq!(
        (moved.status, moved.header("location")),
        (302, Some("/debug/pprof/"))
    );
    assert_eq!(get(at, "/debug/pprof/heap").status, 501);
    assert_eq!(*verbosity.lock().unwrap(), 5);
}

/// A port that is free on every address just now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn service_health(runtime: &tokio::runtime::Runtime, health: &Arc<Health>) -> ServiceHealth {
    let recorder = Recorder::log_only(metrics_of(Mode::named("nftables").unwrap()));
    ServiceHealth::new(
        runtime.handle().clone(),
        Arc::clone(health),
        recorder,
        "node-1".into(),
    )
}

#[test]
fn a_service_health_check_tells_its_local_endpoints() {
    let runtime = runtime();
    let health = Arc::new(Health::new(Duration::ZERO));
    let mut checks = service_health(&runtime, &health);
    let (name, port) = (ServiceName::new("ns", "svc"), free_port());
    for family in Family::BOTH {
        checks.set(
            family,
            &name,
            Some(Wanted {
                port,
                local_endpoints: 3,
            }),
        );
    }
    checks.open();
    for loopback in ["127.0.0.1", "::1"] {
        let at = SocketAddr::new(loopback.parse().unwrap(), port);
        let answer = ask(at, "POST", "/any/path", "", "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("x-load-balancing-endpoint-weight"), Some("3"));
        assert_eq!(
            answer.body,
            "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"svc\"\n\t},\n\
             \t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": true\n}"
        );
    }
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    checks.set(
        Family::V4,
        &name,
        Some(Wanted {
            port,
            local_endpoints: 0,
        }),
    );
    let empty = get(at, "/");
    assert_eq!(
        (empty.status, empty.header("x-load-balancing-endpoint-weight")),
        (503, Some("0"))
    );

    checks.set(
        Family::V4,
        &name,
        Some(Wanted {
            port,
            local_endpoints: 1,
        }),
    );
    health.updated(Family::V6, Now::read());
    health.queued(Family::V6, Now::read());
    let stale = get(at, "/");
    assert_eq!(stale.status, 503);
    assert!(
        stale
            .body
            .ends_with("\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"),
        "{}",
        stale.body
    );
}

#[test]
fn health_checks_move_close_and_are_tried_again() {
    let runtime = runtime();
    let health = Arc::new(Health::new(Duration::from_secs(60)));
    let mut checks = service_health(&runtime, &health);
    let name = ServiceName::new("ns", "svc");
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    checks.set(
        Family::V4,
        &name,
        Some(Wanted {
            port,
            local_endpoints: 1,
        }),
    );
    checks.open();
    drop(taken);
    wait_until(|| TcpStream::connect(at).is_err(), "nothing listens");
    checks.open();
    assert_eq!(get(at, "/").status, 200, "opened at the next try");

    let only = "127.0.0.1".parse().unwrap();
    checks.set_addresses(Family::V4, &NodePorts::Only(vec![only]));
    checks.open();
    assert_eq!(get(at, "/").status, 200);

    let other = free_port();
    checks.set(
        Family::V4,
        &name,
        Some(Wanted {
            port: other,
            local_endpoints: 1,
        }),
    );
    checks.open();
    wait_until(|| TcpStream::connect(at).is_err(), "moved away");
    assert_eq!(get(SocketAddr::new(only, other), "/").status, 200);
    checks.set(Family::V4, &name, None);
    wait_until(
        || TcpStream::connect(SocketAddr::new(only, other)).is_err(),
        "closed",
    );
}

fn wait_until(mut done: impl FnMut() -> bool, what: &str) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Counts what it is asked to deliver.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl crate::events::Sink for Counting {
    async fn deliver(&self, _: http::Request<Vec<u8>>) -> crate::events::Delivered {
        self.0.fetch_add(1, Ordering::Relaxed);
        crate::events::Delivered::Yes
    }
}

#[test]
fn listeners_change_their_addresses_without_standing_in_each_others_way() {
    let runtime = runtime();
    let health = Arc::new(Health::new(Duration::from_secs(60)));
    let events = Counting::default();
    let recorder = Recorder::start(
        events.clone(),
        "h",
        metrics_of(Mode::named("nftables").unwrap()),
        runtime.handle(),
    );
    let mut checks = ServiceHealth::new(runtime.handle().clone(), health, recorder.clone(), "n".into());
    let port = free_port();
    let wanted = Wanted {
        port,
        local_endpoints: 1,
    };
    checks.set(Family::V4, &ServiceName::new("ns", "svc"), Some(wanted));
    let [one, two, three]: [IpAddr; 3] = [1, 2, 3].map(|last| [127, 0, 0, last].into());
    let answers = |address| TcpStream::connect((address, port)).is_ok();
    for _ in 0..30 {
        for addresses in [vec![], vec![one, two], vec![two, three], vec![three]] {
            let node_ports = if addresses.is_empty() {
                NodePorts::All
            } else {
                NodePorts::Only(addresses.clone())
            };
            checks.set_addresses(Family::V4, &node_ports);
            checks.open();
            for address in [one, two, three] {
                let expected = addresses.is_empty() || addresses.contains(&address);
                assert_eq!(answers(address), expected, "{address} of {addresses:?}");
            }
        }
    }
    checks.set_addresses(Family::V4, &NodePorts::Only(vec![one, two]));
    checks.open();
    let mut kept = TcpStream::connect((two, port)).unwrap();
    checks.set_addresses(Family::V4, &NodePorts::Only(vec![two, three]));
    checks.open();
    kept.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    runtime.block_on(recorder.flush(Duration::from_secs(30)));
    assert_eq!(events.0.load(Ordering::Relaxed), 0, "nobody was in the way");
}

fn healthz(runtime: &tokio::runtime::Runtime) -> super::serve::Server {
    let health = Arc::new(Health::new(Duration::from_secs(60)));
    let metrics = metrics_of(Mode::named("nftables").unwrap());
    health::start(anywhere(), health, || true, metrics, runtime.handle()).unwrap()
}

/// Connects from an address of our choice and sends half a request.
fn half_a_request(to: SocketAddr, from: IpAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost:").unwrap();
    stream
}

#[test]
fn a_thousand_idle_clients_blind_nobody() {
    // Both ends of each connection are files of this process.
    let files = ferry_host::process::raise_open_files_limit();
    assert!(files >= 4096, "only {files} files may be open");
    let runtime = runtime();
    let server = healthz(&runtime);
    let to = server.address();
    let over = Arc::new(AtomicBool::new(false));
    // From one address, and from so many that none exceeds its share.
    let attackers: Vec<_> = [(1, 500), (20, 1200)]
        .map(|(sources, clients): (u8, usize)| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let from = |i: usize| IpAddr::from([127, 1, sources, (i % usize::from(sources)) as u8]);
                let mut idle: Vec<TcpStream> = (0..clients).map(|i| half_a_request(to, from(i))).collect();
                while !over.load(Ordering::Relaxed) {
                    for (i, client) in idle.iter_mut().enumerate() {
                        // One that was closed is opened again.
                        if client.write(b" ").is_err() {
                            *client = half_a_request(to, from(i));
                        }
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
            })
        })
        .into();
    std::thread::sleep(Duration::from_millis(500));
    let mut times = Vec::new();
    for _ in 0..20 {
        let start = std::time::Instant::now();
        assert_eq!(get(to, "/livez").status, 200);
        times.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    over.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().unwrap();
    }
    times.sort();
    // A few milliseconds where the machine has nothing else to do; without room for newcomers, half a minute.
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
}

#[test]
fn a_client_that_owes_its_request_is_closed_before_and_after_the_first() {
    let runtime = runtime();
    let server = healthz(&runtime);
    let mut half = half_a_request(server.address(), [127, 0, 0, 1].into());
    let mut idle = TcpStream::connect(server.address()).unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let start = std::time::Instant::now();
    for client in [&mut half, &mut idle] {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
    }
    let took = start.elapsed();
    assert!(
        took > Duration::from_secs(5) && took < Duration::from_secs(30),
        "{took:?}"
    );
}

#[test]
fn floods_of_requests_headers_and_bodies_are_survived() {
    let runtime = runtime();
    let server = healthz(&runtime);
    let connect = || {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let mut pipelined = connect();
    let mut requests = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(999);
    requests.push_str("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    pipelined.write_all(requests.as_bytes()).unwrap();
    let mut answers = String::new();
    pipelined.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 1000);

    let mut long_header = connect();
    let header = format!(
        "GET /livez HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    // The server may answer and close before it has read everything.
    let _ = long_header.write_all(header.as_bytes());
    let mut answer = Vec::new();
    let _ = long_header.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );

    let mut long_body = connect();
    let _ = long_body.write_all(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n");
    let chunk = vec![b'x'; 1 << 20];
    let before = ferry_host::process::usage().unwrap().resident;
    for _ in 0..100 {
        if long_body.write_all(&chunk).is_err() {
            break;
        }
    }
    let after = ferry_host::process::usage().unwrap().resident;
    assert!(after < before + (50 << 20), "{before} -> {after}");
    assert_eq!(get(server.address(), "/livez").status, 200);
}

#[test]
fn header_names_are_spelled_as_go_spells_them() {
    let runtime = runtime();
    let server = healthz(&runtime);
    let answer = get(server.address(), "/livez");
    let mut names: Vec<&str> = answer
        .head
        .lines()
        .skip(1)
        .map(|line| line.split(':').next().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "Connection",
            "Content-Length",
            "Content-Type",
            "Date",
            "X-Content-Type-Options"
        ]
    );
}
