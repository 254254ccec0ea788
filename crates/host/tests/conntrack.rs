//! The conntrack room against the real kernel, each test in a namespace of its own. `conntrack` makes the flows.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;

use ferry_host::conntrack::{Conntrack, Family, Filter};
use ferry_lab::netns::Namespace;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// A namespace with flows: `(client, destination, responder)` in UDP, and one of each in TCP too.
fn namespace_with(flows: &[(&str, &str, &str)]) -> Namespace {
    let namespace = Namespace::new("ct").unwrap();
    let mut lines = String::new();
    for (client, destination, responder) in flows {
        let [client, destination, responder]: [SocketAddr; 3] =
            [client, destination, responder].map(|text| text.parse().unwrap());
        for (protocol, state) in [("udp", ""), ("tcp", "--state ESTABLISHED")] {
            lines.push_str(&format!(
                "-I -p {protocol} {state} -t 600 -s {} -d {} --sport {} --dport {} -r {} -q {} --reply-port-src {} --reply-port-dst {}\n",
                client.ip(), destination.ip(), client.port(), destination.port(),
                responder.ip(), client.ip(), responder.port(), client.port(),
            ));
        }
    }
    let mut child = namespace
        .command("sh")
        .args([
            "-c",
            "while read -r line; do conntrack $line >/dev/null 2>&1 || exit 1; done",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    namespace
}

fn flows() -> Namespace {
    namespace_with(&[
        ("10.9.0.1:1001", "10.96.0.1:53", "10.244.1.1:5353"),
        ("10.9.0.1:1002", "10.96.0.1:53", "10.244.1.2:5353"),
        ("10.9.0.1:1003", "10.96.0.1:54", "10.244.1.1:5353"),
        ("10.9.0.1:1004", "10.96.0.2:53", "10.96.0.2:53"),
        ("10.9.0.1:1005", "192.0.2.1:30053", "10.244.1.1:5353"),
        ("[fd00:9::1]:1001", "[fd00:96::1]:53", "[fd00:244::1]:5353"),
        ("[fd00:9::1]:1002", "[fd00:96::1]:53", "[fd00:244::2]:5353"),
    ])
}

#[test]
fn filters_pick_what_they_say() {
    let namespace = flows();
    namespace
        .run(|| {
            let mut conntrack = Conntrack::open().unwrap();
            let vip: SocketAddr = "10.96.0.1:53".parse().unwrap();
            let vip6: SocketAddr = "[fd00:96::1]:53".parse().unwrap();
            let endpoint: SocketAddr = "10.244.1.1:5353".parse().unwrap();
            let mut count = |filter: Filter| conntrack.count(&filter).unwrap();
            assert_eq!(count(Filter::all(Family::Ip, UDP)), 5);
            assert_eq!(count(Filter::all(Family::Ip6, UDP)), 2);
            assert_eq!(count(Filter::all(Family::Ip, TCP)), 5);
            assert_eq!(count(Filter::to(UDP, vip)), 2);
            assert_eq!(count(Filter::to(UDP, vip).answered_by(endpoint)), 1);
            assert_eq!(count(Filter::to_port(Family::Ip, UDP, 30053)), 1);
            assert_eq!(count(Filter::to(UDP, vip6)), 2);
        })
        .unwrap();
}

#[test]
fn deletes_only_what_matches_and_counts_it() {
    let namespace = flows();
    namespace
        .run(|| {
            let mut conntrack = Conntrack::open().unwrap();
            let vip: SocketAddr = "10.96.0.1:53".parse().unwrap();
            let endpoint: SocketAddr = "10.244.1.1:5353".parse().unwrap();
            assert_eq!(
                conntrack
                    .delete(&Filter::to(UDP, vip).answered_by(endpoint))
                    .unwrap(),
                1
            );
            assert_eq!(
                conntrack
                    .delete(&Filter::to(UDP, vip).answered_by(endpoint))
                    .unwrap(),
                0
            );
            assert_eq!(conntrack.count(&Filter::all(Family::Ip, UDP)).unwrap(), 4);
            assert_eq!(conntrack.delete(&Filter::to(UDP, vip)).unwrap(), 1);
            assert_eq!(
                conntrack
                    .delete(&Filter::to_port(Family::Ip, UDP, 30053))
                    .unwrap(),
                1
            );
            assert_eq!(
                conntrack
                    .delete(&Filter::to(UDP, "[fd00:96::1]:53".parse().unwrap()))
                    .unwrap(),
                2
            );
            assert_eq!(
                conntrack.count(&Filter::all(Family::Ip, TCP)).unwrap(),
                5,
                "TCP flows stay"
            );
        })
        .unwrap();
}

#[test]
fn a_sweep_asks_about_each_flow() {
    let namespace = flows();
    namespace
        .run(|| {
            let mut conntrack = Conntrack::open().unwrap();
            let swept = conntrack
                .sweep(&Filter::all(Family::Ip, UDP), |flow| {
                    assert_eq!(flow.answered_to, flow.client);
                    flow.responder == flow.destination
                })
                .unwrap();
            assert_eq!((swept.seen, swept.deleted), (5, 1));
            assert_eq!(
                conntrack
                    .count(&Filter::to(UDP, "10.96.0.2:53".parse().unwrap()))
                    .unwrap(),
                0
            );
        })
        .unwrap();
}

/// Enough flows for several chunks, made without a process for each.
#[test]
fn many_flows_go_in_chunks() {
    let namespace = Namespace::new("ct").unwrap();
    namespace.sh("nft add table ip t; nft 'add chain ip t o { type filter hook output priority 0; }'; nft add rule ip t o ct state new accept").unwrap();
    namespace
        .run(|| {
            for _ in 0..2500 {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(b"x", "127.0.0.1:9").unwrap();
            }
            let mut conntrack = Conntrack::open().unwrap();
            let filter = Filter::to(UDP, "127.0.0.1:9".parse().unwrap());
            let seen = conntrack.count(&filter).unwrap();
            assert!(seen > 2100, "{seen}");
            assert_eq!(conntrack.delete(&filter).unwrap(), seen);
            assert_eq!(conntrack.count(&filter).unwrap(), 0);
        })
        .unwrap();
}
