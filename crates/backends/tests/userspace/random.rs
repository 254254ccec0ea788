//! Random plans one after the other: at every step, each door does what the plan means for its client.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use ferry_backends::Backend;
use ferry_backends::userspace::Ingress;
use ferry_lab::netns::Namespace;
use ferry_model::Protocol::{Tcp, Udp};
use ferry_model::{Action, FrontendKind, Origin, Packet, Protocol, TrafficPolicy, trace};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::fixture::*;

const STEPS: usize = 40;
const SERVICES: u8 = 4;

fn random_service(random: &mut StdRng, number: u8, endpoints: &[SocketAddr]) -> Wanted {
    let ports: &[(&str, Protocol, u16)] = match random.random_range(0..4) {
        0 => &[("a", Tcp, 80)],
        1 => &[("a", Tcp, 80), ("b", Udp, 80)],
        2 => &[("b", Udp, 80)],
        _ => &[("renamed", Tcp, 80), ("other", Tcp, 81)],
    };
    let mut wanted = service(&format!("s{number}"), &format!("10.96.0.{number}"), ports);
    for endpoint in endpoints {
        let state = match random.random_range(0..6) {
            0 => State::Ready,
            1 => State::LocalReady,
            2 => State::Terminating,
            3 => State::Unready,
            _ => continue,
        };
        wanted.endpoints.push((*endpoint, state));
    }
    let policy = |local: bool| {
        if local {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    };
    wanted.service.internal_policy = policy(random.random_bool(0.3));
    wanted.service.external_policy = policy(random.random_bool(0.3));
    wanted.service.affinity = random.random_bool(0.3).then_some(Duration::from_secs(60));
    if random.random_bool(0.5) {
        wanted.service.external_ips = vec![ip(&format!("203.0.113.{number}"))];
    }
    if random.random_bool(0.5) {
        let first = wanted.service.ports.len();
        for (at, port) in wanted.service.ports.iter_mut().enumerate() {
            port.node_port = Some(30000 + u16::from(number) * 10 + (at + first) as u16);
        }
    }
    wanted
}

/// What really happens to the packet, in the words of the plan.
fn observe(packet: &Packet) -> Result<String, &'static str> {
    let to = SocketAddr::new(packet.destination, packet.port);
    let result = match packet.protocol {
        Tcp => tcp_within(to, Duration::from_millis(700)),
        _ => udp_from(
            &std::net::UdpSocket::bind("0.0.0.0:0").unwrap(),
            to,
            Duration::from_millis(700),
        ),
    };
    result.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => "rejected",
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "dropped",
        other => panic!("{packet:?}: {other}"),
    })
}

fn agree(world: &World, packet: &Packet) {
    let outcome = trace(world.planner.plan(), packet);
    let seen = observe(packet);
    let targets = &outcome.targets;
    let agrees = match (outcome.action, &seen) {
        (Action::Forward { .. }, Ok(name)) => {
            targets.iter().any(|target| target.address.to_string() == *name)
        }
        (Action::Drop, Err("dropped")) | (Action::Reject | Action::NotOurs, Err("rejected")) => true,
        _ => false,
    };
    assert!(
        agrees,
        "{packet:?}\nplan: {outcome:?}\nseen: {seen:?}\n{:#?}",
        world.backend.notes()
    );
}

fn converges(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let node = planner(&["127.0.0.1"], "10.244.0.0/16");
    let mut world = World::new(Ingress::Loopback, node);
    let endpoints: Vec<SocketAddr> = (1..=3).map(|n| endpoint(&format!("127.0.1.{n}:8080"))).collect();
    for _ in 0..STEPS {
        for _ in 0..random.random_range(1..3) {
            let number = random.random_range(1..=SERVICES);
            if random.random_bool(0.2) {
                world.delete(&format!("s{number}"))
            } else {
                world.set(&random_service(&mut random, number, &endpoints))
            }
        }
        world.apply();
        let mut packets = Vec::new();
        for port in world.planner.plan().ports(ferry_model::Family::V4) {
            let packet = |destination, number| Packet {
                source: ip("127.0.0.1"),
                origin: Origin::Node,
                destination,
                port: number,
                protocol: port.protocol(),
            };
            for kind in [FrontendKind::ClusterIp, FrontendKind::ExternalIp] {
                packets.extend(port.addresses(kind).map(|ip| packet(ip, port.port)));
            }
            packets.extend(port.node_port().map(|number| packet(ip("127.0.0.1"), number)));
        }
        std::thread::scope(|scope| {
            for packet in &packets {
                let world = &world;
                scope.spawn(move || agree(world, packet));
            }
        });
    }
}

#[test]
fn random_plans_are_followed() {
    for seed in [1, 2] {
        let namespace = Namespace::new("random").unwrap();
        namespace.run(|| converges(seed)).unwrap();
    }
}
