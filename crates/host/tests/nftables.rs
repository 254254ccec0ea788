//! The nf_tables room against the real kernel and the real `nft`, each test in a namespace of its own.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use ferry_host::nftables::*;
use ferry_lab::netns::Namespace;

const TABLE: &str = "kube-proxy";

fn chain(name: &str, base: Option<BaseChain>) -> ChainDecl {
    ChainDecl {
        name: name.into(),
        base,
        comment: Some(format!("what {name} is for").into()),
    }
}

fn rule(expressions: Vec<Expr>, comment: Option<&str>) -> Rule {
    Rule {
        expressions,
        comment: comment.map(Into::into),
    }
}

fn set(name: &str, key: &[Field], data: Option<DataType>) -> SetDecl {
    SetDecl {
        key: key.into(),
        data,
        comment: Some(format!("all of {name}").into()),
        ..SetDecl::new(name)
    }
}

fn name(text: &str) -> Arc<str> {
    text.into()
}

/// A table with every kind of object that we write; the rules by chain with the text that `nft` must print.
struct Sample {
    chains: Vec<ChainDecl>,
    sets: Vec<SetDecl>,
    elements: Vec<(&'static str, Vec<Element>)>,
    rules: Vec<(&'static str, Rule, &'static str)>,
}

fn sample() -> Sample {
    let nat = |hook, priority| {
        Some(BaseChain {
            kind: ChainKind::Nat,
            hook,
            priority,
        })
    };
    let filter = |hook, priority| {
        Some(BaseChain {
            kind: ChainKind::Filter,
            hook,
            priority,
        })
    };
    let endpoint = || Some(DataType::Fields([Field::Ipv4, Field::Port].into()));
    let frontend = |last: u8| Key::concat(&[&[10, 0, 0, last], &[6], &80u16.to_be_bytes()]);
    let slot = |last: u8, slot: u32| {
        Key::concat(&[&[10, 0, 0, last], &[6], &80u16.to_be_bytes(), &slot.to_ne_bytes()])
    };
    let target = Value::Data(Data::concat(&[&[10, 1, 0, 1], &8080u16.to_be_bytes()]));
    let named = |key: Key, value: Value| Element {
        comment: Some("ns/web:http".into()),
        ..Element::new(key, value)
    };
    let bound = |bytes: [u8; 4], interval_end| Element {
        interval_end,
        ..Element::new(Key::of(&bytes), Value::None)
    };
    Sample {
        chains: vec![
            chain("nat-prerouting", nat(Hook::Prerouting, -100)),
            chain("nat-postrouting", nat(Hook::Postrouting, 100)),
            chain("filter-input", filter(Hook::Input, 0)),
            chain("filter-output", filter(Hook::Output, -110)),
            chain("services", None),
            chain("checks", None),
            chain("lb-2", None),
            chain("endpoint", None),
        ],
        sets: vec![
            set("cluster-ips", &[Field::Ipv4], None),
            set("protocols", &[Field::Proto], None),
            set(
                "service-ips",
                &[Field::Ipv4, Field::Proto, Field::Port],
                Some(DataType::Verdict),
            ),
            SetDecl {
                counter: true,
                ..set(
                    "endpoints",
                    &[Field::Ipv4, Field::Proto, Field::Port, Field::Number],
                    endpoint(),
                )
            },
            set("pick", &[Field::Number], Some(DataType::Verdict)),
            SetDecl {
                interval: true,
                ..set("ranges", &[Field::Ipv4], None)
            },
            SetDecl {
                dynamic: true,
                ..set("clients", &[Field::Ipv4], None)
            },
        ],
        elements: vec![
            (
                "cluster-ips",
                vec![Element::new(Key::of(&[10, 0, 0, 1]), Value::None)],
            ),
            (
                "protocols",
                [6, 17, 132]
                    .map(|proto| Element::new(Key::of(&[proto]), Value::None))
                    .into(),
            ),
            (
                "service-ips",
                vec![
                    named(frontend(1), Value::Verdict(Verdict::Goto(name("lb-2")))),
                    named(frontend(2), Value::Verdict(Verdict::Drop)),
                ],
            ),
            (
                "endpoints",
                vec![
                    Element::new(slot(1, 0), target.clone()),
                    Element::new(slot(1, 65537), target),
                ],
            ),
            (
                "pick",
                vec![Element::new(
                    Key::of(&1u32.to_ne_bytes()),
                    Value::Verdict(Verdict::Goto(name("endpoint"))),
                )],
            ),
            (
                "ranges",
                vec![
                    bound([10, 0, 0, 0], false),
                    bound([11, 0, 0, 0], true),
                    bound([192, 168, 1, 0], false),
                    bound([192, 168, 1, 128], true),
                    bound([240, 0, 0, 0], false),
                ],
            ),
        ],
        rules: rules(),
    }
}

fn rules() -> Vec<(&'static str, Rule, &'static str)> {
    let (r0, r1, r2, r3) = (Register(0), Register(1), Register(2), Register(3));
    let daddr = |to| Expr::Payload {
        base: PayloadBase::Network,
        offset: 16,
        length: 4,
        to,
    };
    let saddr = |to, length| Expr::Payload {
        base: PayloadBase::Network,
        offset: 12,
        length,
        to,
    };
    let dport = |to| Expr::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        length: 2,
        to,
    };
    let proto = |to| Expr::Meta {
        key: MetaKey::L4Proto,
        to,
    };
    let bytes = |value: u32| -> Box<[u8]> { value.to_ne_bytes().into() };
    let compare = |op, data: &[u8]| Expr::Compare {
        op,
        from: r0,
        data: data.into(),
    };
    let mask = |mask: u32, xor: u32| Expr::Bitwise {
        from: r0,
        to: r0,
        mask: bytes(mask),
        xor: bytes(xor),
    };
    let mark = Expr::Meta {
        key: MetaKey::Mark,
        to: r0,
    };
    let set_mark = Expr::SetMeta {
        key: MetaKey::Mark,
        from: r0,
    };
    let interface = |text: &str, length: usize| {
        let mut data = text.as_bytes().to_vec();
        data.resize(length, 0);
        data
    };
    let local = bytes(2);
    let goto = |chain: &str| Expr::Verdict(Verdict::Goto(name(chain)));
    vec![
        (
            "nat-prerouting",
            rule(vec![Expr::Verdict(Verdict::Jump(name("services")))], None),
            "jump services",
        ),
        (
            "nat-postrouting",
            rule(
                vec![
                    mark.clone(),
                    mask(0x4000, 0),
                    compare(Op::NotEqual, &bytes(0)),
                    mark.clone(),
                    mask(u32::MAX, 0x4000),
                    set_mark.clone(),
                    Expr::Masquerade { fully_random: true },
                ],
                Some("masquerade"),
            ),
            "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random comment \"masquerade\"",
        ),
        (
            "filter-input",
            rule(
                vec![
                    Expr::Ct {
                        key: CtKey::State,
                        to: r0,
                    },
                    mask(8, 0),
                    compare(Op::NotEqual, &bytes(0)),
                    Expr::Verdict(Verdict::Jump(name("checks"))),
                ],
                None,
            ),
            "ct state new jump checks",
        ),
        (
            "filter-output",
            rule(
                vec![
                    daddr(r0),
                    Expr::Lookup {
                        set: name("cluster-ips"),
                        key: r0,
                        inverted: false,
                    },
                    Expr::Reject { code: 3 },
                ],
                None,
            ),
            "ip daddr @cluster-ips reject",
        ),
        (
            "filter-output",
            rule(
                vec![
                    saddr(r0, 4),
                    Expr::Lookup {
                        set: name("ranges"),
                        key: r0,
                        inverted: true,
                    },
                    Expr::Verdict(Verdict::Drop),
                ],
                None,
            ),
            "ip saddr != @ranges drop",
        ),
        (
            "services",
            rule(
                vec![
                    saddr(r0, 1),
                    compare(Op::NotEqual, &[10]),
                    mark.clone(),
                    mask(!0x4000, 0x4000),
                    set_mark,
                ],
                None,
            ),
            "ip saddr != 10.0.0.0/8 meta mark set meta mark | 0x00004000",
        ),
        (
            "services",
            rule(
                vec![
                    Expr::Meta {
                        key: MetaKey::InputName,
                        to: r0,
                    },
                    compare(Op::Equal, &interface("br-x", 16)),
                    goto("lb-2"),
                ],
                None,
            ),
            "iifname \"br-x\" goto lb-2",
        ),
        (
            "services",
            rule(
                vec![
                    Expr::Meta {
                        key: MetaKey::InputName,
                        to: r0,
                    },
                    compare(Op::NotEqual, &interface("veth", 4)),
                    goto("lb-2"),
                ],
                None,
            ),
            "iifname != \"veth*\" goto lb-2",
        ),
        (
            "services",
            rule(
                vec![
                    Expr::FibType {
                        flags: FibFlags::Source,
                        to: r0,
                    },
                    compare(Op::Equal, &local),
                    goto("lb-2"),
                ],
                None,
            ),
            "fib saddr type local goto lb-2",
        ),
        (
            "services",
            rule(
                vec![
                    daddr(r0),
                    proto(r1),
                    dport(r2),
                    Expr::LookupVerdict {
                        set: name("service-ips"),
                        key: r0,
                    },
                ],
                None,
            ),
            "ip daddr . meta l4proto . th dport vmap @service-ips",
        ),
        (
            "lb-2",
            rule(
                vec![
                    proto(r0),
                    Expr::Lookup {
                        set: name("protocols"),
                        key: r0,
                        inverted: false,
                    },
                    daddr(r0),
                    proto(r1),
                    dport(r2),
                    Expr::Numgen {
                        modulus: 2,
                        offset: 65536,
                        to: r3,
                    },
                    Expr::LookupData {
                        set: name("endpoints"),
                        key: r0,
                        to: r0,
                    },
                    Expr::Dnat {
                        family: 2,
                        address: r0,
                        port: r1,
                    },
                ],
                None,
            ),
            "meta l4proto @protocols dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 offset 65536 map @endpoints",
        ),
        (
            "lb-2",
            rule(
                vec![
                    Expr::Numgen {
                        modulus: 2,
                        offset: 0,
                        to: r0,
                    },
                    Expr::LookupVerdict {
                        set: name("pick"),
                        key: r0,
                    },
                ],
                None,
            ),
            "numgen random mod 2 vmap @pick",
        ),
        (
            "endpoint",
            rule(
                vec![
                    saddr(r0, 4),
                    Expr::Update {
                        set: name("clients"),
                        key: r0,
                        timeout: 10_800_000,
                    },
                ],
                None,
            ),
            "update @clients { ip saddr timeout 3h }",
        ),
        (
            "endpoint",
            rule(
                vec![
                    proto(r0),
                    compare(Op::Equal, &[6]),
                    Expr::Load {
                        to: r0,
                        data: [10, 1, 0, 1].into(),
                    },
                    Expr::Load {
                        to: r1,
                        data: 8080u16.to_be_bytes().into(),
                    },
                    Expr::Dnat {
                        family: 2,
                        address: r0,
                        port: r1,
                    },
                ],
                None,
            ),
            "meta l4proto tcp dnat to 10.1.0.1:8080",
        ),
    ]
}

fn write(client: &mut Client, sample: &Sample) {
    let mut batch = Batch::new(Family::Ip, TABLE, None);
    batch.add_table("rules for kube-proxy");
    sample.chains.iter().for_each(|chain| batch.add_chain(chain));
    sample.sets.iter().for_each(|set| batch.add_set(set));
    for (set, elements) in &sample.elements {
        batch.add_elements(&name(set), elements);
    }
    for (chain, rule, _) in &sample.rules {
        batch.add_rules(&name(chain), [rule]);
    }
    client.commit(batch).unwrap();
}

#[test]
fn what_is_written_reads_back_the_same() {
    let namespace = Namespace::new("nft").unwrap();
    namespace
        .run(|| {
            let (mut client, sample) = (Client::open().unwrap(), sample());
            write(&mut client, &sample);
            let info = client.table(Family::Ip, TABLE).unwrap();
            assert_eq!(info.foreign, []);
            assert_eq!(info.chains, sample.chains);
            assert_eq!(info.sets, sample.sets);
            for chain in &sample.chains {
                let written: Vec<_> = sample
                    .rules
                    .iter()
                    .filter(|(c, ..)| **c == *chain.name)
                    .map(|r| &r.1)
                    .collect();
                let read: Vec<_> = info
                    .rules
                    .iter()
                    .filter(|(c, _)| *c == chain.name)
                    .map(|r| &r.1)
                    .collect();
                assert_eq!(read, written, "{}", chain.name);
            }
            for (set, written) in &sample.elements {
                let mut read = client
                    .elements(Family::Ip, TABLE, set, Vec::new, |all, found| {
                        all.push(found.unwrap().0)
                    })
                    .unwrap();
                read.sort_by_key(|element| (element.key, !element.interval_end));
                assert_eq!(&read, written, "{set}");
            }
        })
        .unwrap();
}

#[test]
fn nft_lists_it_as_meant_and_loads_it_again() {
    let namespace = Namespace::new("nft").unwrap();
    let sample = sample();
    namespace
        .run(|| write(&mut Client::open().unwrap(), &sample))
        .unwrap();
    let listed = namespace.sh("nft list ruleset").unwrap();
    for (chain, _, text) in &sample.rules {
        assert!(
            listed.lines().any(|line| line.trim() == *text),
            "{chain}: {text}\nis not in\n{listed}"
        );
    }
    for text in [
        "comment \"rules for kube-proxy\"",
        "comment \"all of cluster-ips\"",
        "comment \"what services is for\"",
        "type ipv4_addr . inet_proto . inet_service : verdict",
        "typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport",
        "10.0.0.1 . tcp . 80 comment \"ns/web:http\" : goto lb-2",
        "10.0.0.1 . tcp . 80 . 65537 counter packets 0 bytes 0 : 10.1.0.1 . 8080",
        "elements = { 10.0.0.0/8, 192.168.1.0/25,",
        "240.0.0.0/4 }",
        "type nat hook prerouting priority dstnat; policy accept;",
    ] {
        assert!(listed.contains(text), "{text}\nis not in\n{listed}");
    }
    let again = namespace
        .sh(r#"rules=$(nft list ruleset) && nft flush ruleset && echo "$rules" | nft -f - && nft list ruleset"#)
        .unwrap();
    assert_eq!(again, listed);
}

#[test]
fn a_refused_transaction_names_the_object() {
    let namespace = Namespace::new("nft").unwrap();
    namespace
        .run(|| {
            let mut client = Client::open().unwrap();
            write(&mut client, &sample());
            let blamed = |client: &mut Client, fill: &dyn Fn(&mut Batch)| {
                let mut batch = Batch::new(Family::Ip, TABLE, None);
                fill(&mut batch);
                match client.commit(batch) {
                    Err(Error::Refused { object, .. }) => object,
                    other => panic!("{other:?}"),
                }
            };
            let missing = blamed(&mut client, &|batch| {
                batch.flush_chain(&name("services"));
                batch.delete_chain(&name("missing"));
            });
            assert_eq!(missing, Object::Chain(name("missing")));
            assert_eq!(missing.to_string(), "chain missing");
            let in_use = blamed(&mut client, &|batch| batch.delete_set(&name("cluster-ips")));
            assert_eq!(in_use, Object::Set(name("cluster-ips")));
            let bad = Key::of(&[10, 0, 0, 77]);
            let element = blamed(&mut client, &|batch| {
                let keys = [Key::of(&[10, 0, 0, 1]), bad].map(|key| Element::new(key, Value::None));
                batch.delete_elements(&name("cluster-ips"), &keys);
            });
            assert_eq!(
                element,
                Object::Elements {
                    set: name("cluster-ips"),
                    key: Some(bad)
                }
            );
            let rules = client.table(Family::Ip, TABLE).unwrap().rules;
            assert!(
                rules.iter().any(|(chain, _)| &**chain == "services"),
                "the refused batch did nothing"
            );
        })
        .unwrap();
}

#[test]
fn a_transaction_for_another_generation_does_nothing() {
    let namespace = Namespace::new("nft").unwrap();
    namespace
        .run(|| {
            let mut client = Client::open().unwrap();
            write(&mut client, &sample());
            let generation = client.generation().unwrap().id;
            let add = |client: &mut Client, generation| {
                let mut batch = Batch::new(Family::Ip, TABLE, Some(generation));
                batch.add_elements(
                    &name("cluster-ips"),
                    &[Element::new(Key::of(&[10, 0, 0, 9]), Value::None)],
                );
                client.commit(batch)
            };
            add(&mut client, generation).unwrap();
            assert_eq!(client.generation().unwrap().id, Generation::next(generation));
            assert!(matches!(add(&mut client, generation), Err(Error::Outdated)));
        })
        .unwrap();
}

#[test]
fn ten_thousand_elements_in_one_transaction() {
    let namespace = Namespace::new("nft").unwrap();
    namespace
        .run(|| {
            let mut client = Client::open().unwrap();
            write(&mut client, &sample());
            let keys = |range: std::ops::Range<u32>| -> Vec<Element> {
                range
                    .map(|n| Element::new(Key::of(&(0x0a00_0002 + n).to_be_bytes()), Value::None))
                    .collect()
            };
            let mut batch = Batch::new(Family::Ip, TABLE, None);
            batch.add_elements(&name("cluster-ips"), &keys(0..10_000));
            assert_eq!(batch.elements(), 10_000);
            client.commit(batch).unwrap();
            let mut batch = Batch::new(Family::Ip, TABLE, None);
            batch.delete_elements(&name("cluster-ips"), &keys(5_000..10_000));
            client.commit(batch).unwrap();
            let count = client
                .elements(Family::Ip, TABLE, "cluster-ips", || 0, |count, _| *count += 1)
                .unwrap();
            assert_eq!(count, 5_001);
        })
        .unwrap();
}

#[test]
fn the_monitor_tells_who_did_what() {
    let namespace = Namespace::new("nft").unwrap();
    let (mut client, mut monitor) = namespace
        .run(|| (Client::open().unwrap(), Monitor::open(TABLE).unwrap()))
        .unwrap();
    monitor.subscribe().unwrap();
    write(&mut client, &sample());
    let next = |monitor: &mut Monitor| {
        let mut seen = Vec::new();
        assert!(ferry_lab::wait_until(Duration::from_secs(20), || {
            monitor
                .receive(Duration::from_millis(50), |transaction| seen.push(transaction))
                .unwrap();
            !seen.is_empty()
        }));
        seen.remove(0)
    };
    let own = next(&mut monitor);
    assert_eq!(own.port, client.port());
    assert_eq!(own.generation, client.generation().unwrap());
    assert!(!own.changes.is_empty());

    namespace.sh("nft add table ip other").unwrap();
    assert_eq!(next(&mut monitor).changes, []);
    namespace.sh("nft flush chain ip kube-proxy services").unwrap();
    let foreign = next(&mut monitor);
    assert_eq!(foreign.generation.process, "nft");
    assert_ne!(foreign.port, client.port());
    assert_eq!(&*foreign.changes[0].what, "rule deleted from chain services");
    namespace.sh("nft flush ruleset").unwrap();
    let flushed = next(&mut monitor);
    assert!(flushed.changes.iter().all(|change| change.family == Family::Ip));
    assert!(!flushed.changes.is_empty());
    assert!(
        !namespace
            .run(|| Client::open().unwrap().has_table(Family::Ip, TABLE).unwrap())
            .unwrap()
    );
}
