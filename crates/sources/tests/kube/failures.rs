//! Servers that are away, talk nonsense or refuse.

use std::time::Duration;

use ferry_lab::api::{Faults, Garbage};
use ferry_sources::kube::Timing;

use crate::rig::*;

#[test]
fn a_server_that_is_down_at_the_start_is_waited_for() {
    let server = server(&["a"]);
    server.pause();
    let mut rig = Rig::new(server);
    rig.until("four problems", |rig| rig.problems().len() == 4);
    assert!(!rig.mailbox.is_open());
    let problems = rig.problems();
    assert!(
        problems.iter().all(|problem| problem.contains(&rig.server.url())),
        "{problems:?}"
    );
    assert!(
        problems
            .iter()
            .all(|problem| problem.contains("Connection refused")),
        "{problems:?}"
    );
    rig.server.resume().unwrap();
    rig.until_services(&["a"]);
    rig.until("no problems", |rig| rig.problems().is_empty());
}

#[test]
fn a_server_that_goes_away_leaves_everything_as_it_was() {
    let mut rig = Rig::new(server(&["a", "b"]));
    rig.until_services(&["a", "b"]);
    rig.server.pause();
    rig.until("problems", |rig| rig.problems().len() == 4);
    assert_eq!(rig.services(), ["a", "b"]);
    rig.server.resume().unwrap();
    rig.server.apply([service("c")]).unwrap();
    rig.until_services(&["a", "b", "c"]);
    rig.until("no problems", |rig| rig.problems().is_empty());
}

#[test]
fn garbage_is_named_and_retried_and_deletes_nothing() {
    let mut rig = Rig::new(server(&["a", "b"]));
    rig.until_services(&["a", "b"]);
    let cases = [
        (Garbage::Bytes(10 << 20), "no use"),
        (Garbage::Page, "<html>"),
        (Garbage::Shape, "no use"),
    ];
    for (garbage, reason) in cases {
        for no_streaming_lists in [false, true] {
            rig.server.wait_for_watches(4).unwrap();
            rig.server.set_faults(Faults {
                garbage: Some(garbage),
                no_streaming_lists,
                ..Faults::default()
            });
            rig.server.cut_watches();
            let url = rig.server.url();
            rig.until("the reason", |rig| {
                rig.problems()
                    .iter()
                    .any(|problem| problem.contains(reason) && problem.contains(&url))
            });
            assert_eq!(rig.services(), ["a", "b"]);
            rig.server.set_faults(Faults {
                no_streaming_lists,
                ..Faults::default()
            });
            rig.until("no problems", |rig| rig.problems().is_empty());
            assert_eq!(rig.services(), ["a", "b"]);
            assert_eq!(
                rig.mailbox.skipped_count(),
                0,
                "no part of it was taken for an object"
            );
        }
    }
}

#[test]
fn a_list_that_breaks_off_deletes_nothing() {
    let server = server(&["a", "b", "c"]);
    server.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    let mut rig = Rig::new(server);
    rig.until_services(&["a", "b", "c"]);
    rig.server.set_faults(Faults {
        no_streaming_lists: true,
        truncate_lists: true,
        ..Faults::default()
    });
    rig.server.delete([&service("b")]).unwrap();
    rig.until_services(&["a", "c"]);
    rig.server.wait_for_watches(4).unwrap();
    rig.server.expire();
    rig.until("problems", |rig| rig.problems().len() == 4);
    assert_eq!(rig.services(), ["a", "c"]);
    rig.server.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    rig.until("no problems", |rig| rig.problems().is_empty());
    assert_eq!(rig.services(), ["a", "c"]);
}

#[test]
fn a_server_that_takes_too_long_is_named() {
    let server = server(&["a"]);
    server.set_faults(Faults {
        delay_ms: 3_600_000,
        ..Faults::default()
    });
    let mut rig = Rig::with_timing(
        server,
        Timing {
            answer: Duration::from_millis(100),
            ..quick()
        },
    );
    rig.until("problems", |rig| rig.problems().len() == 4);
    let problems = rig.problems();
    assert!(
        problems
            .iter()
            .all(|problem| problem.contains("no answer from http://")),
        "{problems:?}"
    );
    assert!(!rig.mailbox.is_open());
}

#[test]
fn errors_carry_the_servers_reason() {
    let server = server(&["a"]);
    server.set_faults(Faults {
        forbidden: ["services".to_owned()].into(),
        ..Faults::default()
    });
    let mut rig = Rig::new(server);
    rig.until("a problem", |rig| !rig.problems().is_empty());
    let problems = rig.problems();
    assert!(problems[0].starts_with("services: "), "{problems:?}");
    assert!(
        problems[0].contains("answered 403: services is forbidden: User"),
        "{problems:?}"
    );
    assert!(!rig.mailbox.is_open());
    rig.server.set_faults(Faults {
        code: Some(500),
        ..Faults::default()
    });
    rig.until("another problem", |rig| {
        rig.problems()
            .iter()
            .any(|problem| problem.contains("500: the lab"))
    });
    rig.server.set_faults(Faults::default());
    rig.until_services(&["a"]);
}
