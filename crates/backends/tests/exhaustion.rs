//! The relay without a file to spare: clients wait, none is lost, nobody runs in circles, and a successor that comes
//! then gets every socket. Its own harness, since the limit on open files is one of the process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code
)]

#[path = "userspace/fixture.rs"]
mod fixture;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ferry_backends::userspace::{Ingress, Options, Settings, Userspace};
use ferry_model::Protocol::Tcp;
use rustix::process::{Resource, Rlimit, setrlimit};

use fixture::{PATIENCE, World, endpoint, planner, service};

/// Far fewer than the clients need, who are this many.
const FILES: u64 = 64;
const CLIENTS: usize = 100;
/// How long the relay is left without files: what pauses tries some ten times meanwhile, what does not, many thousands.
const SHORTAGE: Duration = Duration::from_secs(1);
const MANY_TRIES: usize = 200;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().position(|arg| arg == "relay") {
        Some(at) => relay(args[at + 1].parse().unwrap(), Path::new(&args[at + 2])),
        None => {
            clients();
            println!("test clients and a successor wait while files are short ... ok");
        }
    }
}

/// Counts how often the relay says that it has run out of something.
struct Complaints;

static COMPLAINTS: AtomicUsize = AtomicUsize::new(0);

impl tracing::Subscriber for Complaints {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        COMPLAINTS.fetch_add(1, Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A process with few files that would take any number of connections. Says where it listens, and whenever it is asked
/// something, how often it has complained.
fn relay(backend: SocketAddr, handover: &Path) {
    let few = Rlimit {
        current: Some(FILES),
        maximum: Some(FILES),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    tracing::subscriber::set_global_default(Complaints).unwrap();
    let mut world = world(backend, handover);
    // Where it may, the relay has raised the limit.
    setrlimit(Resource::Nofile, few).unwrap();
    world.apply();
    println!("{}", world.mapping("10.96.0.1:80").unwrap());
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", COMPLAINTS.load(Relaxed));
    }
}

fn world(backend: SocketAddr, handover: &Path) -> World {
    let options = Options {
        ingress: Ingress::Mapped,
        handover: Some(handover.to_owned()),
        relay: Settings {
            threads: 2,
            max_connections: 10 * CLIENTS,
            // A client that was accepted without a file left for its endpoint is patient.
            dial: vec![Duration::from_secs(1); PATIENCE.as_secs() as usize],
            ..Settings::default()
        },
        ..Options::default()
    };
    let mut world = World {
        planner: planner(&["127.0.0.1"], "10.244.0.0/16"),
        backend: Userspace::open(options, std::sync::Arc::new(|| {})).unwrap(),
    };
    world.set(&service("web", "10.96.0.1", &[("http", Tcp, 80)]).to(&[backend]));
    world
}

fn clients() {
    let directory = tempfile::tempdir().unwrap();
    let handover = directory.path().join("handover");
    let backend = endpoint("127.0.1.77:18077");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["relay", &backend.to_string()])
        .arg(&handover)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asking = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let relay: SocketAddr = answers.next().unwrap().parse().unwrap();
    let mut complaints = || -> usize {
        writeln!(asking).unwrap();
        answers.next().unwrap().parse().unwrap()
    };
    let mut waiting: Vec<TcpStream> = (0..CLIENTS).map(|_| ask(relay)).collect();
    let begin = Instant::now();
    while complaints() == 0 {
        assert!(begin.elapsed() < PATIENCE, "files were never short");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(SHORTAGE);
    let tries = complaints();
    assert!(tries < MANY_TRIES, "{tries} tries to accept in {SHORTAGE:?}");
    let successor = std::thread::spawn(move || {
        let mut successor = world(backend, &handover);
        successor.apply();
        successor
    });
    // It asks while there is no file for it either.
    std::thread::sleep(SHORTAGE);
    // Whoever is served leaves and makes room for another, until everyone was.
    while !waiting.is_empty() {
        assert!(
            begin.elapsed() < 4 * PATIENCE,
            "{} clients were not served",
            waiting.len()
        );
        waiting.retain_mut(|stream| !is_served(stream, &backend.to_string()));
    }
    let successor = successor.join().unwrap();
    assert_eq!(successor.mapping("10.96.0.1:80"), Some(relay), "the same socket");
    drop(asking);
    assert!(child.wait().unwrap().success());
}

fn ask(relay: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&relay, PATIENCE).unwrap();
    stream.write_all(b"?").unwrap();
    stream
}

/// Looks for the answer. An end without one is a client lost.
fn is_served(stream: &mut TcpStream, name: &str) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut answer = [0; 64];
    match stream.read(&mut answer) {
        Ok(0) => panic!("a client was turned away"),
        Ok(count) => {
            assert_eq!(String::from_utf8_lossy(&answer[..count]), name);
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
        Err(error) => panic!("a client was lost: {error}"),
    }
}
