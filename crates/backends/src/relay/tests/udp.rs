//! UDP associations, and sockets that refuse or ignore.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use ferry_model::Protocol;

use super::*;

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
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
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
    TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
}
