//! The relay between real sockets on loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferry_model::{Protocol, Scope, Verdict};

use super::*;
use crate::userspace::balancer::Pools;
use crate::userspace::traffic::Totals;

const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
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

impl Bench {
    fn new(
        settings: Settings,
        listening: Listening,
        endpoints: &[SocketAddr],
        affinity: Option<Duration>,
    ) -> Bench {
        let port = Arc::new(Port::default());
        let door = Door::new(port.clone(), Access::open(Verdict::Forward(Scope::Cluster)));
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
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

#[test]
fn tcp_echo() {
    let bench = Bench::tcp(&[tcp_endpoint(echo)]);
    let mut stream = bench.connect();
    for message in ["hello", "again"] {
        stream.write_all(message.as_bytes()).unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, message.as_bytes());
    }
    drop(stream);
    until("the connection is over", || bench.totals().active == 0);
    let totals = bench.totals();
    assert_eq!(
        (totals.connections, totals.bytes_received, totals.bytes_sent),
        (1, 10, 10)
    );
    until("the permit is back", || bench.relay.connections() == 0);
}

#[test]
fn a_client_that_has_said_all_still_gets_its_answer() {
    let endpoint = tcp_endpoint(|mut stream| {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).unwrap();
        stream
            .write_all(format!("got {}", question.len()).as_bytes())
            .unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    stream.write_all(&[7; 1000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(stream).unwrap(), "got 1000");
}

#[test]
fn an_endpoint_that_has_said_all_still_hears_its_client() {
    let (heard, hears) = std::sync::mpsc::channel();
    let endpoint = tcp_endpoint(move |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        heard.send(read_all(stream).unwrap()).unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bye");
    stream.write_all(b"one more thing").unwrap();
    drop(stream);
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), "one more thing");
}

/// Sends a lot both ways at once, so that copying, splicing and waiting for the slower side all happen.
#[test]
fn large_transfers_arrive_whole() {
    const SIZE: usize = 24 << 20;
    let endpoint = tcp_endpoint(|stream| {
        let mut sending = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            sending.write_all(&noise(SIZE, 2)).unwrap();
            sending.shutdown(Shutdown::Write).unwrap();
        });
        let mut reading = stream;
        let mut got = Vec::new();
        reading.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == noise(SIZE, 1), "the endpoint got something else");
    });
    let bench = Bench::tcp(&[endpoint]);
    let stream = bench.connect();
    let mut sending = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        for chunk in noise(SIZE, 1).chunks(123_457) {
            sending.write_all(chunk).unwrap();
        }
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut reading = stream;
    let mut got = Vec::new();
    reading.read_to_end(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == noise(SIZE, 2), "the client got something else");
    until("the connection is over", || bench.totals().active == 0);
    let totals = bench.totals();
    assert_eq!(
        (totals.bytes_received, totals.bytes_sent),
        (SIZE as u64, SIZE as u64)
    );
}

#[test]
fn a_reader_that_stops_holds_its_writer_back_and_nobody_else() {
    let endpoint = tcp_endpoint(|mut stream| {
        let block = vec![1; 1 << 16];
        while stream.write_all(&block).is_ok() {}
    });
    let bench = Bench::tcp(&[endpoint]);
    let lazy = bench.connect();
    let steady = || {
        let before = bench.totals().bytes_sent;
        thread::sleep(Duration::from_millis(200));
        before > 0 && bench.totals().bytes_sent == before
    };
    until("the writer is held back", steady);
    assert!(
        bench.totals().bytes_sent < 64 << 20,
        "no more than the sockets' buffers"
    );
    let mut eager = bench.connect();
    let mut read = vec![0; 1 << 16];
    for _ in 0..64 {
        eager.read_exact(&mut read).unwrap();
    }
    drop((lazy, eager));
    until("the connections are over", || bench.totals().active == 0);
}

#[test]
fn endpoints_take_turns_and_refusing_ones_are_passed_over() {
    let bench = Bench::tcp(&[named("a"), refusing(), named("b")]);
    let mut counts = [0; 2];
    for _ in 0..10 {
        match read_all(bench.connect()).unwrap().as_str() {
            "a" => counts[0] += 1,
            "b" => counts[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert!(counts.iter().all(|count| *count >= 4), "{counts:?}");
    assert_eq!(bench.totals().failed, 0);
}

#[test]
fn a_silent_endpoint_costs_its_own_clients_the_first_timeout_only() {
    let silent = Silent::new();
    let bench = Bench::tcp(&[silent.address]);
    // Clients of the silent endpoint are waiting while another one becomes available.
    let waiting: Vec<_> = (0..20).map(|_| bench.connect()).collect();
    bench.set(&[silent.address, named("alive")], None);
    let start = Instant::now();
    assert_eq!(read_all(bench.connect()).unwrap(), "alive");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for stream in waiting {
        assert_eq!(read_all(stream).unwrap(), "alive");
    }
}

#[test]
fn where_nobody_answers_the_client_is_told() {
    let quick = Settings {
        dial: vec![Duration::from_millis(50); 4],
        ..settings()
    };
    let silent = Silent::new();
    let bench = Bench::new(
        quick,
        listen(Protocol::Tcp, any()).unwrap(),
        &[silent.address, refusing()],
        None,
    );
    let error = read_all(bench.connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    bench.set(&[], None);
    assert_eq!(
        read_all(bench.connect()).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!((bench.totals().failed, bench.totals().connections), (2, 0));
}

#[test]
fn a_reset_is_passed_on() {
    let endpoint = tcp_endpoint(|mut stream| {
        stream.read_exact(&mut [0; 1]).unwrap();
        reset_on_close(&stream);
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    stream.write_all(b"x").unwrap();
    assert_eq!(read_all(stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
    until("the connection is over", || bench.totals().active == 0);
}

#[test]
fn a_client_sticks_to_its_endpoint() {
    let endpoints = [named("a"), named("b"), named("c")];
    let stay = Some(Duration::from_secs(3600));
    let bench = Bench::new(
        settings(),
        listen(Protocol::Tcp, any()).unwrap(),
        &endpoints,
        stay,
    );
    let first = read_all(bench.connect()).unwrap();
    for _ in 0..10 {
        assert_eq!(read_all(bench.connect()).unwrap(), first);
    }
    // Its endpoint leaves: the client moves on and stays there.
    let rest: Vec<_> = endpoints
        .iter()
        .zip(["a", "b", "c"])
        .filter(|(_, name)| *name != first)
        .collect();
    let addresses: Vec<_> = rest.iter().map(|(address, _)| **address).collect();
    bench.port.balancer.update(&pools(&addresses), stay);
    let second = read_all(bench.connect()).unwrap();
    assert_ne!(second, first);
    for _ in 0..10 {
        assert_eq!(read_all(bench.connect()).unwrap(), second);
    }
}

#[test]
fn policy_decides_by_client() {
    let bench = Bench::tcp(&[named("in")]);
    let only = |net: &str| Access {
        verdict: Verdict::Forward(Scope::Cluster),
        at_home: None,
        sources: vec![net.parse().unwrap()],
    };
    bench.door.set_access(only("192.0.2.0/24"));
    assert_eq!(
        read_all(bench.connect()).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    bench.door.set_access(only("127.0.0.0/8"));
    assert_eq!(read_all(bench.connect()).unwrap(), "in");
    assert_eq!((bench.totals().refused, bench.totals().connections), (1, 1));
}

#[test]
fn at_the_limit_clients_wait() {
    let limited = Settings {
        max_connections: 2,
        ..settings()
    };
    let bench = Bench::new(
        limited,
        listen(Protocol::Tcp, any()).unwrap(),
        &[tcp_endpoint(echo)],
        None,
    );
    let mut streams: Vec<_> = (0..4).map(|_| bench.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
    }
    for stream in &mut streams[..2] {
        stream.read_exact(&mut [0; 1]).unwrap();
    }
    streams[2]
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert!(streams[2].read_exact(&mut [0; 1]).is_err(), "a third one got in");
    streams[2].set_read_timeout(Some(PATIENCE)).unwrap();
    for mut stream in streams.drain(..) {
        stream.write_all(b"y").unwrap();
        let mut answer = [0; 1];
        while stream.read_exact(&mut answer).is_ok() && answer != *b"y" {}
        assert_eq!(answer, *b"y");
    }
}

#[test]
fn a_removed_endpoint_keeps_what_it_has_until_the_deadline() {
    let (old, new) = (tcp_endpoint(echo), named("new"));
    let bench = Bench::tcp(&[old]);
    let mut stream = bench.connect();
    let mut ask = move || {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0; 1])
    };
    ask().unwrap();
    bench.set(&[new], None);
    assert_eq!(read_all(bench.connect()).unwrap(), "new");
    ask().unwrap();
    // It comes back and leaves again: the deadline counts from then on.
    bench.set(&[new], Some(Duration::ZERO));
    bench.set(&[old, new], None);
    ask().unwrap();
    bench.set(&[new], Some(Duration::from_millis(100)));
    until("the deadline cuts the connection", || ask().is_err());
    until("the connection is over", || bench.totals().active == 0);
}

#[test]
fn closing_a_door_leaves_those_inside_alone() {
    let mut bench = Bench::tcp(&[tcp_endpoint(echo)]);
    let mut stream = bench.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    bench.serving = None;
    until("the door is closed", || {
        TcpStream::connect(bench.at).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    stream.write_all(b"y").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    listen(Protocol::Tcp, bench.at).unwrap();
}

#[test]
fn endpoints_learn_who_is_connecting() {
    let endpoint = tcp_endpoint(|mut stream| {
        let mut header = [0; 28];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(&header).unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    bench.port.set_options(PortOptions {
        proxy_protocol: true,
        drain: None,
    });
    let mut stream = bench.connect();
    let client = stream.local_addr().unwrap();
    let mut header = [0; 28];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header.to_vec(), proxy_protocol::header(client, bench.at));
}

/// Many clients against endpoints that come, go, answer, refuse and reset: nothing is lost, mixed up or leaked.
#[test]
fn a_crowd_with_changing_endpoints() {
    let endpoints: Vec<SocketAddr> = (0..4).map(|_| tcp_endpoint(echo)).collect();
    let bench = Bench::tcp(&endpoints);
    let (going, served) = (AtomicBool::new(true), AtomicUsize::new(0));
    thread::scope(|scope| {
        for seed in 0..8u64 {
            let (bench, going, served) = (&bench, &going, &served);
            scope.spawn(move || {
                let mut round = 0;
                while going.load(Ordering::Relaxed) {
                    round += 1;
                    let message = noise(1 + (round * 7919 % 200_000) as usize, seed * 1_000_000 + round);
                    let mut stream = bench.connect();
                    let mut sending = stream.try_clone().unwrap();
                    let copy = message.clone();
                    let sender = thread::spawn(move || {
                        sending.write_all(&copy).unwrap();
                        sending.shutdown(Shutdown::Write).unwrap();
                    });
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    sender.join().unwrap();
                    assert!(got == message, "client {seed}, round {round}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut change = 0;
        while served.load(Ordering::Relaxed) < 400 {
            change += 1;
            let some: Vec<_> = (0..4)
                .filter(|n| (change >> n) & 1 == 1 || *n == change % 4)
                .collect();
            let mut set: Vec<_> = some.iter().map(|n| endpoints[*n]).collect();
            if change % 3 == 0 {
                set.push(refusing());
            }
            bench.set(&set, None);
            thread::sleep(Duration::from_millis(1));
        }
        going.store(false, Ordering::Relaxed);
    });
    until("all connections are over", || {
        bench.totals().active == 0 && bench.relay.connections() == 0
    });
    let totals = bench.totals();
    assert_eq!(
        (totals.connections, totals.failed),
        (served.load(Ordering::Relaxed) as u64, 0)
    );
    assert_eq!(totals.bytes_received, totals.bytes_sent);
}

/// An endpoint that sends each datagram back, with the sender's port in front.
fn udp_endpoint() -> SocketAddr {
    let socket = UdpSocket::bind(any()).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer[2..]) {
            buffer[..2].copy_from_slice(&address.port().to_be_bytes());
            let _ = socket.send_to(&buffer[..len + 2], from);
        }
    });
    address
}

fn udp_client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(any()).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a datagram and returns the port of the endpoint that answered, having checked the rest.
fn ask(socket: &UdpSocket, data: &[u8]) -> u16 {
    socket.send(data).unwrap();
    let mut buffer = vec![0; 65536];
    let len = socket.recv(&mut buffer).unwrap();
    assert!(&buffer[2..len] == data, "the answer differs");
    u16::from_be_bytes([buffer[0], buffer[1]])
}

#[test]
fn udp_echo_of_any_size() {
    let bench = Bench::udp(settings(), &[udp_endpoint()]);
    let client = udp_client(bench.at);
    let sizes = [0, 1, 1472, 4096, 4097, 20_000, 65_000];
    for size in sizes {
        ask(&client, &noise(size, 3));
    }
    let (totals, sum) = (bench.totals(), sizes.iter().sum::<usize>() as u64);
    assert_eq!(
        (totals.connections, totals.active, totals.bytes_received),
        (1, 1, sum)
    );
    until("the answers are counted", || {
        bench.totals().bytes_sent == sum + 2 * sizes.len() as u64
    });
}

#[test]
fn a_udp_association_stays_with_its_endpoint_and_ends_when_idle() {
    let brief = Settings {
        udp_idle: Duration::from_millis(250),
        ..settings()
    };
    let bench = Bench::udp(brief, &[udp_endpoint(), udp_endpoint()]);
    let (one, other) = (udp_client(bench.at), udp_client(bench.at));
    let first = ask(&one, b"x");
    assert_ne!(ask(&other, b"x"), first);
    assert_eq!(ask(&one, b"x"), first);
    assert_eq!(bench.relay.sessions(), 2);
    until("idle associations end", || bench.relay.sessions() == 0);
    assert_eq!((bench.totals().connections, bench.totals().active), (2, 0));
    ask(&one, b"x");
    assert_eq!(bench.totals().connections, 3);
}

#[test]
fn the_oldest_udp_association_makes_room() {
    let few = Settings {
        max_sessions: 8,
        ..settings()
    };
    let bench = Bench::udp(few, &[udp_endpoint()]);
    let clients: Vec<_> = (0..40).map(|_| udp_client(bench.at)).collect();
    for client in &clients {
        ask(client, b"x");
        // The first client is always in use, so it is never the oldest.
        ask(&clients[0], b"y");
    }
    until("room was made", || bench.relay.sessions() <= 8);
    assert_eq!(bench.totals().connections, 40);
}

#[test]
fn udp_clients_leave_a_removed_or_closed_endpoint_at_once() {
    let (old, new) = (udp_endpoint(), udp_endpoint());
    let bench = Bench::udp(settings(), &[old]);
    let client = udp_client(bench.at);
    assert_eq!(ask(&client, b"x"), old.port());
    bench.set(&[new], None);
    assert_eq!(ask(&client, b"x"), new.port());
    // Without any endpoint, the association that there is goes on.
    bench.set(&[], None);
    assert_eq!(ask(&client, b"x"), new.port());
    // An endpoint where nobody listens any more is left as soon as it says so.
    let closed = refusing();
    bench.set(&[closed], None);
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    client.send(b"x").unwrap();
    bench.set(&[closed, new], None);
    until("the client got to the other endpoint", || {
        client.send(b"x").unwrap();
        client.recv(&mut [0; 16]).is_ok()
    });
}

#[test]
fn udp_answers_come_from_the_address_that_was_asked() {
    let listening = listen(Protocol::Udp, "0.0.0.0:0".parse().unwrap()).unwrap();
    let bench = Bench::new(settings(), listening, &[udp_endpoint()], None);
    for ip in ["127.0.0.1", "127.0.0.2", "127.77.0.1"] {
        // A connected socket takes answers from the address it is connected to only.
        let client = udp_client(SocketAddr::new(ip.parse::<IpAddr>().unwrap(), bench.at.port()));
        ask(&client, b"x");
    }
}

#[test]
fn a_closed_udp_door_frees_its_port() {
    let mut bench = Bench::udp(settings(), &[udp_endpoint()]);
    ask(&udp_client(bench.at), b"x");
    bench.serving = None;
    until("the port is free", || listen(Protocol::Udp, bench.at).is_ok());
}

#[test]
fn held_ports_refuse_and_filtered_ones_are_silent() {
    let held = hold(Protocol::Tcp, any()).unwrap();
    let at = socket2::SockRef::from(&held)
        .local_addr()
        .unwrap()
        .as_socket()
        .unwrap();
    assert_eq!(
        TcpStream::connect(at).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(listen(Protocol::Tcp, at).is_err(), "the port is taken");
    let listening = adopt(held, at).unwrap();
    assert_eq!(listening.local_addr().unwrap(), at);
    TcpStream::connect(at).unwrap();

    let held = hold(Protocol::Udp, any()).unwrap();
    let at = socket2::SockRef::from(&held)
        .local_addr()
        .unwrap()
        .as_socket()
        .unwrap();
    let client = udp_client(at);
    client.send(b"x").unwrap();
    assert_eq!(
        client.recv(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(listen(Protocol::Udp, at).is_err(), "the port is taken");

    let listening = listen(Protocol::Tcp, any()).unwrap();
    let at = listening.local_addr().unwrap();
    set_filter(listening.as_fd(), Some(&[socket2::SockFilter::new(6, 0, 0, 0)])).unwrap();
    let error = TcpStream::connect_timeout(&at, Duration::from_millis(200)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    set_filter(listening.as_fd(), None).unwrap();
    set_filter(listening.as_fd(), None).unwrap();
    TcpStream::connect_timeout(&at, PATIENCE).unwrap();
}
