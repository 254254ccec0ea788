//! Rules that lead traffic to the relay, between hosts.

use std::collections::BTreeSet;
use std::time::Duration;

use ferry_backends::Backend;
use ferry_backends::userspace::{Ingress, Options, Userspace};
use ferry_lab::netns::{Network, Outcome, Probe, Proto};
use ferry_model::Protocol::{Tcp, Udp};
use ferry_model::{Family, TrafficPolicy};

use crate::fixture::*;

const NODE_ADDRESSES: [&str; 8] = [
    "127.0.0.1",
    "::1",
    "192.0.2.10",
    "2001:db8:2::10",
    "198.51.100.10",
    "2001:db8:51::10",
    "10.244.1.1",
    "fd00:10:244:1::1",
];

struct Lab {
    network: Network,
    world: World,
}

impl Lab {
    fn up() -> Lab {
        Lab::with(Options::default())
    }

    fn with(options: Options) -> Lab {
        let network = Network::up().unwrap();
        let planner = planner(&NODE_ADDRESSES, "10.244.0.0/16");
        let world = World {
            backend: start(&network, options),
            planner,
        };
        Lab { network, world }
    }

    fn apply(&mut self) -> Vec<String> {
        let (node, world) = (self.network.node(), &mut self.world);
        node.run(|| {
            for family in Family::BOTH {
                let applied = world.backend.apply(world.planner.plan(), family).unwrap();
                if !applied.warnings.is_empty() {
                    return applied.warnings;
                }
            }
            Vec::new()
        })
        .unwrap()
    }

    /// What hosts get when they ask there: the kinds of answers, who gave them and whom those saw.
    fn ask(&self, from: &str, to: &str, port: u16, proto: Proto) -> String {
        let probe = Probe::new(from, ip(to), port, proto).times(6);
        let outcome: &Outcome = &self.network.probe(&[probe]).unwrap()[0];
        let text = outcome.to_string();
        text.split_once(": ").unwrap().1.to_owned()
    }

    /// Everybody reaches pod1, by the service's address and by its node port, over both protocols.
    fn assert_served(&self, address: &str, node: &str, node_port: u16) {
        for proto in [Proto::Tcp, Proto::Udp] {
            for (from, to, port) in [
                ("pod2", address, 80),
                ("node", address, 80),
                ("client", node, node_port),
            ] {
                let seen = self.ask(from, to, port, proto);
                let way = format!("{from} -> {to}:{port}/{proto}");
                assert_eq!(seen, "ok by pod1:8080 as podside", "{way}");
            }
        }
    }

    /// Ours, of both families.
    fn rules(&self) -> BTreeSet<String> {
        self.rules_of("iptables-save; ip6tables-save")
    }

    fn rules_of(&self, command: &str) -> BTreeSet<String> {
        let saved = self.network.node().sh(command).unwrap();
        let ours = saved
            .lines()
            .filter(|line| line.contains("KUBE-"))
            .map(str::to_owned);
        ours.collect()
    }
}

/// A backend on the node, led to by rules.
fn start(network: &Network, options: Options) -> Userspace {
    let options = Options {
        ingress: Ingress::Portals,
        ..options
    };
    network
        .node()
        .run(|| Userspace::open(options, silent()).unwrap())
        .unwrap()
}

/// The packet table of userspace mode: whatever the client, the endpoint sees the node.
#[test]
fn every_kind_of_frontend_from_every_kind_of_client() {
    let mut lab = Lab::up();
    let pods = [at("10.244.1.2:8080"), at("10.244.2.2:8080")];
    let ports = [("http", Tcp, 80), ("dns", Udp, 80)];
    let mut web = service("web", "10.96.0.1", &ports)
        .to(&pods)
        .node_port(30080)
        .with(|service| {
            service.external_ips = vec![ip("203.0.113.80")];
            service.load_balancer_ips = vec![ip("203.0.113.81")];
        });
    web.endpoints[0].1 = State::LocalReady;
    lab.world.set(&web);
    assert_eq!(lab.apply(), Vec::<String>::new());
    // A local endpoint sees the node by its side of the pods' network, a remote one by the other.
    let both = "ok by pod1:8080,rpod1:8080 as node,podside";
    for proto in [Proto::Tcp, Proto::Udp] {
        for from in ["pod1", "pod2", "node", "client"] {
            for (to, port) in [
                ("10.96.0.1", 80),
                ("203.0.113.80", 80),
                ("203.0.113.81", 80),
                ("192.0.2.10", 30080),
            ] {
                assert_eq!(
                    lab.ask(from, to, port, proto),
                    both,
                    "{from} -> {to}:{port}/{proto}"
                );
            }
        }
        assert_eq!(
            lab.ask("client", "203.0.113.80", 80, proto),
            both,
            "external IP, {proto}"
        );
        assert_eq!(
            lab.ask("node", "127.0.0.1", 30080, proto),
            both,
            "localhost, {proto}"
        );
        assert_eq!(
            lab.ask("client", "198.51.100.10", 30080, proto),
            both,
            "the other address, {proto}"
        );
    }
    // Nobody gets around the rules by the proxy port itself.
    let proxy = lab.world.door(Tcp, "node port 30080").unwrap().port();
    assert_eq!(lab.ask("client", "192.0.2.10", proxy, Proto::Tcp), "timeout");
    assert_eq!(lab.ask("node", "127.0.0.1", proxy, Proto::Tcp), "timeout");
    // Local policies: only pod1, except for clients of the node.
    let local = web.clone().with(|service| {
        service.internal_policy = TrafficPolicy::Local;
        service.external_policy = TrafficPolicy::Local;
    });
    lab.world.set(&local);
    lab.apply();
    let near = "ok by pod1:8080 as podside";
    for proto in [Proto::Tcp, Proto::Udp] {
        assert_eq!(lab.ask("pod2", "10.96.0.1", 80, proto), near);
        assert_eq!(lab.ask("client", "192.0.2.10", 30080, proto), near);
        assert_eq!(lab.ask("client", "203.0.113.81", 80, proto), near);
        assert_eq!(lab.ask("pod2", "203.0.113.81", 80, proto), both, "short circuit");
        assert_eq!(lab.ask("node", "192.0.2.10", 30080, proto), both, "short circuit");
    }
    // No endpoint here: silence. No endpoint anywhere: a refusal.
    lab.world.set(&local.clone().to(&pods[1..]));
    lab.apply();
    for proto in [Proto::Tcp, Proto::Udp] {
        assert_eq!(lab.ask("client", "192.0.2.10", 30080, proto), "timeout");
        assert_eq!(lab.ask("pod2", "10.96.0.1", 80, proto), "timeout");
    }
    lab.world.set(&local.to(&[]));
    lab.apply();
    for proto in [Proto::Tcp, Proto::Udp] {
        for (from, to, port) in [
            ("client", "192.0.2.10", 30080),
            ("pod2", "10.96.0.1", 80),
            ("client", "203.0.113.81", 80),
            ("node", "10.96.0.1", 80),
        ] {
            assert_eq!(
                lab.ask(from, to, port, proto),
                "refused",
                "{from} -> {to}:{port}/{proto}"
            );
        }
    }
}

#[test]
fn source_ranges_hold() {
    let mut lab = Lab::up();
    let web =
        service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 80)]).to(&[at("10.244.1.2:8080")]);
    lab.world.set(&web.node_port(30080).with(|service| {
        service.load_balancer_ips = vec![ip("10.97.0.81")];
        service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
    }));
    lab.apply();
    let ok = "ok by pod1:8080 as podside";
    assert_eq!(lab.ask("outsider", "10.97.0.81", 80, Proto::Tcp), ok);
    assert_eq!(lab.ask("outsider", "10.97.0.81", 80, Proto::Udp), ok);
    assert_eq!(lab.ask("client", "10.97.0.81", 80, Proto::Udp), "timeout");
    assert_eq!(lab.ask("client", "10.97.0.81", 80, Proto::Tcp), "timeout");
    assert_eq!(
        lab.ask("client", "192.0.2.10", 30080, Proto::Tcp),
        ok,
        "node ports are not restricted"
    );
}

#[test]
fn ipv6_has_rules_of_its_own() {
    let mut lab = Lab::up();
    let ports = [("http", Tcp, 80), ("dns", Udp, 80)];
    let six = service("six", "fd00:10:96::1", &ports)
        .to(&[at("[fd00:10:244:1::2]:8080")])
        .node_port(30086);
    lab.world.set(&six);
    assert_eq!(lab.apply(), Vec::<String>::new());
    lab.assert_served("fd00:10:96::1", "2001:db8:2::10", 30086);
}

#[test]
fn rules_are_repaired_kept_over_a_restart_and_removed_for_good() {
    let mut lab = Lab::up();
    let web = service("web", "10.96.0.1", &[("http", Tcp, 80)])
        .to(&[at("10.244.1.2:8080")])
        .node_port(30080);
    lab.world.set(
        &web.clone()
            .with(|service| service.external_ips = vec![ip("203.0.113.80")]),
    );
    lab.apply();
    let before = lab.rules();
    assert!(!before.is_empty());
    // Nothing changes: nothing is written.
    assert_eq!(lab.apply(), Vec::<String>::new());
    assert_eq!(lab.rules(), before);
    // Somebody flushes the tables; a backend that starts anew finds out and writes everything again, once.
    lab.network
        .node()
        .sh("iptables -t nat -F; iptables -t nat -D KUBE-PORTALS-HOST 1 || true")
        .unwrap();
    drop(lab.world.backend);
    lab.world.backend = start(&lab.network, Options::default());
    lab.apply();
    assert_eq!(
        lab.ask("pod2", "10.96.0.1", 80, Proto::Tcp),
        "ok by pod1:8080 as podside"
    );
    let ports = |rules: &BTreeSet<String>| rules.len();
    assert_eq!(ports(&lab.rules()), ports(&before));
    // Removing a service removes its rules and nothing else.
    lab.world
        .set(&service("other", "10.96.0.2", &[("", Udp, 53)]).to(&[at("10.244.1.2:8080")]));
    lab.world.delete("web");
    lab.apply();
    assert!(!lab.rules().iter().any(|rule| rule.contains("ns/web")));
    assert_eq!(
        lab.ask("pod2", "10.96.0.2", 53, Proto::Udp),
        "ok by pod1:8080 as podside"
    );
    let (node, backend) = (lab.network.node(), &mut lab.world.backend);
    node.run(|| backend.cleanup().unwrap()).unwrap();
    assert_eq!(lab.rules(), BTreeSet::new());
}

/// A running backend looks at its rules when the time has come, repairs them and says so.
#[test]
fn rules_are_repaired_while_the_backend_runs() {
    let mut lab = Lab::with(Options {
        check: Duration::from_millis(1),
        ..Options::default()
    });
    let web = service("web", "10.96.0.1", &[("http", Tcp, 80)]).to(&[at("10.244.1.2:8080")]);
    lab.world.set(&web.node_port(30080));
    lab.apply();
    let before = lab.rules_of("iptables-save");
    for damage in [
        "iptables -t nat -F",
        "iptables -t nat -F KUBE-PORTALS-CONTAINER",
        "iptables -t nat -F PREROUTING",
        "iptables -F",
        "iptables -t nat -A KUBE-NODEPORT-HOST -p tcp --dport 7 -j REDIRECT --to-ports 7",
    ] {
        lab.network.node().sh(damage).unwrap();
        assert_ne!(lab.rules_of("iptables-save"), before, "{damage}");
        assert_eq!(
            lab.world.backend.next_due(),
            Some(Duration::from_millis(1)),
            "it wants to look again"
        );
        std::thread::sleep(Duration::from_millis(2));
        let (node, world) = (lab.network.node(), &mut lab.world);
        let apply = || {
            world
                .backend
                .apply(world.planner.plan(), Family::V4)
                .unwrap()
                .repaired
        };
        let repaired = node.run(apply).unwrap();
        assert!(!repaired.is_empty(), "{damage}: nothing was said");
        assert_eq!(lab.rules_of("iptables-save"), before, "{damage}");
    }
    assert_eq!(
        lab.ask("client", "192.0.2.10", 30080, Proto::Tcp),
        "ok by pod1:8080 as podside"
    );
}

/// A successor goes on with the same proxy ports, so the rules stay as they are and lead to it.
#[test]
fn a_successor_goes_on_with_the_rules() {
    let files = tempfile::tempdir().unwrap();
    let options = Options {
        handover: Some(files.path().join("handover")),
        ..Options::default()
    };
    let mut lab = Lab::with(options.clone());
    let ports = [("http", Tcp, 80), ("dns", Udp, 80)];
    let web = service("web", "10.96.0.1", &ports)
        .to(&[at("10.244.1.2:8080")])
        .node_port(30080);
    lab.world.set(&web);
    lab.apply();
    let before = lab.rules();
    for _ in 0..2 {
        let next = start(&lab.network, options.clone());
        let predecessor = std::mem::replace(&mut lab.world.backend, next);
        assert_eq!(lab.apply(), Vec::<String>::new());
        assert!(predecessor.is_retired());
        drop(predecessor);
        assert_eq!(lab.rules(), before);
        lab.assert_served("10.96.0.1", "192.0.2.10", 30080);
    }
}

/// A client that keeps sending from one port has a tracked flow; it must not outlive what the flow leads to.
#[test]
fn udp_flows_follow_a_service_that_is_made_anew() {
    let mut lab = Lab::up();
    let dns = service("dns", "10.96.0.53", &[("dns", Udp, 53)]).to(&[at("10.244.1.2:8080")]);
    let ask = |lab: &Lab| {
        let mut probe = Probe::new("pod2", ip("10.96.0.53"), 53, Proto::Udp);
        (probe.bind, probe.sport) = (Some(ip("10.244.1.3")), 5353);
        lab.network.probe(&[probe]).unwrap()[0].to_string()
    };
    let unanswered = ask(&lab);
    assert!(!unanswered.contains("pod1"), "{unanswered}");
    for _ in 0..3 {
        lab.world.set(&dns);
        assert_eq!(lab.apply(), Vec::<String>::new());
        assert!(ask(&lab).ends_with("ok by pod1:8080 as podside"));
        lab.world.delete("dns");
        lab.apply();
    }
}
