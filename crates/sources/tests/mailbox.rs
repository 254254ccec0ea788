//! The mailbox: the gate, coalescing, counters, trigger times, waking.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_model::{
    EndpointSlice, Event, Family, Node, ObjectRef, Service, ServiceName, Skipped, SliceName, Snapshot,
};
use ferry_sources::{Change, Kind, Mailbox, ObjectId, Trigger};
use proptest::prelude::*;

fn service(name: &str, cluster_ip: [u8; 4]) -> Change {
    let name = ServiceName::new("ns", name);
    let fact = Service::new(name.clone(), vec![cluster_ip.into()]);
    change(ObjectId::Service(name.clone()), Event::from(fact))
}

fn no_service(name: &str) -> Change {
    let name = ServiceName::new("ns", name);
    change(
        ObjectId::Service(name.clone()),
        Event::Service(name.clone(), None),
    )
}

fn slice(name: &str, service: &str) -> Change {
    let name = SliceName::new("ns", name);
    let fact = EndpointSlice {
        name: name.clone(),
        service: ServiceName::new("ns", service),
        family: Family::V4,
        ports: Vec::new(),
        endpoints: Vec::new(),
    };
    change(ObjectId::Slice(name.clone()), Event::from(fact))
}

fn no_slice(name: &str) -> Change {
    let name = SliceName::new("ns", name);
    change(ObjectId::Slice(name.clone()), Event::Slice(name.clone(), None))
}

fn change(id: ObjectId, event: Event) -> Change {
    Change {
        id,
        events: vec![event],
        skipped: Vec::new(),
        trigger: None,
        version: None,
    }
}

fn skipped(reason: &str) -> Skipped {
    Skipped {
        object: ObjectRef::Service(ServiceName::new("ns", "a")),
        part: Some("spec.ports[0].port".into()),
        reason: reason.into(),
    }
}

fn open_mailbox() -> Mailbox {
    let mailbox = Mailbox::new(&[]);
    assert!(mailbox.take().first);
    mailbox
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

#[test]
fn nothing_comes_out_before_every_kind_was_listed() {
    let mailbox = Mailbox::new(&Kind::ALL);
    mailbox.put(service("a", [10, 0, 0, 1]));
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        mailbox.listed(kind);
        assert!(mailbox.take().is_empty());
        assert!(!mailbox.wait(soon()));
    }
    assert_eq!(mailbox.missing(), [Kind::ServiceCidr]);
    assert!(!mailbox.is_open());
    mailbox.listed(Kind::ServiceCidr);
    assert!(mailbox.wait(None));
    let mail = mailbox.take();
    assert!(mail.first);
    assert_eq!(mail.events.len(), 1);
    assert!(!mailbox.take().first);
}

#[test]
fn an_empty_cluster_is_news_once() {
    let mailbox = Mailbox::new(&[Kind::Service]);
    mailbox.listed(Kind::Service);
    assert!(mailbox.wait(soon()));
    assert!(mailbox.take().first);
    assert!(!mailbox.wait(soon()));
}

#[test]
fn the_latest_state_of_an_object_is_kept() {
    let mailbox = open_mailbox();
    mailbox.put(service("a", [10, 0, 0, 1]));
    mailbox.put(service("a", [10, 0, 0, 2]));
    mailbox.put(no_service("b"));
    mailbox.put(slice("s", "a"));
    let counts = mailbox.counts();
    assert_eq!((counts.service_changes, counts.service_changes_pending), (3, 2));
    assert_eq!((counts.endpoint_changes, counts.endpoint_changes_pending), (1, 1));
    let mail = mailbox.take();
    assert_eq!(mail.events.len(), 3);
    assert!(matches!(mail.events[2], Event::Slice(..)), "services come first");
    assert!(mail.events.contains(&service("a", [10, 0, 0, 2]).events[0]));
    let counts = mailbox.counts();
    assert_eq!((counts.service_changes, counts.service_changes_pending), (3, 0));
    assert!(mailbox.take().is_empty());
}

#[test]
fn skipped_parts_are_told_once_and_forgotten_when_mended() {
    let mailbox = open_mailbox();
    let with = |reasons: &[&str]| Change {
        skipped: reasons.iter().map(|reason| skipped(reason)).collect(),
        ..service("a", [10, 0, 0, 1])
    };
    mailbox.put(with(&["x", "y"]));
    assert_eq!(mailbox.take().skipped, [skipped("x"), skipped("y")]);
    mailbox.put(with(&["y", "z"]));
    assert_eq!(mailbox.take().skipped, [skipped("z")]);
    assert_eq!(mailbox.skipped(), [skipped("y"), skipped("z")]);
    mailbox.put(with(&["w"]));
    mailbox.put(with(&[]));
    assert!(mailbox.take().skipped.is_empty(), "mended before anybody looked");
    assert_eq!(mailbox.skipped_count(), 0);
}

#[test]
fn trigger_times_follow_the_slices() {
    let start = SystemTime::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let a = ServiceName::new("ns", "a");
    let triggered = |name, time| Change {
        trigger: Some(Trigger {
            service: a.clone(),
            family: Some(Family::V4),
            time,
        }),
        ..slice(name, "a")
    };
    let mailbox = Mailbox::started_at(&[], start);
    let times = || -> Vec<SystemTime> {
        let triggers = mailbox.take().triggers.into_iter();
        triggers.map(|trigger| trigger.time).collect()
    };

    mailbox.put(triggered("s", at(1)));
    assert_eq!(times(), [at(1)]);
    assert!(times().is_empty());
    mailbox.put_all([
        triggered("s", at(2)),
        triggered("t", at(1)),
        triggered("s", at(3)),
    ]);
    assert_eq!(times(), [at(1), at(2), at(3)]);
    mailbox.put(triggered("s", start - Duration::from_secs(1)));
    mailbox.put(triggered("s", start));
    assert!(times().is_empty(), "not after the start");
    mailbox.put_all([triggered("s", at(1)), no_slice("s")]);
    assert!(times().is_empty(), "gone before it came into force");
    mailbox.put_all([triggered("s", at(1)), no_slice("s"), triggered("s", at(2))]);
    assert_eq!(times(), [at(2)]);
    mailbox.put(no_slice("unknown"));
    assert!(times().is_empty());
}

#[test]
fn the_node_is_known_before_the_gate_opens_and_after_its_deletion() {
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    assert!(!mailbox.node().listed);
    let waiter = {
        let mailbox = mailbox.clone();
        std::thread::spawn(move || mailbox.wait_for_node(None, |state| state.node.is_some()))
    };
    let node = Arc::new(Node {
        eligible: true,
        ..Node::default()
    });
    mailbox.put(change(
        ObjectId::Node("n".into()),
        Event::Node(Some(node.clone())),
    ));
    mailbox.listed(Kind::Node);
    assert_eq!(waiter.join().expect("the waiter ends").node, Some(node.clone()));
    mailbox.put(change(ObjectId::Node("n".into()), Event::Node(None)));
    let state = mailbox.wait_for_node(soon(), |state| state.node.is_none());
    assert_eq!((state.listed, state.node), (true, Some(node)));
}

#[test]
fn a_wake_ends_a_wait_also_when_it_came_before() {
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    mailbox.wake();
    assert!(mailbox.wait(None));
    assert!(!mailbox.wait(soon()), "each wake counts once");
    let waiter = {
        let mailbox = mailbox.clone();
        std::thread::spawn(move || mailbox.wait(None))
    };
    mailbox.wake();
    assert!(waiter.join().expect("the waiter ends"));
}

proptest! {
    /// However the events of different objects interleave and whenever the loop looks, the Snapshot is the same.
    #[test]
    fn any_order_of_objects_and_any_pace_of_the_loop_give_the_same_snapshot(
        script in prop::collection::vec((0..4usize, any::<bool>(), 0..3u8), 0..60),
        order in any::<u64>(),
        takes in prop::collection::vec(any::<bool>(), 60),
    ) {
        let change = |(object, present, version): (usize, bool, u8)| match (object, present) {
            (0 | 1, true) => service(["a", "b"][object], [10, 0, 0, version]),
            (0 | 1, false) => no_service(["a", "b"][object]),
            (_, true) => slice(["s", "t"][object - 2], ["a", "b", "c"][usize::from(version)]),
            (_, false) => no_slice(["s", "t"][object - 2]),
        };
        let mut in_order = Snapshot::default();
        script.iter().flat_map(|step| change(*step).events).for_each(|event| drop(in_order.apply(event)));

        // The order within one object is kept; between objects it is chosen by the bits of `order`.
        let mut queues: Vec<Vec<_>> = (0..4).map(|object| script.iter().filter(|s| s.0 == object).rev().collect()).collect();
        let mailbox = open_mailbox();
        let mut snapshot = Snapshot::default();
        let mut bits = order;
        for take in takes {
            bits = bits.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let full: Vec<usize> = (0..4).filter(|n| !queues[*n].is_empty()).collect();
            let Some(chosen) = full.get((bits >> 32) as usize % full.len().max(1)) else { break };
            if let Some(step) = queues[*chosen].pop() {
                mailbox.put(change(*step));
            }
            if take {
                mailbox.take().events.into_iter().for_each(|event| drop(snapshot.apply(event)));
            }
        }
        mailbox.take().events.into_iter().for_each(|event| drop(snapshot.apply(event)));
        prop_assert_eq!(snapshot, in_order);
    }
}

#[test]
fn the_objects_behind_a_mail_are_told_with_their_versions_from_the_second_on() {
    let mailbox = Mailbox::new(&[]);
    mailbox.put(service("first", [10, 0, 0, 1]));
    assert_eq!(mailbox.take().objects, []);
    mailbox.put(service("web", [10, 0, 0, 1]).at_version("7"));
    mailbox.put(service("web", [10, 0, 0, 2]).at_version("8"));
    mailbox.put(no_service("first").at_version("no number"));
    let mut objects = mailbox.take().objects;
    objects.sort_by(|a, b| a.id.cmp(&b.id));
    let told: Vec<(String, Option<u64>, bool)> = objects
        .into_iter()
        .map(|object| (object.id.to_string(), object.version, object.gone))
        .collect();
    assert_eq!(
        told,
        [
            ("Service ns/first".into(), None, true),
            ("Service ns/web".into(), Some(8), false)
        ]
    );
    assert_eq!(mailbox.take().objects, []);
}
