//! The kube source against an API server: lists, watches, and everything that can go wrong with them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_lab::api::{Api as Server, Faults, Garbage, default_objects};
use ferry_lab::patience;
use ferry_model::{ServiceName, Snapshot};
use ferry_sources::kube::{Connection, KubeSource, Timing};
use ferry_sources::{Kind, Mailbox};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A source that follows a server, and the loop that takes its mail.
struct Rig {
    server: Server,
    mailbox: Arc<Mailbox>,
    snapshot: Snapshot,
    _directory: tempfile::TempDir,
    _runtime: Runtime,
}

fn quick() -> Timing {
    Timing {
        backoff_first: Duration::from_millis(10),
        backoff_most: Duration::from_millis(100),
        answer: patience(Duration::from_secs(30)),
        missing: Duration::from_millis(50),
        settle: Duration::from_millis(50),
        ..Timing::default()
    }
}

impl Rig {
    fn new(server: Server) -> Self {
        Self::with_timing(server, quick())
    }

    fn with_timing(server: Server, timing: Timing) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let connection = Connection {
            kubeconfig: Some(server.kubeconfig(directory.path()).expect("a kubeconfig")),
            user_agent: "ferry/test".into(),
            qps: -1.0,
            ..Connection::default()
        };
        let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let api = runtime.block_on(connection.connect()).expect("a client");
        runtime.spawn(
            KubeSource::new(api, "node-a")
                .with_timing(timing)
                .run(mailbox.clone()),
        );
        Rig {
            server,
            mailbox,
            snapshot: Snapshot::default(),
            _directory: directory,
            _runtime: runtime,
        }
    }

    fn take(&mut self) {
        for event in self.mailbox.take().events {
            self.snapshot.apply(event);
        }
    }

    fn until(&mut self, what: &str, mut yes: impl FnMut(&Rig) -> bool) {
        let end = Instant::now() + patience(Duration::from_secs(60));
        loop {
            self.take();
            if yes(self) {
                return;
            }
            assert!(
                Instant::now() < end,
                "not {what}; services {:?}, problems {:?}, requests {:#?}",
                self.services(),
                self.mailbox.problems(),
                self.server.requests(),
            );
            self.mailbox
                .wait(Some(Instant::now() + Duration::from_millis(20)));
        }
    }

    fn until_services(&mut self, expected: &[&str]) {
        self.until(&format!("services {expected:?}"), |rig| {
            rig.mailbox.is_open() && rig.services() == expected
        });
    }

    fn services(&self) -> Vec<&str> {
        self.snapshot
            .services()
            .map(|service| service.name.name())
            .collect()
    }

    fn endpoints(&self, service: &str) -> Vec<String> {
        let service = ServiceName::new("shop", service);
        let slices = self.snapshot.slices(&service);
        slices
            .flat_map(|slice| &slice.endpoints)
            .map(|endpoint| endpoint.address.to_string())
            .collect()
    }

    fn problems(&self) -> Vec<String> {
        self.mailbox
            .problems()
            .into_iter()
            .map(|problem| format!("{}: {}", problem.about, problem.reason))
            .collect()
    }

    /// Requests for a path with all of these parameters.
    fn asked(&self, path: &str, parameters: &[&str]) -> usize {
        let fits = |seen: &str| seen.starts_with(path) && parameters.iter().all(|p| seen.contains(p));
        self.server
            .requests()
            .iter()
            .filter(|seen| fits(&seen.path))
            .count()
    }
}

fn server(services: &[&str]) -> Server {
    let server = Server::start().expect("a server");
    server.apply(default_objects()).expect("objects");
    server
        .apply(services.iter().map(|name| service(name)))
        .expect("services");
    server
}

fn service(name: &str) -> Value {
    let last: u32 = name.bytes().map(u32::from).sum();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": format!("10.96.{}.{}", last / 250, last % 250),
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    })
}

fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address]}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

fn endpoints(service: &str, subsets: &[&[&str]]) -> Value {
    let subsets: Vec<Value> = subsets
        .iter()
        .map(|addresses| {
            let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"addresses": addresses, "ports": [{"port": 8080}]})
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": service, "namespace": "shop"}, "subsets": subsets,
    })
}

const SERVICES: &str = "/api/v1/services";
const STREAMED: &str = "sendInitialEvents=true";

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
fn a_server_without_streaming_is_listed_in_pages() {
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
    assert_eq!(rig.asked(SERVICES, &["limit=500"]), 3);
    assert_eq!(rig.asked(SERVICES, &["continue="]), 2);
    assert_eq!(rig.asked(SERVICES, &["watch=true", "resourceVersion="]), 1);
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
    assert_eq!(rig.asked(SERVICES, &["limit=500"]), 1);
    // After its upgrade it is asked again, once there is a reason to list.
    rig.server.wait_for_watches(4).unwrap();
    rig.server.set_faults(Faults::default());
    rig.server.expire();
    rig.until("a streamed list", |rig| rig.asked(SERVICES, &[STREAMED]) == 2);
    rig.server.apply([service("b")]).unwrap();
    rig.until_services(&["a", "b"]);
    assert_eq!(rig.asked(SERVICES, &["limit=500"]), 1);
}

#[test]
fn a_list_that_expires_between_pages_is_fetched_whole() {
    let names: Vec<String> = (0..600).map(|n| format!("s{n:04}")).collect();
    let server = server(&names.iter().map(String::as_str).collect::<Vec<_>>());
    server.set_faults(Faults {
        no_streaming_lists: true,
        delay_ms: 100,
        ..Faults::default()
    });
    let mut rig = Rig::new(server);
    rig.until("a whole list", |rig| {
        rig.server.expire();
        rig.server.requests().iter().any(|seen| {
            seen.path.starts_with(SERVICES) && !seen.path.contains("limit=") && !seen.path.contains("watch=")
        })
    });
    rig.until("all services", |rig| rig.services().len() == 600);
    assert!(rig.asked(SERVICES, &["continue="]) >= 1);
}

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
