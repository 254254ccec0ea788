//! The iptables mode on the real kernel, with the programs of both flavours, in namespaces of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod node;

use std::sync::atomic::Ordering;
use std::time::Duration;

use ferry_backends::{Applied, Backend};
use ferry_host::iptables::Flavour;
use ferry_host::netns::Namespace;
use ferry_model::Event;

use node::{NEVER, TestNode, add, balancer, endpoints, on, on_both, plain, remove, run};

/// There was nothing to repair and nothing to write.
fn assert_untouched(applied: &[Applied; 2]) {
    for applied in applied {
        assert_eq!((applied.added, applied.removed), (0, 0), "{applied:?}");
        assert!(
            applied.warnings.is_empty() && applied.repaired.is_empty(),
            "{applied:?}"
        );
    }
}

#[test]
fn a_restart_adopts_what_is_there() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        let applied = node.update((0..10).flat_map(balancer));
        assert!(
            applied
                .iter()
                .all(|applied| applied.full && applied.warnings.is_empty()),
            "{applied:?}"
        );
        assert!(node.has("ns/svc-00003:http cluster IP"));
        assert_untouched(&node.apply());
        let before = node.saved();
        let mut node = node.restarted();
        let applied = node.apply();
        assert_untouched(&applied);
        assert!(applied.iter().all(|applied| applied.full));
        assert_eq!(node.saved(), before);
    });
}

#[test]
fn totals_are_those_of_the_tables() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..6).flat_map(balancer));
        let applied = node.update([remove(2), remove(3)].into_iter().chain(balancer(7)));
        let saved = node.run("iptables-save", "-t nat");
        let nat = saved.lines().filter(|line| line.starts_with("-A KUBE-")).count();
        let tables = &applied[0].tables;
        assert_eq!(
            tables.iter().map(|table| table.table).collect::<Vec<_>>(),
            ["filter", "nat"]
        );
        assert_eq!(tables[1].total, nat);
        assert!(tables[1].written < nat);
    });
}

#[test]
fn a_sequence_of_changes_ends_like_a_fresh_start() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..8).flat_map(balancer));
        let none: [&str; 0] = [];
        let rounds: Vec<Vec<Event>> = vec![
            vec![endpoints(&plain(1), &["10.1.1.1", "10.1.1.9"], "")],
            vec![endpoints(&plain(2), &none, ""), remove(3)],
            balancer(9),
            vec![add(plain(4)), remove(5), remove(6)],
            balancer(2).into_iter().chain(balancer(3)).collect(),
            vec![endpoints(&plain(6), &["10.1.6.1"], ""), add(plain(6))],
        ];
        for round in rounds {
            let applied = node.update(round);
            assert!(
                applied
                    .iter()
                    .all(|applied| !applied.full && applied.warnings.is_empty()),
                "{applied:?}"
            );
        }
        let changed = node.saved();
        let fresh = Namespace::new().unwrap();
        let fresh = fresh.run(move || {
            let mut node = node.restarted();
            node.apply();
            node.saved()
        });
        assert_eq!(changed, fresh.unwrap());
    });
}

#[test]
fn two_thousand_services_go_in_chunks() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        let hosts = ["10.1.0.1", "10.1.0.2"];
        let applied =
            node.update((0..2000).flat_map(|at| [endpoints(&plain(at), &hosts, ""), add(plain(at))]));
        assert_eq!(applied[0].tables[1].total, 6 + 2000 * 8);
        let saved = node.run("iptables-save", "-t nat");
        assert_eq!(saved.matches("\n:KUBE-SVC-").count(), 2000);
        assert_eq!(saved.matches("\n-A KUBE-SERVICES ").count(), 2001);
        let mut node = node.restarted();
        assert_untouched(&node.apply());
        let applied = node.update((0..1990).map(remove));
        assert!(!applied[0].full && applied[0].warnings.is_empty(), "{applied:?}");
        let saved = node.run("iptables-save", "-t nat");
        assert_eq!(saved.matches("\n:KUBE-SVC-").count(), 10);
        assert_eq!(saved.matches("\n:KUBE-SEP-").count(), 20);
        assert_eq!(saved.matches("\n-A KUBE-SERVICES ").count(), 11);
    });
}

#[test]
fn what_others_break_is_repaired() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, Duration::from_millis(50));
        node.update((0..3).flat_map(balancer));
        let whole = node.saved();
        let harms = [
            (
                "iptables",
                "-t nat -F KUBE-SERVICES",
                "KUBE-SERVICES in table nat",
            ),
            (
                "iptables",
                "-t nat -F KUBE-MARK-MASQ",
                "KUBE-MARK-MASQ in table nat",
            ),
            (
                "iptables",
                "-F FORWARD",
                "jump from FORWARD to KUBE-FORWARD in table filter",
            ),
            (
                "iptables",
                "-t mangle -X KUBE-PROXY-CANARY",
                "KUBE-PROXY-CANARY in table mangle",
            ),
            (
                "ip6tables",
                "-I KUBE-FORWARD -j RETURN",
                "KUBE-FORWARD in table filter",
            ),
            (
                "ip6tables",
                "-t nat -D KUBE-SERVICES 1",
                "KUBE-SERVICES in table nat",
            ),
        ];
        for (program, args, what) in harms {
            let applied = node.healed(|node| drop(node.run(program, args)));
            let family = usize::from(program == "ip6tables");
            let repaired = &applied[family].repaired;
            assert!(
                repaired.iter().any(|repair| repair.what.contains(what)),
                "{args}: {applied:?}"
            );
            assert!(applied[1 - family].repaired.is_empty(), "{args}: {applied:?}");
            assert_eq!(node.saved(), whole, "{args}");
            if flavour == Flavour::Nft {
                assert_eq!(
                    repaired[0].by.as_deref(),
                    Some(&*format!("{program}-nft")),
                    "{applied:?}"
                );
            }
        }
    });
}

#[test]
fn a_flushed_ruleset_comes_back() {
    on(Flavour::Nft, |flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..3).flat_map(balancer));
        let whole = node.saved();
        let applied = node.healed(|_| drop(run("nft", "flush ruleset")));
        assert!(
            applied.iter().all(|applied| !applied.repaired.is_empty()),
            "{applied:?}"
        );
        assert_eq!(applied[0].repaired[0].by.as_deref(), Some("nft"));
        assert_eq!(node.saved(), whole);
    });
}

#[test]
fn neither_our_own_nor_unrelated_changes_alarm() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, Duration::from_millis(50));
        node.update((0..3).flat_map(balancer));
        node.update([remove(1)]);
        node.update(balancer(1));
        if flavour == Flavour::Nft {
            node.run("iptables", "-t nat -N CNI-HOSTPORT");
            node.run("iptables", "-t nat -A CNI-HOSTPORT -j RETURN");
            node.run("iptables", "-t mangle -N KUBE-KUBELET-CANARY");
        }
        // Changes are told and polled in order, so those above have been seen when this one alarms.
        let applied = node.healed(|node| drop(node.run("iptables", "-t nat -F KUBE-POSTROUTING")));
        assert_eq!(applied[0].repaired.len(), 1, "{applied:?}");
        assert_eq!(node.alarms.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_refused_change_falls_back_and_names_line_and_service() {
    // Nothing tells of foreign changes here, so the change meets tables that are not as they are known to be.
    on(Flavour::Legacy, |flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..3).flat_map(balancer));
        node.run("iptables", "-t nat -F KUBE-SERVICES");
        let applied = node.update([remove(1)]);
        assert!(
            applied[0].full && applied[0].refused.partial == 1 && applied[0].refused.full == 0,
            "{applied:?}"
        );
        let warning = &applied[0].warnings[0];
        assert!(warning.contains("rules of service ns/svc-00001"), "{warning}");
        assert!(
            warning.contains("`-D KUBE-SERVICES -m comment --comment \"ns/svc-00001:http"),
            "{warning}"
        );
        assert!(!node.has("svc-00001") && node.has("svc-00002:http cluster IP"));
        assert_untouched(&node.restarted().apply());
    });
}

#[test]
fn a_service_that_is_refused_does_not_hold_the_others_back() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        let mut endless = plain(5);
        endless.affinity = Some(Duration::from_secs(1 << 40));
        let mut events: Vec<Event> = (0..3).flat_map(balancer).collect();
        events.extend([endpoints(&endless, &["10.1.5.1"], ""), add(endless.clone())]);
        let applied = node.update(events);
        let refused = applied[0]
            .warnings
            .iter()
            .find(|warning| warning.contains(endless.name.as_str()));
        let told = |warning: &String| warning.contains("is not served") && warning.contains("line ");
        assert!(refused.is_some_and(told), "{applied:?}");
        assert!(node.has("svc-00002:http cluster IP") && !node.has("svc-00005"));
        let applied = node.update([remove(2)]);
        assert!(!applied[0].full && applied[0].warnings.is_empty(), "{applied:?}");
        let applied = node.update([remove(5)]);
        assert!(applied[0].warnings.is_empty(), "{applied:?}");
        assert_untouched(&node.restarted().apply());
    });
}

/// What kube-proxy of long ago left, and what others have.
const LEFTOVERS: &str = r#"*nat
:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SVC-BBBBBBBBBBBBBBBB - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-PORTALS-CONTAINER - [0:0]
:MINE - [0:0]
-A KUBE-XLB-AAAAAAAAAAAAAAAA -j KUBE-SVC-BBBBBBBBBBBBBBBB
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A PREROUTING -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-CONTAINER
-A PREROUTING -j MINE
COMMIT
*filter
:KUBE-SERVICES - [0:0]
-A INPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
"#;

#[test]
fn leftovers_of_old_releases_go_at_the_first_start() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.seed(LEFTOVERS);
        let applied = node.update(balancer(1));
        assert!(applied[0].warnings.is_empty(), "{applied:?}");
        assert!(!node.has("KUBE-XLB") && !node.has("KUBE-SVC-BBBB"));
        assert!(node.has("KUBE-MARK-DROP") && node.has("MINE"));
        let input = node.run("iptables", "-S INPUT");
        assert!(!input.contains("-j KUBE-SERVICES"), "{input}");
    });
}

#[test]
fn cleanup_leaves_nothing_of_ours_and_everything_of_others() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..3).flat_map(balancer));
        node.seed(LEFTOVERS);
        node.backend.cleanup().unwrap();
        assert_eq!(
            node.left_but(&["KUBE-FIREWALL", "KUBE-MARK-DROP"]),
            Vec::<String>::new()
        );
        assert!(node.has("MINE") && node.has("KUBE-MARK-DROP"));
        assert!(node.apply()[0].added > 0, "and it can start again");
    });
}

#[test]
fn cleanup_goes_on_past_what_others_refer_to() {
    on_both(|flavour| {
        let mut node = TestNode::new(flavour, NEVER);
        node.update((0..3).flat_map(balancer));
        node.run("iptables", "-t nat -N CNI-HOSTPORT");
        node.run("iptables", "-t nat -A CNI-HOSTPORT -j KUBE-MARK-MASQ");
        let error = node.backend.cleanup().unwrap_err().to_string();
        assert!(error.contains("chain KUBE-MARK-MASQ stays"), "{error}");
        assert_eq!(
            node.left_but(&["KUBE-FIREWALL", "iptables-save nat KUBE-MARK-MASQ"]),
            Vec::<String>::new()
        );
    });
}

#[test]
fn rules_of_the_other_flavour_are_noticed_and_cleaned_up() {
    on_both(|flavour| {
        let mut other = TestNode::new(flavour.other(), NEVER);
        other.update(balancer(1));
        let mut node = TestNode::new(flavour, NEVER);
        let mixed = node.backend.mixed().unwrap();
        for program in ["iptables", "ip6tables"] {
            let told = format!("{program} {} also holds ", flavour.other());
            assert!(mixed.contains(&told), "{mixed}");
        }
        assert!(mixed.contains("nat/KUBE-SERVICES"), "{mixed}");
        node.update(balancer(1));
        node.backend.cleanup().unwrap();
        assert!(!other.has("KUBE-SERVICES") && !node.has("KUBE-SERVICES"));
    });
    on(Flavour::Nft, |flavour| {
        assert_eq!(TestNode::new(flavour, NEVER).backend.mixed(), None)
    });
}
