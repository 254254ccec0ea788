//! Watches, and what was missed between two of them.

use std::time::Duration;

use ferry_lab::api::{Faults, objects};
use ferry_model::ServiceName;
use ferry_sources::kube::Timing;

use crate::rig::*;

#[test]
fn cut_watches_are_resumed_where_they_ended() {
    let mut rig = Rig::new(server(&["a"]));
    rig.until_services(&["a"]);
    for n in 0..5 {
        rig.server.wait_for_watches(4).unwrap();
        // Watches that end sooner than this count as watches that end at once.
        std::thread::sleep(2 * quick().settle);
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
    let changed = objects::service("changed", "10.96.200.1");
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

/// Watches that end at once bring nothing, ever: lists take their place, and the trouble is told.
#[test]
fn watches_that_end_at_once_are_reported_and_replaced_by_lists() {
    for no_streaming_lists in [false, true] {
        let works = Faults {
            no_streaming_lists,
            ..Faults::default()
        };
        let server = server(&["a"]);
        server.set_faults(works.clone());
        let mut rig = Rig::with_timing(server, Timing::default());
        rig.until_services(&["a"]);
        rig.server.wait_for_watches(4).unwrap();
        rig.server.set_faults(Faults {
            ended: ["services".to_owned()].into(),
            ..works.clone()
        });
        rig.server.cut_watches();
        rig.server.apply([service("b")]).unwrap();
        rig.soon(Duration::from_secs(4), "a change", |rig| {
            rig.services() == ["a", "b"]
        });
        rig.until("a report", |rig| !rig.problems().is_empty());
        let problems = rig.problems();
        assert!(problems[0].starts_with("services: http"), "{problems:?}");
        assert!(
            problems[0].contains("ends watches as soon as they begin, "),
            "{problems:?}"
        );
        rig.server.delete([&service("a")]).unwrap();
        rig.soon(Duration::from_secs(8), "the next change", |rig| {
            rig.services() == ["b"]
        });
        assert_eq!(rig.problems().len(), 1, "a list does not mend a watch");

        rig.server.set_faults(works);
        rig.until("no problems", |rig| rig.problems().is_empty());
        let lists = rig.lists(SERVICES) + rig.asked(SERVICES, &[STREAMED]);
        rig.server.apply([service("c")]).unwrap();
        rig.until_services(&["b", "c"]);
        assert_eq!(
            rig.lists(SERVICES) + rig.asked(SERVICES, &[STREAMED]),
            lists,
            "watched again"
        );
    }
}

/// Bad for both sides would be to list as fast as one can.
#[test]
fn versions_that_expire_at_once_are_not_listed_in_a_busy_loop() {
    let mut rig = Rig::with_timing(server(&["a"]), Timing::default());
    rig.until_services(&["a"]);
    rig.server.wait_for_watches(4).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < end {
        rig.server.expire();
        std::thread::sleep(Duration::from_millis(5));
    }
    let lists = rig.asked(SERVICES, &[STREAMED]);
    assert!((3..=8).contains(&lists), "{lists} lists");
    rig.until("a report", |rig| {
        rig.problems()
            .iter()
            .any(|problem| problem.contains("expired (410)"))
    });
    rig.until("no problems", |rig| rig.problems().is_empty());
}

#[test]
fn a_silent_watch_is_doubted_and_listed_again() {
    for no_streaming_lists in [false, true] {
        let timing = Timing {
            check_after: Duration::from_millis(20),
            list_after: Duration::from_millis(200),
            ..quick()
        };
        let server = server(&["a"]);
        server.set_faults(Faults {
            no_streaming_lists,
            ..Faults::default()
        });
        let mut rig = Rig::with_timing(server, timing);
        rig.until_services(&["a"]);
        rig.server.wait_for_watches(4).unwrap();
        // The stream that brings the list is a watch too, so that lists have to be plain.
        rig.server.set_faults(Faults {
            no_streaming_lists: true,
            silent: ["services".to_owned()].into(),
            ..Faults::default()
        });
        rig.server.cut_watches();
        rig.server.apply([service("b")]).unwrap();
        rig.until_services(&["a", "b"]);
        assert!(rig.problems().is_empty(), "silence is no failure");
        assert!(
            rig.asked(SERVICES, &["limit=1"]) >= 1,
            "the version is asked for first"
        );
    }
}

/// Nobody says that the version we watch from has not happened yet: the server is asked, after it was away and when a
/// watch is silent.
#[test]
fn a_server_restored_from_a_backup_is_listed_again() {
    for no_streaming_lists in [false, true] {
        for away in [false, true] {
            let timing = Timing {
                check_after: Duration::from_millis(if away { 3_600_000 } else { 100 }),
                ..quick()
            };
            let server = server(&["a", "b"]);
            server.set_faults(Faults {
                no_streaming_lists,
                ..Faults::default()
            });
            let version = server.version();
            server
                .apply((0..100).map(|n| slice("s", "a", &[&format!("10.1.0.{n}")])))
                .unwrap();
            let mut rig = Rig::with_timing(server, timing);
            rig.until_services(&["a", "b"]);
            rig.server.wait_for_watches(4).unwrap();

            if away {
                rig.server.pause();
                rig.until("problems", |rig| rig.problems().len() == 4);
            }
            rig.server.rewind(version);
            rig.server.delete([&service("b")]).unwrap();
            rig.server.apply([service("c")]).unwrap();
            if away {
                rig.server.resume().unwrap();
            }
            rig.until_services(&["a", "c"]);
            rig.until("no problems", |rig| rig.problems().is_empty());
        }
    }
}

#[test]
fn the_same_version_with_other_content_is_taken() {
    for no_streaming_lists in [false, true] {
        let server = server(&["a"]);
        server.set_faults(Faults {
            no_streaming_lists,
            ..Faults::default()
        });
        let version = server.version();
        server.apply([slice("s", "a", &["10.1.0.1"])]).unwrap();
        let mut rig = Rig::new(server);
        rig.until("the first endpoint", |rig| rig.endpoints("a") == ["10.1.0.1"]);
        rig.server.wait_for_watches(4).unwrap();
        rig.server.pause();
        rig.server.rewind(version);
        rig.server.apply([slice("s", "a", &["10.1.0.2"])]).unwrap();
        rig.server.expire();
        rig.server.resume().unwrap();
        rig.until("the other endpoint", |rig| rig.endpoints("a") == ["10.1.0.2"]);
    }
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
