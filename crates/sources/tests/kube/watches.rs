//! Watches, and what was missed between two of them.

use std::time::Duration;

use ferry_lab::api::Faults;
use ferry_model::ServiceName;
use ferry_sources::kube::Timing;

use crate::rig::*;

#[test]
fn cut_watches_are_resumed_where_they_ended() {
    let mut rig = Rig::new(server(&["a"]));
    rig.until_services(&["a"]);
    for n in 0..5 {
        rig.server.wait_for_watches(4).unwrap();
        rig.server.cut_watches();
        rig.server.apply([service(&format!("b{n}"))]).unwrap();
        rig.until("the change after the cut", |rig| rig.services().len() == n + 2);
    }
    assert_eq!(rig.asked(SERVICES, &[STREAMED]), 1, "no new list");
    assert!(rig.asked(SERVICES, &["watch=true", "resourceVersion="]) >= 5);
    assert!(rig.problems().is_empty());
}

#[test]
fn watches_that_end_after_every_event_lose_nothing() {
    let server = server(&["a"]);
    let mut rig = Rig::new(server);
    rig.until_services(&["a"]);
    rig.server.wait_for_watches(4).unwrap();
    rig.server.set_faults(Faults {
        cut_after: Some(1),
        ..Faults::default()
    });
    rig.server.cut_watches();
    for n in 0..20 {
        rig.server
            .apply([
                service(&format!("b{n:02}")),
                slice("s", "a", &[&format!("10.1.0.{n}")]),
            ])
            .unwrap();
    }
    rig.until("everything", |rig| {
        rig.services().len() == 21 && rig.endpoints("a") == ["10.1.0.19"]
    });
}

/// Deletes and changes that happened while nobody looked, found by a new list.
fn missed_changes(streaming: bool) {
    let server = server(&["gone", "same", "changed"]);
    server.apply([slice("s", "same", &["10.1.0.1"])]).unwrap();
    let off = Faults {
        no_streaming_lists: !streaming,
        ..Faults::default()
    };
    server.set_faults(off.clone());
    let mut rig = Rig::new(server);
    rig.until_services(&["changed", "gone", "same"]);
    rig.server.wait_for_watches(4).unwrap();
    let before = rig.mailbox.counts();

    rig.server.pause();
    let mut changed = service("changed");
    changed["spec"]["clusterIP"] = "10.96.200.1".into();
    rig.server.apply([changed, service("new")]).unwrap();
    rig.server.delete([&service("gone")]).unwrap();
    rig.server.expire();
    rig.server.resume().unwrap();

    rig.until_services(&["changed", "new", "same"]);
    let changed = rig
        .snapshot
        .service(&ServiceName::new("shop", "changed"))
        .expect("there");
    assert_eq!(changed.cluster_ips[0].to_string(), "10.96.200.1");
    assert_eq!(rig.endpoints("same"), ["10.1.0.1"]);
    rig.server.wait_for_watches(4).unwrap();
    let after = rig.mailbox.counts();
    assert_eq!(
        after.service_changes - before.service_changes,
        3,
        "what is the same is no change"
    );
    assert_eq!(after.endpoint_changes, before.endpoint_changes);
}

#[test]
fn after_410_a_streamed_list_tells_what_was_missed() {
    missed_changes(true);
}

#[test]
fn after_410_a_paged_list_tells_what_was_missed() {
    missed_changes(false);
}

#[test]
fn an_expiry_in_the_stream_leads_to_a_new_list() {
    let mut rig = Rig::new(server(&["a"]));
    rig.until_services(&["a"]);
    rig.server.wait_for_watches(4).unwrap();
    rig.server.expire();
    rig.until("a second list", |rig| rig.asked(SERVICES, &[STREAMED]) == 2);
    rig.server.apply([service("b")]).unwrap();
    rig.until_services(&["a", "b"]);
}

#[test]
fn a_silent_watch_counts_as_dead_and_is_resumed() {
    let timing = Timing {
        silence: Duration::from_millis(50),
        ..quick()
    };
    let mut rig = Rig::with_timing(server(&["a"]), timing);
    rig.until_services(&["a"]);
    rig.until("a second watch", |rig| {
        rig.asked(SERVICES, &["watch=true", "resourceVersion="]) >= 2
    });
    rig.server.apply([service("b")]).unwrap();
    rig.until_services(&["a", "b"]);
    assert_eq!(rig.asked(SERVICES, &[STREAMED]), 1);
}

#[test]
fn bookmarks_move_the_position_on() {
    let mut rig = Rig::new(server(&["a"]));
    rig.until_services(&["a"]);
    rig.server.wait_for_watches(4).unwrap();
    // Other kinds change, so the version of the services' last change grows old; a bookmark tells the new one.
    rig.server
        .apply((0..50).map(|n| slice("s", "a", &[&format!("10.1.0.{n}")])))
        .unwrap();
    rig.server.bookmark();
    rig.until("the slices", |rig| rig.endpoints("a") == ["10.1.0.49"]);
    rig.server.wait_for_watches(4).unwrap();
    let version_of = |path: &str| -> Option<u64> {
        path.split(['?', '&'])
            .find_map(|part| part.strip_prefix("resourceVersion="))?
            .parse()
            .ok()
    };
    rig.until("a watch from the bookmark's version", |rig| {
        rig.server.cut_watches();
        let requests = rig.server.requests();
        let versions = requests
            .iter()
            .filter(|seen| seen.path.starts_with(SERVICES))
            .filter_map(|s| version_of(&s.path));
        versions.max() >= Some(50)
    });
}
