//! The nftables backend against the real kernel, each test in a network namespace of its own.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod listing;
mod packets;
mod random;
mod repair;
mod world;

use std::sync::Arc;

use ferry_backends::nftables::{Nftables, Options};
use ferry_backends::{Alarm, Backend};
use ferry_lab::netns::Namespace;
use ferry_model::{Family, Planner};

fn silent() -> Alarm {
    Arc::new(|| ())
}

fn backend(namespace: &Namespace) -> Nftables {
    namespace
        .run(|| Nftables::open(Options::default(), silent()).unwrap())
        .unwrap()
}

/// Applies both families; tells how many things changed.
fn apply(backend: &mut Nftables, planner: &Planner) -> usize {
    let changes = Family::BOTH.map(|family| {
        let applied = backend.apply(planner.plan(), family).unwrap();
        assert_eq!(applied.warnings, Vec::<String>::new());
        assert_eq!(applied.repaired, []);
        applied.added + applied.removed
    });
    changes.iter().sum()
}

fn rich() -> Planner {
    let mut planner = world::planner(world::options());
    planner.update(world::rich());
    planner
}

#[test]
fn a_restart_changes_nothing() {
    let namespace = Namespace::new("restart").unwrap();
    let planner = rich();
    assert!(apply(&mut backend(&namespace), &planner) > 0);
    let before = namespace.sh("nft -a list ruleset").unwrap();
    assert_eq!(apply(&mut backend(&namespace), &planner), 0);
    assert_eq!(
        namespace.sh("nft -a list ruleset").unwrap(),
        before,
        "not even handles changed"
    );
}

/// One that takes several transactions is whole after the last.
#[test]
fn a_large_table_is_whole() {
    let namespace = Namespace::new("large").unwrap();
    let mut planner = rich();
    let pods: Vec<String> = (0..11_000u32)
        .map(|n| std::net::Ipv4Addr::from(0x0af4_0000 + n).to_string())
        .collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    planner.update([world::endpoints("plain", &pods)]);
    assert!(apply(&mut backend(&namespace), &planner) > 11_000);
    assert_eq!(apply(&mut backend(&namespace), &planner), 0);
    let chain = namespace.sh("nft list chain ip kube-proxy lb-11000").unwrap();
    assert!(chain.contains("numgen random mod 11000"), "{chain}");
}

/// Whatever happened before, the kernel has what a fresh start would write: it finds nothing to change.
#[test]
fn random_changes_leave_what_a_fresh_start_would_write() {
    let namespace = Namespace::new("random").unwrap();
    for seed in 0..5 {
        let mut planner = world::planner(world::options());
        let mut changes = random::Changes::new(seed);
        let mut backend = backend(&namespace);
        for step in 0..40 {
            planner.update(changes.step());
            apply(&mut backend, &planner);
            assert_eq!(
                apply(&mut self::backend(&namespace), &planner),
                0,
                "seed {seed} step {step}"
            );
        }
    }
}

#[test]
fn cleanup_leaves_nothing() {
    let namespace = Namespace::new("cleanup").unwrap();
    let mut backend = backend(&namespace);
    apply(&mut backend, &rich());
    namespace.sh("nft add table ip other").unwrap();
    backend.cleanup().unwrap();
    backend.cleanup().unwrap();
    assert_eq!(namespace.sh("nft list ruleset").unwrap(), "table ip other {\n}\n");
    assert!(apply(&mut backend, &rich()) > 0, "it can start again");
}

#[test]
fn counters_count_by_port_and_endpoint() {
    let namespace = Namespace::new("counters").unwrap();
    namespace
        .ip("addr add 10.244.1.2/32 dev lo\nroute add 10.96.0.0/16 dev lo")
        .unwrap();
    let mut planner = world::planner(world::options());
    planner.update([
        world::set(world::service("web", "10.96.0.1")),
        world::endpoints("web", &["10.244.1.2"]),
    ]);
    let options = Options {
        counters: true,
        ..Options::default()
    };
    let mut backend = namespace
        .run(|| Nftables::open(options, silent()).unwrap())
        .unwrap();
    apply(&mut backend, &planner);
    namespace
        .run(|| {
            let listener = std::net::TcpListener::bind("10.244.1.2:8080").unwrap();
            for _ in 0..3 {
                let client = std::net::TcpStream::connect("10.96.0.1:80").unwrap();
                assert_eq!(client.peer_addr().unwrap().to_string(), "10.96.0.1:80");
                listener.accept().unwrap();
            }
        })
        .unwrap();
    let traffic = backend.traffic().unwrap();
    let counted: Vec<_> = traffic
        .iter()
        .map(|t| (t.port.to_string(), t.endpoint, t.connections))
        .collect();
    let port = || "ns/web:http".to_owned();
    assert_eq!(
        counted,
        [
            (port(), None, 3),
            (port(), Some("10.244.1.2:8080".parse().unwrap()), 3)
        ]
    );
}
