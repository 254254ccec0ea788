//! Clients that want too much or nothing at all, and what they cannot spoil.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::house::{House, load_balancer, service, slice};

/// Connects from an address of our choice and sends half a request.
fn half_a_request(to: SocketAddr, from: IpAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
    stream
}

#[test]
fn idle_clients_hide_neither_health_nor_metrics_nor_status() {
    let house = House::build("daemon-idle");
    house
        .api
        .apply([
            load_balancer("lb", "10.96.0.20", 30999),
            slice("lb", "10.244.1.2"),
        ])
        .unwrap();
    let mut daemon = house.daemon(&["--nodeport-addresses=0.0.0.0/0"]);
    daemon.wait_synced();
    let ports = [10256, 10249, 30999];
    house.wait("the health-check port", || {
        house.get(("127.0.0.1", 30999), "/").is_some()
    });
    house.wait("the status socket", || house.status().is_some());
    let _idle: Vec<TcpStream> = house
        .node
        .run(|| {
            let clients = ports
                .into_iter()
                .flat_map(|port| (0..300_u16).map(move |i| (port, i)));
            let open = |(port, i): (u16, u16)| {
                half_a_request(([127, 0, 0, 1], port).into(), [127, 0, 2, (i % 10) as u8].into())
            };
            clients.map(open).collect()
        })
        .unwrap();
    let _silent: Vec<UnixStream> = (0..40)
        .map(|_| UnixStream::connect(house.socket()).unwrap())
        .collect();
    for port in ports {
        let start = Instant::now();
        let path = if port == 10249 { "/metrics" } else { "/healthz" };
        assert_eq!(house.get(("127.0.0.1", port), path).unwrap().0, 200, "{port}");
        let took = start.elapsed();
        println!("port {port}: {took:?}");
        assert!(took < Duration::from_secs(2), "{port}: {took:?}");
    }
    let start = Instant::now();
    assert!(house.status().unwrap()["rows"].is_array());
    let took = start.elapsed();
    println!("status: {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_file_where_the_status_socket_should_be_is_left_alone_and_told_once() {
    let house = House::build("daemon-socket");
    std::fs::write(house.socket(), "precious").unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let complaints = || house.log().matches("No status socket yet").count();
    house.wait("the complaint", || complaints() == 1);
    let before = house.log().matches("tatus socket").count();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        house.log().matches("tatus socket").count(),
        before,
        "{}",
        house.log()
    );
    assert_eq!(std::fs::read_to_string(house.socket()).unwrap(), "precious");
    std::fs::remove_file(house.socket()).unwrap();
    house.wait("the socket", || house.status().is_some());
    let mode = std::fs::metadata(house.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn with_few_files_it_serves_and_answers() {
    let house = House::build("daemon-files");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let program = env!("CARGO_BIN_EXE_ferry");
    let mut daemon = house.daemon_as(&["prlimit", "--nofile=64:64", program], "nftables", &[]);
    daemon.wait_synced();
    let _idle: Vec<TcpStream> = house
        .node
        .run(|| {
            let open = |i: u8| half_a_request(([127, 0, 0, 1], 10256).into(), [127, 0, 3, i].into());
            (0..100).map(open).collect()
        })
        .unwrap();
    let start = Instant::now();
    assert_eq!(house.healthz(), Some(200));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    house.api.apply([slice("web", "10.244.1.77")]).unwrap();
    house.wait("a change", || house.table_holds("10.244.1.77"));
    assert_eq!(daemon.terminate(), Some(0));
}
