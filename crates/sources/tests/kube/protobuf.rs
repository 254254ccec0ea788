//! Protobuf is asked for first, and JSON where it is of no use.

use ferry_lab::api::{Faults, Protobuf};
use serde_json::json;

use crate::rig::*;

/// How many requests for services asked for protobuf, and how many for nothing but JSON.
fn asked_for(rig: &Rig) -> (usize, usize) {
    let requests = rig.server.requests();
    let services = requests.iter().filter(|seen| seen.path.starts_with(SERVICES));
    let (protobuf, json): (Vec<_>, Vec<_>) = services.partition(|seen| seen.accept.contains("protobuf"));
    (protobuf.len(), json.len())
}

#[test]
fn every_kind_is_followed_in_protobuf() {
    for no_streaming_lists in [false, true] {
        let server = server(&["a", "b"]);
        server.apply([slice("a-1", "a", &["10.1.0.1"])]).unwrap();
        server.set_faults(Faults {
            no_streaming_lists,
            ..Faults::default()
        });
        let mut rig = Rig::new(server);
        rig.until_services(&["a", "b"]);
        assert_eq!(rig.endpoints("a"), ["10.1.0.1"]);
        assert_eq!(rig.snapshot.node().map(|node| node.addresses.len()), Some(2));
        assert_eq!(rig.snapshot.service_cidrs().len(), 2);
        rig.server.wait_for_watches(4).unwrap();
        rig.server.delete([&service("b")]).unwrap();
        rig.server.apply([slice("a-1", "a", &["10.1.0.2"])]).unwrap();
        rig.until("the changes", |rig| {
            rig.services() == ["a"] && rig.endpoints("a") == ["10.1.0.2"]
        });
        // The end of a version, a list, and the next watch.
        rig.server.expire();
        rig.server.apply([service("c")]).unwrap();
        rig.until_services(&["a", "c"]);
        let accepts = |seen: &ferry_lab::api::Seen| {
            seen.accept == "application/vnd.kubernetes.protobuf, application/json;q=0.9"
        };
        assert!(rig.server.requests().iter().all(accepts));
        assert!(rig.problems().is_empty());
    }
}

#[test]
fn a_server_without_protobuf_is_followed_in_json() {
    for (protobuf, switches) in [
        (Protobuf::Ignored, false),
        (Protobuf::Refused, true),
        (Protobuf::Pretended, true),
    ] {
        for no_streaming_lists in [false, true] {
            let server = server(&["a", "b"]);
            server.set_faults(Faults {
                no_streaming_lists,
                protobuf: Some(protobuf),
                ..Faults::default()
            });
            let mut rig = Rig::new(server);
            rig.until_services(&["a", "b"]);
            rig.server.wait_for_watches(4).unwrap();
            rig.server.apply([service("c")]).unwrap();
            rig.until_services(&["a", "b", "c"]);
            let (_, json) = asked_for(&rig);
            assert_eq!(json > 0, switches, "{protobuf:?}");
            assert!(rig.problems().is_empty(), "{protobuf:?}: {:?}", rig.problems());
        }
    }
}

#[test]
fn an_object_that_has_no_protobuf_makes_its_kind_json() {
    let mut rig = Rig::new(server(&["a"]));
    rig.until_services(&["a"]);
    rig.server.wait_for_watches(4).unwrap();
    let mut odd = service("b");
    odd["spec"]["ports"] = json!([{"port": "http"}]);
    rig.server.apply([odd, service("c")]).unwrap();
    rig.until_services(&["a", "c"]);
    assert_eq!(rig.mailbox.skipped_count(), 1);
    rig.server.apply([service("b")]).unwrap();
    rig.until_services(&["a", "b", "c"]);
}

#[test]
fn an_object_that_is_too_large_stays_as_it_was_and_harms_nothing_else() {
    let mut rig = Rig::new(server(&["a", "b"]));
    rig.until_services(&["a", "b"]);
    rig.server.wait_for_watches(4).unwrap();
    let mut large = service("a");
    large["spec"]["selector"] = json!({"x": "y".repeat(9 << 20)});
    rig.server.apply([large, service("c")]).unwrap();
    rig.until_services(&["a", "b", "c"]);
    let skipped: Vec<String> = rig.mailbox.skipped().iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        ["Service shop/a: is larger than 8 MiB, or nested too deep; it stays as it was"]
    );
    // The same in a list.
    rig.server.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    rig.server.expire();
    rig.server.apply([service("d")]).unwrap();
    rig.until_services(&["a", "b", "c", "d"]);
    assert_eq!(rig.mailbox.skipped_count(), 1);
    rig.server.apply([service("a")]).unwrap();
    rig.until("it is small again", |rig| rig.mailbox.skipped_count() == 0);
    assert!(rig.problems().is_empty());
}
