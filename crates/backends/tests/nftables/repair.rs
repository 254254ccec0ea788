//! Others change the table, or had it before us.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferry_backends::nftables::{Nftables, Options};
use ferry_backends::{Alarm, Backend};
use ferry_lab::netns::Namespace;
use ferry_model::Family;

use super::listing::load;
use super::{apply, backend, rich, world};

/// An alarm, and how often it rang.
fn counted() -> (Alarm, Arc<AtomicUsize>) {
    let alarms = Arc::new(AtomicUsize::new(0));
    let rung = Arc::clone(&alarms);
    let alarm = Arc::new(move || {
        rung.fetch_add(1, Ordering::SeqCst);
    });
    (alarm, alarms)
}

#[test]
fn what_others_change_is_repaired() {
    let namespace = Namespace::new("repair").unwrap();
    let planner = rich();
    let (alarm, alarms) = counted();
    let mut backend = namespace
        .run(|| Nftables::open(Options::default(), alarm).unwrap())
        .unwrap();
    apply(&mut backend, &planner);
    for (line, what, different) in [
        (
            "nft flush chain ip kube-proxy services",
            "table ip kube-proxy: chain services",
            "chain services has other rules",
        ),
        (
            "nft delete element ip kube-proxy frontends '{ 10.96.0.1 . tcp . 80 }'",
            "table ip kube-proxy: elements of frontends",
            "element 10.96.0.1 . tcp . 80 comment \"ns/plain:http\" : 1:3 of frontends is missing",
        ),
        (
            "nft add element ip kube-proxy cluster-ips '{ 10.96.7.7 }'",
            "table ip kube-proxy: elements of cluster-ips",
            "element 10.96.7.7 of cluster-ips should not be there",
        ),
        (
            "nft add chain ip kube-proxy stranger",
            "table ip kube-proxy: chain stranger",
            "chain stranger should not be there",
        ),
        (
            "nft insert rule ip kube-proxy nat-prerouting accept",
            "table ip kube-proxy: chain nat-prerouting",
            "chain nat-prerouting has other rules",
        ),
        (
            "nft delete table ip kube-proxy",
            "table ip kube-proxy was gone",
            "table ip kube-proxy is missing",
        ),
        (
            "nft flush ruleset",
            "table ip kube-proxy was gone",
            "table ip kube-proxy is missing",
        ),
    ] {
        let before = alarms.load(Ordering::SeqCst);
        namespace.sh(line).unwrap();
        let heard = ferry_lab::wait_until(Duration::from_secs(20), || alarms.load(Ordering::SeqCst) > before);
        assert!(heard, "{line}");
        let found = backend.differences(planner.plan(), Family::V4).unwrap();
        assert_eq!(
            found.first().map(String::as_str),
            Some(different),
            "{line}: {found:?}"
        );
        let applied = backend.apply(planner.plan(), Family::V4).unwrap();
        let [repair] = &applied.repaired[..] else {
            panic!("{line}: {applied:?}")
        };
        assert_eq!(repair.what, what);
        assert!(repair.by.as_ref().unwrap().starts_with("nft (pid "), "{repair:?}");
        backend.apply(planner.plan(), Family::V6).unwrap();
        assert_eq!(apply(&mut backend, &planner), 0, "{line}");
        let left = backend.differences(planner.plan(), Family::V4).unwrap();
        assert_eq!(left, Vec::<String>::new(), "{line}");
        assert_eq!(apply(&mut self::backend(&namespace), &planner), 0, "{line}");
    }
}

/// Transactions of others that do not concern us lead neither to an alarm nor to a look at everything.
#[test]
fn changes_of_other_tables_do_not_disturb() {
    let namespace = Namespace::new("others").unwrap();
    let mut planner = rich();
    let (alarm, alarms) = counted();
    let mut backend = namespace
        .run(|| Nftables::open(Options::default(), alarm).unwrap())
        .unwrap();
    apply(&mut backend, &planner);
    for pod in 4..14 {
        namespace.sh(&format!("nft add table ip other{pod}")).unwrap();
        planner.update([world::endpoints(
            "plain",
            &["10.244.1.2", &format!("10.244.1.{pod}")],
        )]);
        let applied = backend.apply(planner.plan(), Family::V4).unwrap();
        assert!(!applied.full);
        assert!(applied.added > 0);
    }
    assert_eq!(alarms.load(Ordering::SeqCst), 0);
    assert_eq!(apply(&mut self::backend(&namespace), &planner), 0);
}

/// A change that comes before the alarm was heeded is noticed all the same: transactions are for a known generation.
#[test]
fn a_change_by_others_is_noticed_by_the_next_transaction() {
    let namespace = Namespace::new("race").unwrap();
    let mut planner = rich();
    let mut backend = backend(&namespace);
    apply(&mut backend, &planner);
    for _ in 0..10 {
        namespace.sh("nft flush map ip kube-proxy endpoints").unwrap();
        planner.update([world::endpoints("plain", &["10.244.1.2"])]);
        assert!(backend.apply(planner.plan(), Family::V4).unwrap().full);
        assert_eq!(apply(&mut self::backend(&namespace), &planner), 0);
        planner.update([world::endpoints("plain", &["10.244.1.2", "10.244.1.3"])]);
        apply(&mut backend, &planner);
    }
}

/// kube-proxy's own table, as its nftables mode writes it, becomes ours in one transaction.
#[test]
fn the_table_of_kube_proxy_is_taken_over() {
    let namespace = Namespace::new("takeover").unwrap();
    for (family, address, ip) in [
        ("ip", "ipv4_addr", "10.96.0.99"),
        ("ip6", "ipv6_addr", "fd00:96::99"),
    ] {
        let endpoint = if family == "ip" {
            "10.244.1.9"
        } else {
            "fd00:244:0:1::9"
        };
        load(
            &namespace,
            &format!(
                r#"
add table {family} kube-proxy {{ comment "rules for kube-proxy" ; }}
add chain {family} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100 ; }}
add chain {family} kube-proxy services
add rule {family} kube-proxy nat-prerouting jump services
add chain {family} kube-proxy service-AAAAAAAA-ns/old/tcp/http
add rule {family} kube-proxy service-AAAAAAAA-ns/old/tcp/http meta l4proto tcp dnat {family} addr . port to numgen random mod 1 map {{ 0 : {endpoint} . 80 }}
add set {family} kube-proxy cluster-ips {{ type {address} ; comment "Active ClusterIPs" ; }}
add element {family} kube-proxy cluster-ips {{ {ip} }}
add map {family} kube-proxy service-ips {{ type {address} . inet_proto . inet_service : verdict ; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic" ; }}
add element {family} kube-proxy service-ips {{ {ip} . tcp . 80 : goto service-AAAAAAAA-ns/old/tcp/http }}
add rule {family} kube-proxy services {family} daddr . meta l4proto . th dport vmap @service-ips
"#
            ),
        );
    }
    let planner = rich();
    apply(&mut backend(&namespace), &planner);
    let listed = namespace.sh("nft list ruleset").unwrap();
    assert!(!listed.contains("ns/old"), "{listed}");
    assert_eq!(apply(&mut backend(&namespace), &planner), 0);
}

/// A refused transaction is reported with the object, and the next one makes the table anew.
#[test]
fn a_refused_transaction_is_followed_by_a_new_table() {
    let namespace = Namespace::new("refused").unwrap();
    let planner = rich();
    let mut owner = namespace
        .command("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    owner
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"add table ip kube-proxy { flags owner; }\n")
        .unwrap();
    let there = || namespace.sh("nft list tables").unwrap().contains("kube-proxy");
    assert!(ferry_lab::wait_until(Duration::from_secs(20), there));
    let mut backend = backend(&namespace);
    let error = backend.apply(planner.plan(), Family::V4).unwrap_err();
    assert!(error.to_string().contains("Operation not permitted"), "{error}");
    backend.apply(planner.plan(), Family::V6).unwrap();
    drop(owner.stdin.take());
    owner.wait().unwrap();
    assert!(backend.apply(planner.plan(), Family::V4).unwrap().full);
    assert_eq!(apply(&mut self::backend(&namespace), &planner), 0);
}
