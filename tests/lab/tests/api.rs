//! The lab's API server seen by real clients: curl and kubectl.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use ferry_lab::api::generate::Cluster;
use ferry_lab::api::{Api, Faults, Garbage, default_objects};
use serde_json::{Value, json};

fn get(api: &Api, path: &str) -> Value {
    let (code, body) = ask(api, &[], path);
    assert_eq!(code, 200, "{path}: {body}");
    body
}

fn ask(api: &Api, options: &[&str], path: &str) -> (u16, Value) {
    let url = format!("{}{path}", api.url());
    let out = Command::new("curl")
        .args(["-gsS", "-m20", "-w", "\n%{http_code}"])
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let (body, code) = text.rsplit_once('\n').unwrap();
    (
        code.parse().unwrap(),
        serde_json::from_str(body).unwrap_or_else(|_| json!({"text": body})),
    )
}

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["metadata"]["name"].as_str().unwrap())
        .collect()
}

/// A watch in the hands of curl.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(api: &Api, path: &str) -> Watching {
        let url = format!("{}{path}", api.url());
        let mut child = Command::new("curl")
            .args(["-gsSN", "-m60", &url])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Watching { child, lines }
    }

    /// Type, name and version of the next event; `None` when the watch has ended.
    fn next(&mut self) -> Option<(String, String, u64)> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let event: Value = serde_json::from_str(&line).ok()?;
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let object = &event["object"];
        let name = if event["type"] == "ERROR" {
            object["code"].to_string()
        } else {
            text(&object["metadata"]["name"])
        };
        let version = text(&object["metadata"]["resourceVersion"]).parse().unwrap_or(0);
        Some((text(&event["type"]), name, version))
    }

    fn expect(&mut self, what: &str, name: &str) -> u64 {
        let event = self
            .next()
            .unwrap_or_else(|| panic!("the watch ended before {what} {name}"));
        assert_eq!((event.0.as_str(), event.1.as_str()), (what, name));
        event.2
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn small() -> (Api, Cluster) {
    let api = Api::start().unwrap();
    let cluster = Cluster {
        services: 5,
        endpoints: 2,
    };
    api.apply(cluster.objects()).unwrap();
    (api, cluster)
}

fn labelled(cluster: Cluster, i: u32, label: &str) -> Value {
    let mut service = cluster.service(i);
    service["metadata"]["labels"] = json!({label: "yes"});
    service
}

#[test]
fn lists_by_selector_and_in_pages() {
    let (api, cluster) = small();
    let all = get(&api, "/api/v1/services");
    assert_eq!(
        (all["kind"].as_str(), names(&all).len()),
        (Some("ServiceList"), 5)
    );
    let one = get(&api, "/api/v1/services?labelSelector=app%3Dservice-00003");
    assert_eq!(names(&one), ["service-00003"]);
    let but = get(
        &api,
        "/api/v1/namespaces/bench/services?fieldSelector=metadata.name!=service-00003&limit=3",
    );
    assert_eq!(names(&but), ["service-00000", "service-00001", "service-00002"]);
    assert_eq!(names(&get(&api, "/api/v1/namespaces/other/services")), [""; 0]);
    let (code, refused) = ask(&api, &[], "/api/v1/services?fieldSelector=spec.ports=1");
    assert_eq!(
        (code, refused["message"].as_str()),
        (400, Some("field label not supported: spec.ports"))
    );

    // later pages are of the list as it stood at the first
    let first = get(&api, "/api/v1/services?limit=2");
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete([&cluster.service(3)]).unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = get(&api, &format!("/api/v1/services?limit=9&continue={token}"));
    assert_eq!(names(&rest), ["service-00002", "service-00003", "service-00004"]);
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    assert!(rest["metadata"]["continue"].is_null());
    api.expire();
    assert_eq!(
        ask(&api, &[], &format!("/api/v1/services?limit=9&continue={token}")).0,
        410
    );
}

#[test]
fn a_watch_goes_on_where_the_list_stood() {
    let (api, cluster) = small();
    let version = get(&api, "/api/v1/services")["metadata"]["resourceVersion"].clone();
    api.apply([cluster.service(7)]).unwrap();
    let path = format!(
        "/api/v1/services?watch=1&resourceVersion={}",
        version.as_str().unwrap()
    );
    let mut watch = Watching::start(&api, &path);
    watch.expect("ADDED", "service-00007");
    api.apply([cluster.slice(1, 1), cluster.service(1)]).unwrap();
    let changed = watch.expect("MODIFIED", "service-00001");
    api.delete([&cluster.service(1)]).unwrap();
    assert!(watch.expect("DELETED", "service-00001") > changed);
    api.cut_watches();
    assert_eq!(watch.next(), None);
}

#[test]
fn an_object_comes_into_and_goes_out_of_a_selector() {
    let (api, cluster) = small();
    let mut watch = Watching::start(
        &api,
        "/api/v1/services?watch=1&labelSelector=!other&allowWatchBookmarks=true",
    );
    for i in 0..5 {
        watch.expect("ADDED", &format!("service-0000{i}"));
    }
    api.apply([labelled(cluster, 2, "other"), labelled(cluster, 2, "app")])
        .unwrap();
    watch.expect("DELETED", "service-00002");
    let added = watch.expect("ADDED", "service-00002");
    api.apply([cluster.slice(0, 9)]).unwrap();
    api.bookmark();
    assert_eq!(watch.expect("BOOKMARK", ""), added + 1);
}

#[test]
fn a_streaming_list_ends_with_its_bookmark() {
    let (api, cluster) = small();
    let path = "/api/v1/services?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&\
                resourceVersionMatch=NotOlderThan&timeoutSeconds=50";
    let mut watch = Watching::start(&api, path);
    for i in 0..5 {
        watch.expect("ADDED", &format!("service-0000{i}"));
    }
    watch.expect("BOOKMARK", "");
    api.apply([cluster.service(0)]).unwrap();
    watch.expect("MODIFIED", "service-00000");
    assert_eq!(
        ask(&api, &[], "/api/v1/services?watch=true&sendInitialEvents=true").0,
        422
    );
    api.set_faults(Faults {
        no_streaming_lists: true,
        ..Faults::default()
    });
    assert_eq!(ask(&api, &[], path).0, 422);
}

#[test]
fn expired_history_is_410_for_open_and_for_new_watches() {
    let (api, _) = small();
    let version = get(&api, "/api/v1/nodes")["metadata"]["resourceVersion"].clone();
    let path = format!(
        "/api/v1/nodes?watch=1&resourceVersion={}",
        version.as_str().unwrap()
    );
    let mut open = Watching::start(&api, &path);
    api.wait_for_watches(1).unwrap();
    api.expire();
    open.expect("ERROR", "410");
    assert_eq!(open.next(), None);
    Watching::start(&api, &path).expect("ERROR", "410");
}

#[test]
fn a_watch_ends_when_its_time_is_up_or_as_told() {
    let (api, _) = small();
    let mut watch = Watching::start(&api, "/api/v1/nodes?watch=1&timeoutSeconds=1");
    watch.expect("ADDED", "node-a");
    assert_eq!(watch.next(), None);
    api.set_faults(Faults {
        cut_after: Some(2),
        ..Faults::default()
    });
    let mut watch = Watching::start(&api, "/api/v1/services?watch=1");
    watch.expect("ADDED", "service-00000");
    watch.expect("ADDED", "service-00001");
    assert_eq!(watch.next(), None);
}

#[test]
fn fails_in_every_way_it_is_told() {
    let (api, _) = small();
    let slices = "/apis/discovery.k8s.io/v1/endpointslices";
    api.set_faults(Faults {
        missing: ["endpointslices".into()].into(),
        ..Faults::default()
    });
    assert_eq!(ask(&api, &[], slices).0, 404);
    assert_eq!(ask(&api, &[], "/apis/discovery.k8s.io/v1").0, 404);
    api.set_faults(Faults {
        forbidden: ["endpointslices".into()].into(),
        ..Faults::default()
    });
    assert_eq!(ask(&api, &[], slices).0, 403);
    api.set_faults(Faults {
        code: Some(503),
        ..Faults::default()
    });
    assert_eq!(ask(&api, &[], "/healthz").0, 503);
    for (garbage, size) in [
        (Garbage::Bytes(10_000_000), 10_000_000),
        (Garbage::Page, 57),
        (Garbage::Shape, 67),
    ] {
        api.set_faults(Faults {
            garbage: Some(garbage),
            ..Faults::default()
        });
        for path in [slices.to_owned(), format!("{slices}?watch=1")] {
            let out = Command::new("curl")
                .args(["-sSf", &format!("{}{path}", api.url())])
                .output()
                .unwrap();
            assert!(out.status.success());
            assert_eq!(out.stdout.len(), size, "{garbage:?}");
        }
    }
    api.set_faults(Faults {
        truncate_lists: true,
        ..Faults::default()
    });
    let out = Command::new("curl")
        .args(["-sS", &format!("{}{slices}", api.url())])
        .output()
        .unwrap();
    assert!(!out.status.success() && !out.stdout.is_empty());
    api.set_faults(Faults {
        delay_ms: 300,
        ..Faults::default()
    });
    let begin = std::time::Instant::now();
    get(&api, slices);
    assert!(begin.elapsed().as_millis() >= 300);
    api.set_faults(Faults::default());
    assert_eq!(names(&get(&api, slices)).len(), 5);
}

#[test]
fn goes_away_and_comes_back() {
    let (api, _) = small();
    let mut watch = Watching::start(&api, "/api/v1/nodes?watch=1");
    watch.expect("ADDED", "node-a");
    api.pause();
    assert_eq!(watch.next(), None);
    let down = Command::new("curl").args(["-sS", &api.url()]).output().unwrap();
    assert_eq!(down.status.code(), Some(7), "curl says 7 when nobody listens");
    api.resume().unwrap();
    assert_eq!(names(&get(&api, "/api/v1/nodes")), ["node-a"]);
}

#[test]
fn keeps_events_and_remembers_requests() {
    let api = Api::start().unwrap();
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e1"}, "reason": "Starting"}).to_string();
    assert_eq!(ask(&api, &["-XPOST", "-d", &event], path).0, 201);
    let series = json!({"series": {"count": 2}}).to_string();
    assert_eq!(
        ask(&api, &["-XPATCH", "-d", &series], &format!("{path}/e1")).0,
        200
    );
    let events = api.events();
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0]["reason"], &events[0]["series"]["count"]),
        (&json!("Starting"), &json!(2))
    );
    assert_eq!(get(&api, "/_events"), json!(events));
    let seen = api.requests();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", path));
    assert!(seen[0].user_agent.starts_with("curl"));
}

#[test]
fn control_over_http() {
    let api = Api::start().unwrap();
    let cluster = Cluster {
        services: 1,
        endpoints: 1,
    };
    let objects = json!([cluster.service(0), cluster.slice(0, 0)]).to_string();
    assert_eq!(ask(&api, &["-XPUT", "-d", &objects], "/_apply").0, 200);
    assert_eq!(names(&get(&api, "/api/v1/services")), ["service-00000"]);
    assert_eq!(ask(&api, &["-XPUT", "-d", &objects], "/_delete").0, 200);
    assert_eq!(names(&get(&api, "/api/v1/services")), [""; 0]);
    assert_eq!(ask(&api, &["-XPUT", "-d", r#"{"code":500}"#], "/_faults").0, 200);
    assert_eq!(ask(&api, &[], "/api/v1/services").0, 500);
    assert_eq!(
        ask(&api, &["-XPUT", "-d", r#"[{"kind":"Pod"}]"#], "/_apply").0,
        400
    );
    assert_eq!(ask(&api, &["-XPUT"], "/_nothing").0, 404);
}

#[test]
fn kubectl_reads_it() {
    let (api, cluster) = small();
    api.apply(default_objects()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let config = api.kubeconfig(home.path()).unwrap();
    let kubectl = |args: &[&str]| {
        let mut command = Command::new("kubectl");
        command
            .env("HOME", home.path())
            .env("KUBECONFIG", &config)
            .args(args);
        let out = command.output().unwrap();
        assert!(
            out.status.success(),
            "kubectl {args:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap()
    };
    let services = kubectl(&["get", "services", "--all-namespaces"]);
    assert!(services.contains("service-00004"), "{services}");
    assert!(
        services.contains(&cluster.cluster_ip(4).to_string()),
        "{services}"
    );
    let slices = kubectl(&[
        "get",
        "endpointslices",
        "--namespace",
        "bench",
        "--output",
        "name",
    ]);
    assert_eq!(slices.lines().count(), 5, "{slices}");
    let node = kubectl(&["get", "node", "node-a", "--output", "jsonpath={.spec.podCIDR}"]);
    assert_eq!(node, "10.244.1.0/24");
}
