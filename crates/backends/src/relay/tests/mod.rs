//! The relay between real sockets on loopback.

mod tcp;
mod udp;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferry_model::{Action, Protocol, Scope};

use super::*;
use crate::relay::traffic::Totals;

const TIMEOUT: Duration = Duration::from_secs(30);

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "never came: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn settings() -> Settings {
    Settings {
        threads: 2,
        ..Settings::default()
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A relay with one door into one service port.
struct Bench {
    relay: Relay,
    port: Arc<Port>,
    door: Arc<Door>,
    serving: Option<Serving>,
    at: SocketAddr,
}

/// To any endpoint.
const TO_ALL: Action = Action::Forward {
    scope: Scope::Cluster,
    masquerade: true,
};

impl Bench {
    fn new(
        settings: Settings,
        listening: Listening,
        endpoints: &[SocketAddr],
        affinity: Option<Duration>,
    ) -> Bench {
        let port = Arc::new(Port::default());
        let door = Door::new(port.clone(), Access::open(TO_ALL));
        let relay = Relay::start(settings).unwrap();
        port.balancer.update(&pools(endpoints), affinity);
        let at = listening.local_addr().unwrap();
        let serving = Some(relay.serve(listening, door.clone(), Vec::new()).unwrap());
        Bench {
            relay,
            port,
            door,
            serving,
            at,
        }
    }

    fn tcp(endpoints: &[SocketAddr]) -> Bench {
        Bench::new(settings(), listen(Protocol::Tcp, any()).unwrap(), endpoints, None)
    }

    fn udp(settings: Settings, endpoints: &[SocketAddr]) -> Bench {
        Bench::new(settings, listen(Protocol::Udp, any()).unwrap(), endpoints, None)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn totals(&self) -> Totals {
        self.port.counters.read()
    }

    /// Changes the endpoints as a new plan does.
    fn set(&self, endpoints: &[SocketAddr], limit: Option<Duration>) {
        let left = self.port.balancer.update(&pools(endpoints), None);
        self.relay.drain(left, limit);
    }
}

fn pools(endpoints: &[SocketAddr]) -> Pools {
    Pools {
        cluster: endpoints.to_vec(),
        local: Vec::new(),
        known: endpoints.to_vec(),
    }
}

/// An endpoint that treats each connection with `body` on a thread of its own.
fn tcp_endpoint(body: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(any()).unwrap();
    let address = listener.local_addr().unwrap();
    let body = Arc::new(body);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let body = body.clone();
            thread::spawn(move || body(stream));
        }
    });
    address
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// An endpoint that says its name and hangs up.
fn named(name: &'static str) -> SocketAddr {
    tcp_endpoint(move |mut stream| {
        let _ = stream.write_all(name.as_bytes());
    })
}

fn read_all(mut stream: TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// An address where nobody listens: connecting is refused. Not where other tests get their ports from.
fn refusing() -> SocketAddr {
    SocketAddr::from(([127, 200, 0, 1], 9))
}

/// An address that swallows connection attempts: its queue is full and nobody takes from it.
struct Silent {
    address: SocketAddr,
    _queue: (socket2::Socket, Vec<TcpStream>),
}

impl Silent {
    fn new() -> Silent {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&any().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let wait = Duration::from_millis(300);
        let waiting: Vec<TcpStream> = (0..8)
            .map_while(|_| TcpStream::connect_timeout(&address, wait).ok())
            .collect();
        assert!(waiting.len() < 8, "the queue never filled up");
        Silent {
            address,
            _queue: (socket, waiting),
        }
    }
}

/// Bytes that differ everywhere, from a seed.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&(seed ^ (seed >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
