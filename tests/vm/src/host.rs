//! The rooms of `ferry_host` that need modules: dummy interfaces, sets, IPVS.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use ferry_host::ipset::{Addresses, Entry, Ipset, Kind};
use ferry_host::ipvs::{Change, Ipvs, SCHED2, Server, Service, Timeouts, Virtual, is_gone};
use ferry_host::modules::Modules;
use ferry_host::route::Route;
use ferry_lab::netns::Namespace;

use crate::cases::Case;

pub(crate) const CASES: &[Case] = &[
    ("host::a_dummy_interface_comes_and_goes", dummy),
    ("host::sets_of_every_kind_hold_what_was_added", sets),
    ("host::a_set_is_filled_with_thousands_of_entries", many_entries),
    ("host::a_set_of_another_kind_or_in_use_is_an_error", set_errors),
    ("host::virtual_and_real_servers_come_and_go", servers),
    ("host::a_batch_tells_what_was_refused", refusals),
    ("host::every_scheduler_loads", schedulers),
    ("host::timeouts_are_set_and_read", timeouts),
    ("host::modules_are_loaded_or_named", modules),
];

fn in_namespace(body: impl FnOnce() + Send) {
    Namespace::new("vm").unwrap().run(body).unwrap();
}

pub(crate) fn sh(line: &str) -> String {
    let out = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(
        out.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn dummy() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let index = route.ensure_dummy("kube-ipvs0").unwrap();
        assert_eq!(route.ensure_dummy("kube-ipvs0").unwrap(), index);
        for address in ["10.96.0.1", "fd00::1"] {
            assert!(route.add_address(index, ip(address)).unwrap());
        }
        let shown = sh("ip -o addr show dev kube-ipvs0");
        assert!(
            shown.contains("10.96.0.1/32") && shown.contains("fd00::1/128"),
            "{shown}"
        );
        assert!(!route.link("kube-ipvs0").unwrap().unwrap().up);
        assert!(route.remove_dummy("kube-ipvs0").unwrap());
        assert!(!route.remove_dummy("kube-ipvs0").unwrap());
    });
}

fn sets() {
    in_namespace(|| {
        let mut ipset = Ipset::open().unwrap();
        for (suffix, addresses, a, net, host) in [
            ("4", Addresses::V4, "10.0.0.1", "10.0.0.0/8", "10.1.1.1/32"),
            ("6", Addresses::V6, "fd00::1", "fd00::/64", "fd00::9/128"),
        ] {
            let a = ip(a);
            let kinds = [
                (Kind::HashIp, vec![Entry::Ip(a)]),
                (
                    Kind::HashIpPort,
                    vec![Entry::IpPort(a, 6, 80), Entry::IpPort(a, 132, 80)],
                ),
                (Kind::HashIpPortIp, vec![Entry::IpPortIp(a, 17, 53, a)]),
                (
                    Kind::HashIpPortNet,
                    vec![
                        Entry::IpPortNet(a, 6, 80, net.parse().unwrap()),
                        Entry::IpPortNet(a, 6, 80, host.parse().unwrap()),
                    ],
                ),
                (Kind::BitmapPort, vec![Entry::Port(30080), Entry::Port(30081)]),
            ];
            for (kind, mut entries) in kinds {
                let name = format!("S{suffix}-{}", kind.as_str().replace([':', ','], "-"));
                ipset.ensure(&name, kind, addresses).unwrap();
                ipset.ensure(&name, kind, addresses).unwrap();
                ipset.add(&name, &entries).unwrap();
                ipset.add(&name, &entries[..1]).unwrap();
                let mut found = ipset.entries(&name).unwrap().unwrap();
                found.sort();
                entries.sort();
                assert_eq!(found, entries);
                let saved = sh(&format!("ipset save {name}"));
                for entry in &entries {
                    assert!(
                        saved.contains(&format!("add {name} {entry}\n")),
                        "{entry} in {saved}"
                    );
                }
                ipset.delete(&name, &entries).unwrap();
                ipset.delete(&name, &entries[..1]).unwrap();
                assert_eq!(ipset.entries(&name).unwrap(), Some(Vec::new()));
            }
        }
        let all = ipset.sets().unwrap();
        assert_eq!(all.len(), 10);
        assert_eq!(all.iter().filter(|set| set.ipv6).count(), 4);
        for set in all {
            assert!(ipset.destroy(&set.name).unwrap());
        }
        assert!(!ipset.destroy("S4-hash-ip").unwrap());
        assert_eq!(ipset.entries("S4-hash-ip").unwrap(), None);
        assert_eq!(sh("ipset save"), "");
    });
}

fn many_entries() {
    in_namespace(|| {
        let mut ipset = Ipset::open().unwrap();
        ipset.ensure("MANY", Kind::HashIpPortIp, Addresses::V6).unwrap();
        let base = u128::from("fd00::".parse::<std::net::Ipv6Addr>().unwrap());
        let entries: Vec<Entry> = (0..10_000u128)
            .map(|n| IpAddr::from(std::net::Ipv6Addr::from(base + n)))
            .map(|ip| Entry::IpPortIp(ip, 6, 8080, ip))
            .collect();
        ipset.add("MANY", &entries).unwrap();
        let mut found = ipset.entries("MANY").unwrap().unwrap();
        found.sort();
        assert!(found == entries, "{} of {} entries", found.len(), entries.len());
    });
}

fn set_errors() {
    in_namespace(|| {
        let mut ipset = Ipset::open().unwrap();
        ipset.ensure("S", Kind::HashIp, Addresses::V4).unwrap();
        let error = ipset.ensure("S", Kind::HashIpPort, Addresses::V4).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("creating set S of type hash:ip,port: "),
            "{error}"
        );
        assert!(
            ipset
                .add("NONE", &[Entry::Ip(ip("10.0.0.1"))])
                .unwrap_err()
                .is_not_found()
        );
        sh("iptables -A INPUT -m set --match-set S src -j DROP");
        assert!(ipset.destroy("S").unwrap_err().is_busy());
    });
}

fn service(address: &str, port: u16, protocol: u8) -> Service {
    let at = Virtual {
        address: ip(address),
        port,
        protocol,
    };
    Service {
        at,
        scheduler: "rr".to_owned(),
        flags: 0,
        persistence: None,
    }
}

fn server(at: &str, weight: u32) -> Server {
    Server {
        at: at.parse().unwrap(),
        weight,
    }
}

fn servers() {
    in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap();
        let mut four = service("10.96.0.1", 80, 6);
        let mut six = service("fd00::1", 53, 17);
        six.scheduler = "mh".to_owned();
        six.flags = SCHED2;
        let sctp = service("10.96.0.1", 132, 132);
        let refused = ipvs
            .run(&[
                Change::AddService(four.clone()),
                Change::AddServer(four.at, server("10.244.0.2:8080", 1)),
                Change::AddServer(four.at, server("10.244.0.3:8080", 1)),
                Change::AddService(six.clone()),
                Change::AddServer(six.at, server("[fd00::2]:5353", 1)),
                Change::AddService(sctp.clone()),
            ])
            .unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        four.persistence = Some(Duration::from_secs(10800));
        let refused = ipvs
            .run(&[
                Change::EditService(four.clone()),
                Change::EditServer(four.at, server("10.244.0.2:8080", 0)),
                Change::RemoveServer(four.at, "10.244.0.3:8080".parse().unwrap()),
            ])
            .unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        let mut found = ipvs.services().unwrap();
        found.sort_by_key(|service| service.at);
        assert_eq!(found, [four.clone(), sctp, six.clone()]);
        let real: Vec<Server> = ipvs
            .servers(four.at)
            .unwrap()
            .iter()
            .map(|state| state.server)
            .collect();
        assert_eq!(real, [server("10.244.0.2:8080", 0)]);
        assert!(ipvs.servers(four.at).unwrap()[0].is_idle());
        assert_eq!(
            ipvs.servers(six.at).unwrap()[0].server,
            server("[fd00::2]:5353", 1)
        );
        assert_eq!(ipvs.stats(four.at).unwrap().unwrap().connections, 0);
        let shown = sh("ipvsadm -S -n");
        for line in [
            "-A -t 10.96.0.1:80 -s rr -p 10800",
            "-a -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0",
            "-A -u [fd00::1]:53 -s mh -b mh-port",
            "-a -u [fd00::1]:53 -r [fd00::2]:5353 -m -w 1",
            "-A --sctp-service 10.96.0.1:132 -s rr",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} in {shown}");
        }
        let absent = Virtual { port: 81, ..four.at };
        assert!(ipvs.servers(absent).unwrap().is_empty());
        assert_eq!(ipvs.stats(absent).unwrap(), None);
        ipvs.flush().unwrap();
        assert!(ipvs.services().unwrap().is_empty());
    });
}

fn refusals() {
    in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap();
        let one = service("10.96.0.1", 80, 6);
        let mut strange = service("10.96.0.2", 80, 6);
        strange.scheduler = "no-such".to_owned();
        let gone: SocketAddr = "10.244.0.9:80".parse().unwrap();
        let mut changes = vec![
            Change::AddService(one.clone()),
            Change::AddService(one.clone()),
            Change::AddService(strange),
            Change::RemoveServer(one.at, gone),
        ];
        // More than one datagram's worth.
        changes.extend(
            (0..3000)
                .map(|n| Change::AddServer(one.at, server(&format!("10.1.{}.{}:80", n / 250, n % 250), 1))),
        );
        changes.push(Change::AddServer(one.at, server("10.1.0.0:80", 1)));
        let refused = ipvs.run(&changes).unwrap();
        let places: Vec<usize> = refused.iter().map(|refused| refused.index).collect();
        assert_eq!(places, [1, 2, 3, changes.len() - 1]);
        assert!(is_gone(Some(refused[2].errno)), "{refused:?}");
        assert_eq!(ipvs.servers(one.at).unwrap().len(), 3000);
    });
}

fn schedulers() {
    in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap();
        for scheduler in [
            "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh",
        ] {
            // not by the kernel itself: that can wait for ever for the removal of another case's namespace
            Modules::default().ensure(&format!("ip_vs_{scheduler}")).unwrap();
            let mut service = service("10.96.0.1", 80, 6);
            service.scheduler = scheduler.to_owned();
            let changes = [
                Change::AddService(service.clone()),
                Change::RemoveService(service.at),
            ];
            let refused = ipvs.run(&changes).unwrap();
            assert!(refused.is_empty(), "{scheduler}: {refused:?}");
        }
    });
}

fn timeouts() {
    in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap();
        let before = ipvs.timeouts().unwrap();
        let some = Timeouts {
            tcp: Duration::from_secs(1000),
            ..Timeouts::default()
        };
        ipvs.set_timeouts(&some).unwrap();
        let after = ipvs.timeouts().unwrap();
        assert_eq!(after.tcp, some.tcp);
        assert_eq!(
            (after.tcp_fin, after.udp),
            (before.tcp_fin, before.udp),
            "zero keeps what was there"
        );
        ipvs.set_timeouts(&before).unwrap();
    });
}

fn modules() {
    let modules = Modules::default();
    modules.ensure("ip_vs").unwrap();
    assert!(modules.present("ip_vs"));
    let error = modules.ensure("ip_vs_no_such").unwrap_err().to_string();
    assert!(error.contains("`modprobe ip_vs_no_such`"), "{error}");
}
