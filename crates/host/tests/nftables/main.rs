//! The nf_tables room against the real kernel and the real `nft`, each test in a namespace of its own.
#![allow(clippy::unwrap_used)]

mod sample;

use std::time::Duration;

use ferry_host::nftables::*;
use ferry_lab::netns::Namespace;

use sample::{Sample, name, sample};

const TABLE: &str = "kube-proxy";

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
            for chain in &sample.chains {
                let one = client.chain(Family::Ip, TABLE, &chain.name).unwrap();
                assert_eq!(one.as_ref(), Some(chain));
                let rules = client.rules(Family::Ip.number(), TABLE, &chain.name).unwrap();
                let of_chain = info.rules.iter().filter(|(c, _)| *c == chain.name);
                assert!(
                    rules
                        .iter()
                        .map(|(_, rule)| rule)
                        .eq(of_chain.map(|(_, rule)| rule))
                );
            }
            assert_eq!(client.chain(Family::Ip, TABLE, "absent").unwrap(), None);
            assert_eq!(client.rules(Family::Ip.number(), TABLE, "absent").unwrap(), []);
            for (set, written) in &sample.elements {
                let decl = sample.sets.iter().find(|decl| *decl.name == **set).unwrap();
                for element in written.iter().filter(|_| !decl.interval) {
                    let one = client.element(Family::Ip, TABLE, set, &element.key).unwrap();
                    assert_eq!(one.map(|(one, _)| one).as_ref(), Some(element));
                }
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
        "10.0.0.1 . tcp . 80 comment \"ns/web:http\" : 1:2",
        "1:2 : goto lb-2",
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
    assert_eq!(own.changed, [Family::Ip].into());

    namespace.sh("nft add table ip other").unwrap();
    assert!(next(&mut monitor).changed.is_empty());
    namespace.sh("nft flush chain ip kube-proxy services").unwrap();
    let foreign = next(&mut monitor);
    assert_eq!(foreign.generation.process, "nft");
    assert_ne!(foreign.port, client.port());
    assert_eq!(foreign.changed, [Family::Ip].into());
    namespace.sh("nft flush ruleset").unwrap();
    let flushed = next(&mut monitor);
    assert_eq!(flushed.changed, [Family::Ip].into());
    assert!(
        !namespace
            .run(|| Client::open().unwrap().has_table(Family::Ip, TABLE).unwrap())
            .unwrap()
    );
}
