//! Lists, of every kind of server.

use ferry_lab::api::{Faults, Protobuf};
use serde_json::json;

use crate::rig::*;

#[test]
fn a_cluster_is_listed_as_a_stream_and_followed() {
    let server = server(&["a", "b"]);
    server.apply([slice("a-1", "a", &["10.1.0.1"])]).unwrap();
    let mut rig = Rig::new(server);
    rig.until_services(&["a", "b"]);
    assert_eq!(rig.endpoints("a"), ["10.1.0.1"]);
    let node = rig.snapshot.node().expect("a node");
    assert_eq!((node.addresses.len(), node.zone.as_deref()), (2, Some("zone-a")));
    assert_eq!(rig.snapshot.service_cidrs().len(), 2);

    rig.server
        .apply([service("c"), slice("a-1", "a", &["10.1.0.2", "10.1.0.3"])])
        .unwrap();
    rig.server.delete([&service("b")]).unwrap();
    rig.until("the changes", |rig| {
        rig.services() == ["a", "c"] && rig.endpoints("a").len() == 2
    });

    assert_eq!(rig.asked(SERVICES, &[STREAMED]), 1);
    assert_eq!(rig.asked(SERVICES, &[]), 1, "{:#?}", rig.server.requests());
    assert!(
        rig.server
            .requests()
            .iter()
            .all(|seen| seen.user_agent == "ferry/test")
    );
    assert!(rig.problems().is_empty());
}

#[test]
fn selectors_turn_foreign_and_headless_services_into_deletes() {
    let mut rig = Rig::new(server(&["a", "b", "c"]));
    rig.until_services(&["a", "b", "c"]);
    let mut foreign = service("a");
    foreign["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    let mut headless = service("b");
    headless["spec"]["clusterIP"] = "None".into();
    rig.server.apply([foreign, headless]).unwrap();
    rig.until_services(&["c"]);
}

#[test]
fn a_server_without_streaming_is_listed_in_one_answer_from_its_cache() {
    let names: Vec<String> = (0..1200).map(|n| format!("s{n:04}")).collect();
    let server = server(&names.iter().map(String::as_str).collect::<Vec<_>>());
    server.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    let mut rig = Rig::new(server);
    rig.until("all services", |rig| rig.services().len() == 1200);
    rig.server.apply([service("x")]).unwrap();
    rig.until("one more", |rig| rig.services().len() == 1201);
    assert_eq!(rig.asked(SERVICES, &[STREAMED]), 1);
    assert_eq!(rig.asked(SERVICES, &["&resourceVersion=0"]), 1);
    assert_eq!(rig.asked(SERVICES, &["watch=true", "&resourceVersion="]), 1);
    assert_eq!(rig.asked(SERVICES, &[]), 3, "{:#?}", rig.server.requests());

    // What is listed later must not be older than what was seen before.
    rig.server.wait_for_watches(4).unwrap();
    rig.server.expire();
    rig.until("another list", |rig| rig.lists(SERVICES) == 2);
    assert_eq!(rig.asked(SERVICES, &["&resourceVersion=0"]), 1);
}

/// The rate of requests bounds how many there are, not how large a cluster may be.
#[test]
fn the_first_lists_do_not_wait_for_the_rate_limit() {
    let names: Vec<String> = (0..6000).map(|n| format!("s{n:04}")).collect();
    let server = server(&names.iter().map(String::as_str).collect::<Vec<_>>());
    server.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    let mut rig = Rig::with_rate(server, quick(), 1.0, 12);
    rig.until("all services", |rig| rig.services().len() == 6000);
    assert!(rig.server.requests().len() <= 12, "{:#?}", rig.server.requests());
}

#[test]
fn a_server_whose_etcd_is_too_old_for_streaming_is_listed() {
    let server = server(&["a"]);
    server.set_faults(Faults {
        streaming_lists_code: Some(500),
        ..Faults::default()
    });
    let mut rig = Rig::new(server);
    rig.until_services(&["a"]);
    assert!(rig.problems().is_empty());
    assert_eq!(rig.lists(SERVICES), 1);
    // After its upgrade it is asked again, once there is a reason to list.
    rig.server.wait_for_watches(4).unwrap();
    rig.server.set_faults(Faults::default());
    rig.server.expire();
    rig.until("a streamed list", |rig| rig.asked(SERVICES, &[STREAMED]) == 2);
    rig.server.apply([service("b")]).unwrap();
    rig.until_services(&["a", "b"]);
    assert_eq!(rig.lists(SERVICES), 1);
}

#[test]
fn clusters_without_endpoint_slices_are_followed_by_their_endpoints() {
    let server = server(&["a", "b"]);
    server
        .apply([
            endpoints("a", &[&["10.1.0.1"], &["10.1.0.2"]]),
            endpoints("b", &[&["10.1.0.9"]]),
        ])
        .unwrap();
    let old = Faults {
        missing: ["endpointslices".to_owned()].into(),
        ..Faults::default()
    };
    server.set_faults(old.clone());
    let mut rig = Rig::new(server);
    rig.until_services(&["a", "b"]);
    assert_eq!(rig.endpoints("a"), ["10.1.0.1", "10.1.0.2"]);

    rig.server.apply([endpoints("a", &[&["10.1.0.3"]])]).unwrap();
    rig.server.delete([&endpoints("b", &[])]).unwrap();
    rig.until("the changes", |rig| {
        rig.endpoints("a") == ["10.1.0.3"] && rig.endpoints("b").is_empty()
    });

    // The cluster learns about slices.
    rig.server.apply([slice("a-1", "a", &["10.1.0.4"])]).unwrap();
    rig.server.set_faults(Faults::default());
    rig.server.wait_for_watches(4).unwrap();
    rig.server.cut_watches();
    rig.until("slices", |rig| rig.endpoints("a") == ["10.1.0.4"]);
}

#[test]
fn clusters_without_service_cidrs_are_served() {
    let gone = Faults {
        missing: ["servicecidrs".to_owned()].into(),
        ..Faults::default()
    };
    let forbidden = Faults {
        forbidden: ["servicecidrs".to_owned()].into(),
        ..Faults::default()
    };
    for faults in [gone, forbidden] {
        let server = server(&["a"]);
        server.set_faults(faults);
        let mut rig = Rig::new(server);
        rig.until_services(&["a"]);
        assert!(rig.snapshot.service_cidrs().is_empty());
        rig.server.set_faults(Faults::default());
        rig.until("the networks", |rig| rig.snapshot.service_cidrs().len() == 2);
    }
}

#[test]
fn a_bad_object_does_not_spoil_the_others() {
    for no_streaming_lists in [false, true] {
        let server = server(&["a", "c"]);
        server.set_faults(Faults {
            no_streaming_lists,
            ..Faults::default()
        });
        let mut unreadable = service("b");
        unreadable["spec"]["ports"] = json!([{"port": "eighty"}]);
        let mut half_bad = service("d");
        half_bad["spec"]["externalIPs"] = json!(["192.0.2.1", "nonsense"]);
        server.apply([unreadable, half_bad]).unwrap();
        let mut rig = Rig::new(server);
        rig.until_services(&["a", "c", "d"]);
        let skipped: Vec<String> = rig.mailbox.skipped().iter().map(ToString::to_string).collect();
        assert_eq!(skipped.len(), 2, "{skipped:?}");
        assert!(
            skipped[0].starts_with("Service shop/b: spec.ports[0].port: invalid type: string \"eighty\"")
        );
        assert_eq!(
            skipped[1],
            "Service shop/d: spec.externalIPs[1]: \"nonsense\" is not an IP address"
        );

        rig.server.apply([service("b"), service("d")]).unwrap();
        rig.until_services(&["a", "b", "c", "d"]);
        rig.until("nothing skipped", |rig| rig.mailbox.skipped_count() == 0);

        let mut unreadable = service("a");
        unreadable["spec"]["clusterIP"] = json!(7);
        rig.server.apply([unreadable]).unwrap();
        rig.until("something skipped", |rig| rig.mailbox.skipped_count() == 1);
        assert_eq!(
            rig.services(),
            ["a", "b", "c", "d"],
            "what cannot be read stays as it was"
        );
        rig.server.delete([&service("a")]).unwrap();
        rig.until_services(&["b", "c", "d"]);
        assert_eq!(rig.mailbox.skipped_count(), 0);
    }
}

/// A Service that an API server could never have stored: of many small parts, or of one long text.
fn huge(name: &str, text: Text) -> serde_json::Value {
    let mut service = service(name);
    service["metadata"]["annotations"] = match text {
        Text::Long => json!({"x": "y".repeat(9 << 20)}),
        Text::Many => (0..400_000)
            .map(|n| (format!("x-{n:06}"), "annotation".into()))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    };
    service
}

#[derive(Clone, Copy)]
enum Text {
    Long,
    Many,
}

#[test]
fn an_object_that_is_too_large_harms_only_itself() {
    for no_streaming_lists in [false, true] {
        let server = server(&["a", "b"]);
        // In protobuf there is no looking past a single long text.
        server.set_faults(Faults {
            no_streaming_lists,
            protobuf: Some(Protobuf::Ignored),
            ..Faults::default()
        });
        server
            .apply([huge("c", Text::Many), huge("d", Text::Long)])
            .unwrap();
        let mut rig = Rig::new(server);
        // What is long but not in use is no reason to skip anything.
        rig.until_services(&["a", "b", "d"]);
        let skipped: Vec<String> = rig.mailbox.skipped().iter().map(ToString::to_string).collect();
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert!(
            skipped[0].starts_with("Service shop/c: is larger than 8 MiB"),
            "{skipped:?}"
        );
        assert!(rig.problems().is_empty());

        // In a watch: it stays as it was, and what comes after it is taken.
        rig.server.wait_for_watches(4).unwrap();
        rig.server.apply([huge("a", Text::Many), service("e")]).unwrap();
        rig.until_services(&["a", "b", "d", "e"]);
        assert_eq!(rig.mailbox.skipped_count(), 2);
        rig.server.delete([&service("b")]).unwrap();
        rig.server.apply([service("c")]).unwrap();
        rig.until_services(&["a", "c", "d", "e"]);
        assert_eq!(rig.mailbox.skipped_count(), 1);
        assert!(rig.problems().is_empty());

        // In a later list it stays as it was, too.
        rig.server.expire();
        rig.server.apply([service("f")]).unwrap();
        rig.until_services(&["a", "c", "d", "e", "f"]);
    }
}
