//! Clients that want too much or nothing at all, and machines that give too little: what neither can spoil.

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

#[test]
fn a_full_run_directory_and_a_read_only_root_do_not_keep_it_from_serving() {
    let house = House::build("daemon-readonly");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let confined = "mount -t tmpfs -o size=4k none /run && { cat /dev/zero >/run/full 2>/dev/null; \
                    mount -o remount,ro,bind / && ! touch /writable 2>/dev/null && exec \"$0\" \"$@\"; }";
    let ferry = env!("CARGO_BIN_EXE_ferry");
    for mode in ["nftables", "iptables"] {
        let prefix = ["unshare", "--mount", "sh", "-c", confined, ferry];
        let mut daemon = house.daemon_as(&prefix, mode, &[]);
        daemon.wait_synced();
        house.wait("readiness", || house.healthz() == Some(200));
        assert_eq!(daemon.terminate(), Some(0), "{mode}");
    }
}

/// How many messages the kernel could not give to the netlink sockets of a process.
fn netlink_drops(house: &House, process: u32) -> u64 {
    let inodes = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let sockets: Vec<String> = inodes
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let table = house.node.sh("cat /proc/net/netlink").unwrap();
    let drops = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let ours = sockets
            .iter()
            .any(|inode| Some(inode.as_str()) == columns.last().copied());
        if ours {
            columns.get(8)?.parse::<u64>().ok()
        } else {
            None
        }
    });
    drops.sum()
}

#[test]
fn notifications_that_the_kernel_drops_are_made_up_for() {
    let house = House::build("daemon-drops");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    daemon.signal(rustix::process::Signal::STOP);
    house
        .node
        .sh("nft add table ip other; nft add set ip other s '{ type ipv4_addr; }'")
        .unwrap();
    let elements: Vec<String> = (0..100_000_u32)
        .map(|i| {
            let [_, a, b, c] = i.to_be_bytes();
            format!("10.{a}.{b}.{c}")
        })
        .collect();
    let script = house.path("flood.nft");
    let flood = format!(
        "add element ip other s {{ {} }}\nflush set ip other s\n",
        elements.join(",")
    );
    std::fs::write(&script, flood).unwrap();
    // Each round tells of every element twice.
    house.wait("the first drop", || {
        house.node.sh(&format!("nft -f {}", script.display())).unwrap();
        netlink_drops(&house, daemon.id()) > 0
    });
    house.node.sh("nft delete table ip kube-proxy").unwrap();
    daemon.signal(rustix::process::Signal::CONT);
    house.wait("the repair", || house.table_holds("10.96.0.10 . tcp . 80"));
    assert_eq!(daemon.terminate(), Some(0));
}
