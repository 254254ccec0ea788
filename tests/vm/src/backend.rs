//! The backend against the kernel: writing, adopting, repairing, cleaning up, and leaving others' things alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::iptables::{self, Iptables};
use ferry_backends::ipvs::{Ipvs, Options, cleanup, leftovers, owns_chain};
use ferry_backends::{Alarm, Applied, Backend};
use ferry_lab::netns::Namespace;
use ferry_model::{Family, Planner, Protocol, Service, TrafficPolicy};

use crate::cases::Case;
use crate::facts::{endpoints, gone, ip, planner, put, service};
use crate::host::sh;

pub(crate) const CASES: &[Case] = &[
    ("backend::what_was_written_is_adopted_as_it_is", adoption),
    ("backend::a_change_touches_its_own_service_only", one_change),
    ("backend::a_restart_follows_what_changed_meanwhile", restart),
    ("backend::what_others_made_is_never_removed", foreign),
    ("backend::what_kube_proxy_left_is_taken_over", inherited),
    ("backend::what_others_break_is_repaired", repair),
    (
        "backend::a_missing_scheduler_is_replaced_and_told",
        missing_scheduler,
    ),
    (
        "backend::a_scheduler_that_does_not_exist_is_an_error_at_the_start",
        no_such_scheduler,
    ),
    ("backend::kernel_parameters_and_timeouts_are_set", parameters),
    ("backend::a_failure_is_made_good_by_the_next_apply", failure),
    ("backend::modes_take_over_from_each_other", switching),
    ("backend::cleanup_removes_ours_and_nothing_else", clean),
];

pub(crate) fn options() -> Options {
    Options {
        repair_every: None,
        ..Options::default()
    }
}

pub(crate) fn silent() -> Alarm {
    Arc::new(|| {})
}

pub(crate) fn open() -> Ipvs {
    Ipvs::open(options(), silent()).unwrap()
}

/// Both families; what was done in all.
pub(crate) fn apply(backend: &mut Ipvs, planner: &Planner) -> Applied {
    let mut sum = backend.apply(planner.plan(), Family::V4).unwrap();
    let six = backend.apply(planner.plan(), Family::V6).unwrap();
    sum.added += six.added;
    sum.removed += six.removed;
    sum.repaired.extend(six.repaired);
    sum.warnings.extend(six.warnings);
    sum
}

/// A node with an address, in a namespace of its own.
fn on_a_node(body: impl FnOnce() + Send) {
    let node = Namespace::new("node").unwrap();
    node.ip("link add eth0 type dummy\naddr add 192.0.2.10/24 dev eth0\naddr add 2001:db8:2::10/64 dev eth0\nlink set eth0 up")
        .unwrap();
    node.run(body).unwrap();
}

/// Services that use every set, in both families.
fn everything() -> Vec<Service> {
    let mut web = service("web", "10.96.0.1", Protocol::Tcp);
    web.ports[0].node_port = Some(30080);
    web.external_ips = vec![ip("198.18.0.1")];
    web.load_balancer_ips = vec![ip("198.18.1.1")];
    web.source_ranges = vec!["192.0.2.0/24".parse().unwrap(), "203.0.113.9/32".parse().unwrap()];
    let mut local = service("local", "10.96.0.2", Protocol::Tcp);
    local.ports[0].node_port = Some(30081);
    local.external_ips = vec![ip("198.18.0.2")];
    local.load_balancer_ips = vec![ip("198.18.1.2")];
    local.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
    local.external_policy = TrafficPolicy::Local;
    local.health_check_node_port = Some(32000);
    let mut dns = service("dns", "10.96.0.3", Protocol::Udp);
    dns.ports[0].node_port = Some(30053);
    dns.external_policy = TrafficPolicy::Local;
    let mut sctp = service("sctp", "10.96.0.4", Protocol::Sctp);
    sctp.ports[0].node_port = Some(30132);
    sctp.external_policy = TrafficPolicy::Local;
    let mut six = service("six", "fd00:10:96::1", Protocol::Tcp);
    six.ports[0].node_port = Some(30086);
    six.load_balancer_ips = vec![ip("2001:db8:1::1")];
    six.source_ranges = vec![
        "2001:db8:2::/64".parse().unwrap(),
        "2001:db8:113::9/128".parse().unwrap(),
    ];
    six.affinity = Some(Duration::from_secs(300));
    vec![web, local, dns, sctp, six]
}

fn full_planner() -> Planner {
    let mut planner = planner();
    for service in everything() {
        let at: &[&str] = match service.name.name() {
            "six" => &["fd00:10:244:1::2", "fd00:10:244:2::2"],
            _ => &["10.244.1.2", "10.244.2.2"],
        };
        planner.update([put(&service), endpoints(&service, at)]);
    }
    planner
}

/// KUBE-FIREWALL is left out: the kubelet has a share in it, so nobody removes it.
fn state() -> String {
    let rules = "grep KUBE | grep -v KUBE-FIREWALL | sed 's/\\[.*//'";
    sh(&format!(
        "ipvsadm -S -n | sort; ipset save | sort; iptables-save | {rules}; ip6tables-save | {rules}; \
         ip -o addr show dev kube-ipvs0"
    ))
}

/// Interface numbers differ after the interface was made again, and so may the order of its addresses.
fn assert_same(now: &str, before: &str, what: &str) {
    let lines = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(|line| match line.split_once(": kube-ipvs0") {
            Some((_, address)) => address.to_owned(),
            None => line.to_owned(),
        });
        lines.map(|line| without_chance(&line)).collect()
    };
    let (now, before) = (lines(now), lines(before));
    let missing: Vec<_> = before.difference(&now).collect();
    let extra: Vec<_> = now.difference(&before).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{what}:\nmissing {missing:#?}\nextra {extra:#?}"
    );
}

/// Hash sets print the number that seeds their hash.
fn without_chance(line: &str) -> String {
    match line.split_once(" initval ") {
        Some((before, after)) => format!("{before}{}", after.split_once(' ').map_or("", |(_, rest)| rest)),
        None => line.to_owned(),
    }
}

fn adoption() {
    on_a_node(|| {
        let planner = full_planner();
        let first = apply(&mut open(), &planner);
        assert!(first.full && first.added > 50 && first.removed == 0, "{first:?}");
        let before = state();
        assert_eq!(before.matches("create KUBE-").count(), 34, "{before}");
        for line in [
            "-A -t 198.18.1.1:80 -s rr",
            "-a -t 192.0.2.10:30081 -r 10.244.1.2:8080 -m -w 1",
            "-A -t [fd00:10:96::1]:80 -s rr -p 300",
            "-A --sctp-service 192.0.2.10:30132 -s rr",
            "add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.18.1.1,tcp:80,203.0.113.9",
            "add KUBE-6-LOAD-BALANCER-SOURCE-CID 2001:db8:1::1,tcp:80,2001:db8:113::9",
        ] {
            assert!(before.lines().any(|have| have == line), "no line {line}");
        }
        let closed = |line: &str| line.starts_with("-A KUBE-IPVS-OUT-FILTER -s 198.18.1.2/32 -m ipvs ");
        assert_eq!(
            before.lines().filter(|line| closed(line)).count(),
            1,
            "closed to the node"
        );
        // A new process finds everything as it should be, single-address source ranges included.
        let again = apply(&mut open(), &planner);
        assert!(again.full && (again.added, again.removed) == (0, 0), "{again:?}");
        assert_same(&state(), &before, "after a restart");
    });
}

fn one_change() {
    on_a_node(|| {
        let (mut planner, mut backend) = (full_planner(), open());
        apply(&mut backend, &planner);
        let nothing = apply(&mut backend, &planner);
        assert!(
            !nothing.full && (nothing.added, nothing.removed) == (0, 0),
            "{nothing:?}"
        );
        let dns = &everything()[2];
        planner.update([endpoints(dns, &["10.244.1.2", "10.244.2.3"])]);
        let changed = apply(&mut backend, &planner);
        // The cluster IP gets one and loses one; at the node port only the local endpoint counts, and it stays.
        assert!(
            !changed.full && (changed.added, changed.removed) == (1, 1),
            "{changed:?}"
        );
        assert!(
            changed.tables.iter().all(|table| table.written == 0),
            "{changed:?}"
        );
        planner.update([gone(dns)]);
        apply(&mut backend, &planner);
        let left = state();
        assert!(!left.contains("10.96.0.3") && !left.contains("30053"), "{left}");
        assert_eq!(apply(&mut open(), &planner).added, 0, "nothing was forgotten");
    });
}

fn restart() {
    on_a_node(|| {
        let mut planner = full_planner();
        apply(&mut open(), &planner);
        let all = everything();
        planner.update([gone(&all[0]), endpoints(&all[1], &["10.244.1.3"])]);
        apply(&mut open(), &planner);
        let left = state();
        for text in [
            "10.96.0.1:80",
            "198.18.0.1",
            "198.18.1.1,",
            "30080",
            "-t 10.96.0.2:80 -r 10.244.1.2",
        ] {
            let found = left.lines().find(|line| line.contains(text));
            assert!(found.is_none(), "{text}: {found:?}");
        }
        assert!(
            left.contains("-a -t 10.96.0.2:80 -r 10.244.1.3:8080 -m -w 1"),
            "{left}"
        );
    });
}

const OTHERS: &str = "ipvsadm -A -t 10.99.0.1:80 -s rr; ipvsadm -a -t 10.99.0.1:80 -r 10.99.1.1:80 -m; \
    ipvsadm -A -t 192.0.2.10:9999 -s wlc; ipvsadm -A -u 192.0.2.99:30053 -s rr; ipvsadm -A -f 7 -s rr; \
    iptables -N MINE; iptables -A INPUT -j MINE; ipset create MINE hash:ip";

fn assert_others_live() {
    let servers = sh("ipvsadm -S -n");
    for line in [
        "-A -t 10.99.0.1:80 -s rr",
        "-a -t 10.99.0.1:80 -r 10.99.1.1:80 -m -w 1",
        "-A -t 192.0.2.10:9999 -s wlc",
        "-A -u 192.0.2.99:30053 -s rr",
        "-A -f 7 -s rr",
    ] {
        assert!(servers.lines().any(|have| have == line), "{line} in\n{servers}");
    }
    assert!(sh("iptables-save").contains("-A INPUT -j MINE"));
    assert!(sh("ipset save").contains("create MINE"));
}

fn foreign() {
    on_a_node(|| {
        let mut planner = full_planner();
        apply(&mut open(), &planner);
        sh(OTHERS);
        apply(&mut open(), &planner);
        assert_others_live();
        for service in everything() {
            planner.update([gone(&service)]);
        }
        apply(&mut open(), &planner);
        assert_others_live();
        assert_eq!(
            sh("ipvsadm -S -n")
                .lines()
                .filter(|line| line.starts_with("-A"))
                .count(),
            4
        );
    });
}

fn inherited() {
    on_a_node(|| {
        // As kube-proxy leaves it; its sets are of a newer revision, and one server was draining.
        sh(
            "ip link add kube-ipvs0 type dummy; ip addr add 10.96.0.9/32 dev kube-ipvs0; \
            ip addr add 10.96.0.1/32 dev kube-ipvs0; \
            ipset create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536; \
            ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535; \
            ipset add KUBE-CLUSTER-IP 10.96.0.9,tcp:80; ipset add KUBE-NODE-PORT-TCP 31000; \
            ipvsadm -A -t 10.96.0.9:80 -s rr; ipvsadm -A -t 192.0.2.10:31000 -s rr; \
            ipvsadm -A -t 10.96.0.1:80 -s wrr; ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 0; \
            ipvsadm -a -t 10.96.0.1:80 -r 10.244.9.9:8080 -m -w 0",
        );
        apply(&mut open(), &full_planner());
        let now = state();
        for text in ["10.96.0.9", "31000", "10.244.9.9", "-w 0", "-s wrr"] {
            assert!(!now.contains(text), "{text} in\n{now}");
        }
        assert!(
            now.contains("-a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 1"),
            "{now}"
        );
    });
}

fn repair() {
    on_a_node(|| {
        let planner = full_planner();
        let options = Options {
            repair_every: Some(Duration::ZERO),
            ..options()
        };
        let mut backend = Ipvs::open(options, silent()).unwrap();
        apply(&mut backend, &planner);
        let before = state();
        assert_eq!(apply(&mut backend, &planner).repaired, []);
        for damage in [
            "ipvsadm -D -t 10.96.0.1:80",
            "ipvsadm -C",
            "ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 5",
            "ipset del KUBE-CLUSTER-IP 10.96.0.1,tcp:80",
            "ipset add KUBE-CLUSTER-IP 10.96.0.77,tcp:80",
            "ip addr del 10.96.0.1/32 dev kube-ipvs0",
            "ip addr add 10.96.0.77/32 dev kube-ipvs0",
            "ip link del kube-ipvs0",
            "iptables -t nat -F KUBE-SERVICES",
            "iptables -F INPUT",
            "iptables -t nat -F; iptables -F; iptables -t nat -X; iptables -X",
        ] {
            sh(damage);
            let mut differences = || backend.differences(planner.plan(), Family::V4).unwrap();
            assert_ne!(differences(), Vec::<String>::new(), "{damage}");
            let applied = apply(&mut backend, &planner);
            assert!(!applied.repaired.is_empty(), "{damage}: {applied:?}");
            assert_same(&state(), &before, damage);
            let left = backend.differences(planner.plan(), Family::V4).unwrap();
            assert_eq!(left, Vec::<String>::new(), "{damage}");
        }
    });
}

fn missing_scheduler() {
    on_a_node(|| {
        let (mut planner, mut backend) = (planner(), open());
        let mut web = service("web", "10.96.0.1", Protocol::Tcp);
        web.options.scheduler = Some("nothing".into());
        planner.update([put(&web), endpoints(&web, &["10.244.1.2"])]);
        let applied = apply(&mut backend, &planner);
        assert_eq!(applied.warnings.len(), 1, "{applied:?}");
        assert!(applied.warnings[0].contains("ns/web:p") && applied.warnings[0].contains("\"nothing\""));
        assert!(
            sh("ipvsadm -S -n").contains("-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r 10.244.1.2:8080")
        );
        web.options.scheduler = Some("mh".into());
        planner.update([put(&web)]);
        assert!(apply(&mut backend, &planner).warnings.is_empty());
        assert!(sh("ipvsadm -S -n").contains("-A -t 10.96.0.1:80 -s mh -b mh-port"));
    });
}

fn no_such_scheduler() {
    on_a_node(|| {
        let options = Options {
            scheduler: "nothing".to_owned(),
            ..options()
        };
        let error = Ipvs::open(options, silent()).unwrap_err().to_string();
        assert!(
            error.contains("scheduler nothing") && error.contains("`modprobe ip_vs_nothing`"),
            "{error}"
        );
        assert_eq!(sh("ipvsadm -S -n"), "");
    });
}

fn parameters() {
    on_a_node(|| {
        let mut options = Options {
            strict_arp: true,
            ..options()
        };
        options.timeouts.udp = Duration::from_secs(77);
        Ipvs::open(options, silent()).unwrap();
        let got = sh(
            "cd /proc/sys/net/ipv4; cat vs/conntrack vs/expire_nodest_conn vs/expire_quiescent_template \
            ip_forward conf/all/arp_ignore conf/all/arp_announce | tr '\\n' ' '",
        );
        assert_eq!(got, "1 1 1 1 1 2 ");
        assert!(sh("ipvsadm -L --timeout").contains(" 77"));
    });
}

fn failure() {
    on_a_node(|| {
        let (mut planner, mut backend) = (full_planner(), open());
        apply(&mut backend, &planner);
        // A set of that name and another type stands in the way once everything is looked at again.
        let mut web = service("more", "10.96.0.7", Protocol::Tcp);
        web.ports[0].node_port = Some(30087);
        planner.update([put(&web)]);
        sh("iptables -t nat -F; iptables -F; sleep 0.5; \
            for s in $(ipset list -n | grep -v KUBE-6); do ipset flush $s; done; \
            ipset destroy KUBE-LOOP-BACK; ipset destroy KUBE-CLUSTER-IP; ipset create KUBE-CLUSTER-IP hash:ip");
        let error = backend.apply(planner.plan(), Family::V4).unwrap_err();
        assert!(error.to_string().contains("KUBE-CLUSTER-IP"), "{error}");
        backend.apply(planner.plan(), Family::V6).unwrap();
        let error = backend.apply(planner.plan(), Family::V4).unwrap_err();
        assert!(error.to_string().contains("KUBE-CLUSTER-IP"), "{error}");
        sh("ipset destroy KUBE-CLUSTER-IP");
        backend.apply(planner.plan(), Family::V4).unwrap();
        let healed = state();
        cleanup(Path::new("/run/ferry")).unwrap();
        apply(&mut open(), &planner);
        let fresh = state();
        assert_same(&healed, &fresh, "healed and fresh");
    });
}

fn clean() {
    on_a_node(|| {
        assert!(!leftovers().unwrap());
        let (planner, mut backend) = (full_planner(), open());
        apply(&mut backend, &planner);
        sh(OTHERS);
        sh(
            "iptables -t nat -N KUBE-KUBELET-CANARY; iptables -N KUBE-FIREWALL; iptables -A INPUT -j KUBE-FIREWALL",
        );
        assert!(leftovers().unwrap());
        backend.cleanup().unwrap();
        assert!(!leftovers().unwrap());
        assert_others_live();
        let left = sh("iptables-save; ip6tables-save; ipset save; ip -o link");
        for line in left.lines().filter(|line| line.contains("KUBE-")) {
            assert!(
                line.contains("KUBE-KUBELET-CANARY") || line.contains("KUBE-FIREWALL"),
                "{line}"
            );
        }
        assert!(
            !left.contains("kube-ipvs0") && left.contains("KUBE-KUBELET-CANARY"),
            "{left}"
        );
        backend.cleanup().unwrap();
        apply(&mut backend, &planner);
        assert!(leftovers().unwrap());
    });
}

fn switching() {
    on_a_node(|| {
        let planner = full_planner();
        apply(&mut open(), &planner);
        let fresh = state();
        cleanup(Path::new("/run/ferry")).unwrap();

        let mut iptables = Iptables::open(iptables::Options::default(), silent());
        let mut apply_iptables = || {
            for family in Family::BOTH {
                iptables.apply(planner.plan(), family).unwrap();
            }
        };
        apply_iptables();
        assert!(sh("iptables-save").contains("KUBE-SVC-"));
        apply(&mut open(), &planner);
        assert_same(&state(), &fresh, "ipvs mode after iptables mode");
        // What the daemon does next, to be sure of both kinds of iptables: it must not take what is ours by now.
        let mut before = Iptables::open(iptables::Options::default(), silent());
        before.cleanup_beside(owns_chain).unwrap();
        assert_same(&state(), &fresh, "ipvs mode beside the removal of iptables mode");

        // The other way: the new rules are in force before the old ones go.
        let mut iptables = Iptables::open(iptables::Options::default(), silent());
        for family in Family::BOTH {
            iptables.apply(planner.plan(), family).unwrap();
        }
        cleanup(Path::new("/run/ferry")).unwrap();
        assert!(!leftovers().unwrap());
        assert_eq!(sh("ipvsadm -S -n; ipset save"), "");
        let rules = sh("iptables-save");
        assert!(
            !rules.contains("KUBE-IPVS-") && !rules.contains("match-set"),
            "{rules}"
        );
        let saved = sh("iptables-save | grep KUBE | sed 's/\\[.*//'");
        for family in Family::BOTH {
            let again = iptables.apply(planner.plan(), family).unwrap();
            assert_eq!(again.repaired, [], "cleaning up broke nothing");
        }
        assert_eq!(sh("iptables-save | grep KUBE | sed 's/\\[.*//'"), saved);
    });
}
