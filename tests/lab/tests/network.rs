//! The lab's network does what it says, seen with rules written by hand.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::IpAddr;

use ferry_lab::netns::{Namespace, Network, Probe, Proto};

fn outcomes(network: &Network, probes: &[Probe]) -> Vec<String> {
    network
        .probe(probes)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn to(from: &str, to: &str, port: u16, proto: Proto) -> Probe {
    Probe::new(from, to.parse::<IpAddr>().unwrap(), port, proto)
}

#[test]
fn everyone_reaches_the_pods_and_the_pods_see_who_asked() {
    let network = Network::up().unwrap();
    let seen = outcomes(
        &network,
        &[
            to("pod1", "10.244.1.3", 8080, Proto::Tcp),
            to("pod2", "fd00:10:244:2::3", 9090, Proto::Udp),
            to("client", "10.244.1.2", 8081, Proto::Udp).times(5),
            to("client2", "198.51.100.10", 9090, Proto::Tcp),
            to("outsider", "192.0.2.10", 9090, Proto::Tcp),
            to("outsider", "2001:db8:2::10", 9090, Proto::Tcp),
            to("node", "10.244.2.2", 8080, Proto::Tcp),
            to("node", "fd00:10:244:1::2", 8080, Proto::Tcp),
            to("remote", "10.244.1.2", 8080, Proto::Tcp),
            to("client", "192.0.2.10", 4444, Proto::Udp),
            to("client", "10.96.0.1", 80, Proto::Tcp),
        ],
    );
    assert_eq!(
        seen,
        [
            "pod1 -> 10.244.1.3:8080/tcp: ok by pod2:8080 as pod1",
            "pod2 -> fd00:10:244:2::3:9090/udp: ok by rpod2:9090 as pod2",
            "client -> 10.244.1.2:8081/udp: ok by pod1:8081 as client",
            "client2 -> 198.51.100.10:9090/tcp: refused",
            "outsider -> 192.0.2.10:9090/tcp: ok by node:9090 as outsider",
            "outsider -> 2001:db8:2::10:9090/tcp: ok by node:9090 as outsider",
            "node -> 10.244.2.2:8080/tcp: ok by rpod1:8080 as node",
            "node -> fd00:10:244:1::2:8080/tcp: ok by pod1:8080 as podside",
            "remote -> 10.244.1.2:8080/tcp: ok by pod1:8080 as remote",
            "client -> 192.0.2.10:4444/udp: refused",
            "client -> 10.96.0.1:80/tcp: timeout",
        ]
    );
}

#[test]
fn translated_rejected_and_dropped_packets_are_told_apart() {
    let network = Network::up().unwrap();
    let rules = "table ip t {
        chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.2.2:8080; }
        chain post { type nat hook postrouting priority 100; ip daddr 10.244.2.2 masquerade; }
        chain output { type filter hook output priority 0; ip daddr 10.96.0.3 drop; ip daddr 10.96.0.4 reject; }
        chain forward { type filter hook forward priority 0; ip daddr 10.96.0.3 drop;
            ip daddr 10.96.0.4 reject with icmp host-prohibited; ip daddr 10.96.0.5 meta l4proto tcp reject with tcp reset; }
    }";
    network.node().sh(&format!("nft '{rules}'")).unwrap();
    let seen = outcomes(
        &network,
        &[
            to("client", "10.96.0.1", 80, Proto::Tcp).times(3),
            to("client", "10.96.0.3", 80, Proto::Tcp),
            to("client", "10.96.0.4", 80, Proto::Tcp),
            to("client", "10.96.0.5", 80, Proto::Tcp),
            to("node", "10.96.0.3", 80, Proto::Udp),
            to("node", "10.96.0.4", 80, Proto::Udp),
        ],
    );
    assert_eq!(
        seen,
        [
            "client -> 10.96.0.1:80/tcp: ok by rpod1:8080 as node",
            "client -> 10.96.0.3:80/tcp: timeout",
            "client -> 10.96.0.4:80/tcp: unreachable",
            "client -> 10.96.0.5:80/tcp: refused",
            "node -> 10.96.0.3:80/udp: timeout",
            "node -> 10.96.0.4:80/udp: timeout",
        ]
    );
}

#[test]
fn a_namespace_goes_with_its_value_also_after_a_panic() {
    let namespace = Namespace::new("gone").unwrap();
    let path = namespace.path();
    assert!(path.exists());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        namespace.run(|| panic!("inside {}", namespace.name())).unwrap();
    }));
    assert!(caught.is_err());
    assert!(!path.exists());
}

#[test]
fn a_thread_inside_sees_only_its_own_interfaces() {
    let namespace = Namespace::new("alone").unwrap();
    let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let inside = namespace.run(devices).unwrap();
    assert!(inside.contains("lo:") && !inside.contains("eth0"), "{inside}");
    assert!(namespace.sh("ip link show lo").unwrap().contains("UP"));
    let error = namespace.sh("echo why >&2; exit 3").unwrap_err().to_string();
    assert!(error.contains("why") && error.contains('3'), "{error}");
}
