//! The whole program against an API server, in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod doctor;
mod house;
mod node;
mod observe;
mod relayed;
mod signals;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use house::{Daemon, House, load_balancer, service, slice};
use serde_json::json;

#[test]
fn it_follows_a_cluster_and_leaves_its_rules_behind() {
    let house = House::build("daemon-follow");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    assert!(house.table_holds("10.96.0.10 . tcp . 80"));
    house.wait("healthz", || house.healthz() == Some(200));
    let event = house.wait_event("Starting");
    assert_eq!(event["regarding"]["name"], "node-a");
    assert_eq!(event["reportingController"], "kube-proxy");
    assert_eq!(event["metadata"]["namespace"], "default");

    house.api.apply([slice("web", "10.244.1.77")]).unwrap();
    house.wait("the new endpoint", || house.table_holds("10.244.1.77"));
    assert!(!house.table_holds("10.244.1.2 "));
    house.api.delete([&service("web", "10.96.0.10")]).unwrap();
    house.wait("the end of the service", || !house.table_holds("10.96.0.10"));

    assert!(
        house
            .metric("rest_client_requests_total{code=\"200\",host=\"")
            .is_none()
    );
    let requests = house.get(("127.0.0.1", 10249), "/metrics").unwrap().1;
    assert!(
        requests.contains("rest_client_requests_total{code=\"200\","),
        "{requests}"
    );
    for family in [
        "rest_client_rate_limiter_duration_seconds",
        "rest_client_request_size_bytes",
        "rest_client_response_size_bytes",
        "rest_client_transport_cache_entries",
        "rest_client_transport_create_calls_total",
        "rest_client_exec_plugin_ttl_seconds",
        "rest_client_exec_plugin_certificate_rotation_age",
        "registered_metrics_total",
        "disabled_metrics_total",
        "hidden_metrics_total",
    ] {
        assert!(requests.contains(&format!("\n# TYPE {family} ")), "{family}");
    }
    assert!(requests.contains("kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 1"));
    assert_eq!(
        house.get(("127.0.0.1", 10249), "/proxyMode"),
        Some((200, "nftables".into()))
    );
    let configz = house.get(("127.0.0.1", 10249), "/configz").unwrap().1;
    assert!(configz.starts_with("{\"kubeproxy.config.k8s.io\":{"), "{configz}");

    assert_eq!(daemon.terminate(), Some(0));
    assert!(house.table_holds("chain"), "the rules stay");
}

#[test]
fn it_survives_cut_watches_expired_versions_and_a_server_that_goes_away() {
    let house = House::build("daemon-away");
    house.api.apply([service("a", "10.96.0.1")]).unwrap();
    house.api.pause();
    let mut daemon = house.daemon(&[]);
    house.wait("a complaint", || {
        house.log().contains("API server is not available")
    });
    assert!(
        house.node.sh("nft list table ip kube-proxy").is_err(),
        "nothing is written before the list"
    );
    house.api.resume().unwrap();
    daemon.wait_synced();

    house.api.cut_watches();
    house.api.apply([service("b", "10.96.0.2")]).unwrap();
    house.wait("what came after a cut", || house.table_holds("10.96.0.2"));
    house.api.pause();
    house.api.apply([service("c", "10.96.0.3")]).unwrap();
    house.api.delete([&service("a", "10.96.0.1")]).unwrap();
    house.api.expire();
    house.api.resume().unwrap();
    house.wait("what came while it was away", || house.table_holds("10.96.0.3"));
    house.wait("what went while it was away", || !house.table_holds("10.96.0.1"));
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_restart_changes_nothing_that_is_right() {
    let house = House::build("daemon-restart");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    assert_eq!(daemon.terminate(), Some(0));
    let before = house.node.sh("nft -a list table ip kube-proxy").unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    assert_eq!(house.node.sh("nft -a list table ip kube-proxy").unwrap(), before);
    assert_eq!(
        house.metric("ferry_kernel_objects_written_total{ip_family=\"IPv4\"}"),
        Some(0.0)
    );
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_flushed_table_is_repaired_and_told() {
    let house = House::build("daemon-flush");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    house.node.sh("nft delete table ip kube-proxy").unwrap();
    house.wait("the repair", || house.table_holds("10.96.0.10 . tcp . 80"));
    house.wait("the count", || {
        house
            .metric("ferry_repairs_total{ip_family=\"IPv4\"}")
            .is_some_and(|n| n >= 1.0)
    });
    house.wait_event("RulesRepaired");
    let status = house.status().unwrap();
    assert!(
        status["families"][0]["repairs"].as_u64().unwrap() >= 1,
        "{status}"
    );
}

#[test]
fn two_daemons_that_undo_each_others_rules_slow_down_and_name_each_other() {
    let house = House::build("daemon-fight");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut one = house.daemon(&[]);
    one.wait_synced();
    let _other = house.daemon(&[
        "--masquerade-all",
        "--healthz-bind-address=127.0.0.1:20256",
        "--metrics-bind-address=127.0.0.1:20249",
    ]);
    let fights = |log: &str| log.matches("Somebody keeps changing the IPv4 rules").count();
    house.wait("the report", || fights(&house.log()) >= 2);
    assert!(house.log().contains("(changed by ferry (pid "), "{}", house.log());
    let repairs = || house.metric("ferry_repairs_total{ip_family=\"IPv4\"}").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let (before, log) = (repairs(), house.log().len());
    std::thread::sleep(Duration::from_secs(4));
    let made = repairs() - before;
    assert!(made <= 5.0, "{made} repairs in 4 s");
    let grown = house.log().len() - log;
    assert!(grown < 20_000, "{grown} bytes of log in 4 s");
}

#[test]
fn a_node_that_is_to_go_is_not_ready_but_alive() {
    let house = House::build("daemon-node");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    house.wait("readiness", || house.healthz() == Some(200));
    let mut node = ferry_lab::api::default_objects().remove(0);
    node["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    house.api.apply([node.clone()]).unwrap();
    house.wait("the taint", || house.healthz() == Some(503));
    assert_eq!(house.get(("127.0.0.1", 10256), "/livez").unwrap().0, 200);
    node["spec"]["taints"] = json!([]);
    house.api.apply([node.clone()]).unwrap();
    house.wait("its removal", || house.healthz() == Some(200));
    node["metadata"]["deletionTimestamp"] = "2026-11-15T10:00:00Z".into();
    house.api.apply([node]).unwrap();
    house.wait("the deletion", || house.healthz() == Some(503));
}

#[test]
fn health_check_ports_answer_and_a_taken_one_is_told() {
    let house = House::build("daemon-checks");
    let blocker = house
        .node
        .run(|| std::net::TcpListener::bind("0.0.0.0:30998").unwrap())
        .unwrap();
    house
        .api
        .apply([
            load_balancer("lb", "10.96.0.20", 30999),
            slice("lb", "10.244.1.2"),
        ])
        .unwrap();
    house
        .api
        .apply([load_balancer("blocked", "10.96.0.21", 30998)])
        .unwrap();
    let mut daemon = house.daemon(&["--nodeport-addresses=0.0.0.0/0"]);
    daemon.wait_synced();
    house.wait("the port", || house.get(("127.0.0.1", 30999), "/").is_some());
    let (status, body) = house.get(("192.0.2.10", 30999), "/").unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("\"localEndpoints\": 1,"), "{body}");
    house.wait("the event", || {
        house.api.events().iter().any(|event| {
            event["reason"] == "FailedToStartServiceHealthcheck"
                && event["regarding"]["name"] == "blocked"
                && event["note"]
                    == "node node-a failed to start healthcheck \"shop/blocked\" on port 30998: \
                        listen tcp4 0.0.0.0:30998: bind: address already in use"
        })
    });
    drop(blocker);
    house.api.apply([service("more", "10.96.0.22")]).unwrap();
    house.wait("another try at the next sync", || {
        house.get(("127.0.0.1", 30998), "/").is_some()
    });
}

#[test]
fn a_changed_configuration_is_taken_if_good_and_refused_if_bad() {
    let house = House::build("daemon-config");
    let kubeconfig = house.api.kubeconfig(house.dir.path()).unwrap();
    let config = |verbosity: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
             clientConnection: {{kubeconfig: {}}}\nconntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, \
             tcpCloseWaitTimeout: 0s}}\noomScoreAdj: 0\nclusterCIDR: 10.244.0.0/16\nlogging: {{verbosity: {verbosity}}}\n",
            kubeconfig.display()
        )
    };
    let path = house.path("config.yaml");
    std::fs::write(&path, config("2")).unwrap();
    let argument = format!("--config={}", path.display());
    let mut daemon = house.start(&[&argument, "--hostname-override=node-a"]);
    daemon.wait_synced();
    let before = house.status().unwrap();
    assert_eq!(before["pid"], daemon.id());

    std::fs::write(&path, config("many")).unwrap();
    house.wait("the refusal", || {
        house.metric("ferry_config_refused_total") == Some(1.0)
    });
    house.wait_event("ConfigurationRefused");
    std::fs::write(&path, config("3")).unwrap();
    house.wait("the new one", || {
        let configz = house.get(("127.0.0.1", 10249), "/configz");
        configz.is_some_and(|(_, body)| body.contains("\"verbosity\":3"))
    });
    daemon.wait_synced();
    house.wait("the status socket", || {
        house.status().is_some_and(|status| status["pid"] == daemon.id())
    });
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_taken_port_is_fatal_only_if_asked_for() {
    let house = House::build("daemon-ports");
    let taken = house
        .node
        .run(|| std::net::TcpListener::bind("0.0.0.0:10256").unwrap())
        .unwrap();
    let mut hard = house.daemon(&["--bind-address-hard-fail=true"]);
    assert_eq!(hard.wait_end(), Some(1));
    let reason = "healthz server failed: failed to start proxy healthz on 0.0.0.0:10256: \
                  listen tcp 0.0.0.0:10256: bind: address already in use";
    assert!(house.log().contains(reason), "{}", house.log());
    house.wait_event("FailedToStartProxierHealthcheck");
    let mut soft = house.daemon(&[]);
    soft.wait_synced();
    drop(taken);
    house.wait("another try", || house.healthz() == Some(200));
}

#[test]
fn it_ends_on_a_signal_while_it_waits_for_the_server() {
    let house = House::build("daemon-waits");
    house.api.pause();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut daemon = house.daemon(&[]);
        house.wait("its start", || house.log().contains("Version info"));
        daemon.signal(signal);
        assert_eq!(daemon.wait_end(), Some(0));
        std::fs::remove_file(house.path("log")).unwrap();
    }
}

/// Makes this script the restore program, and returns the daemon that uses it, once the script runs.
fn daemon_with_restore<'a>(house: &'a House, script: &str) -> Daemon<'a> {
    let (programs, running) = (house.path("programs"), house.path("running"));
    std::fs::create_dir_all(&programs).unwrap();
    let restore = programs.join("iptables-restore");
    let script = format!("#!/bin/sh\necho $$ > {}\n{script}\n", running.display());
    std::fs::write(&restore, script).unwrap();
    std::fs::set_permissions(&restore, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:{}", programs.display(), env!("PATH"));
    let daemon = house.daemon_as(&["env", &path, env!("CARGO_BIN_EXE_ferry")], "iptables", &[]);
    house.wait("the restore program", || {
        std::fs::read_to_string(&running).is_ok_and(|pid| pid.ends_with('\n'))
    });
    daemon
}

#[test]
fn it_ends_on_a_signal_while_a_program_hangs() {
    let house = House::build("daemon-hangs");
    let mut daemon = daemon_with_restore(&house, "sleep 600; true");
    let start = Instant::now();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait_end(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{}", house.log());
    let pid = std::fs::read_to_string(house.path("running")).unwrap();
    house.wait("the end of the program", || {
        !std::path::Path::new("/proc").join(pid.trim()).exists()
    });
}

#[test]
fn a_program_that_floods_its_error_output_fills_no_memory() {
    let house = House::build("daemon-floods");
    let mut daemon = daemon_with_restore(&house, "exec yes a great many words >&2");
    std::thread::sleep(Duration::from_secs(2));
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 200_000, "{kilobytes} kB");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait_end(), Some(0));
}

#[test]
fn init_only_prepares_and_cleanup_removes() {
    let house = House::build("daemon-init");
    let mut daemon = house.daemon(&["--init-only"]);
    assert_eq!(daemon.wait_end(), Some(0), "{}", house.log());
    assert!(
        house
            .log()
            .contains("System initialized and --init-only specified"),
        "{}",
        house.log()
    );
    assert!(house.node.sh("nft list table ip kube-proxy").is_err());
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    assert_eq!(daemon.terminate(), Some(0));
    assert!(house.table_holds("chain"));
    let output = house.run(&["--cleanup"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        house
            .node
            .sh("nft list ruleset")
            .unwrap()
            .matches("kube-proxy")
            .count(),
        0
    );
}

#[test]
fn a_bad_object_and_a_broken_manifest_are_shown_and_spoil_nothing() {
    let house = House::build("daemon-manifests");
    let manifests = house.path("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let good = serde_json::to_string(&service("web", "10.96.0.10")).unwrap();
    std::fs::write(manifests.join("good.json"), good).unwrap();
    std::fs::write(manifests.join("broken.yaml"), "kind: Service\n  nonsense: [\n").unwrap();
    let mut bad = service("bad", "10.96.0.11");
    bad["spec"]["externalIPs"] = json!(["not an address"]);
    std::fs::write(manifests.join("bad.json"), bad.to_string()).unwrap();
    let argument = format!("--manifests={}", manifests.display());
    let mut daemon = house.start(&[
        &argument,
        "--proxy-mode=nftables",
        "--hostname-override=node-a",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--oom-score-adj=0",
    ]);
    daemon.wait_synced();
    assert!(house.table_holds("10.96.0.10") && house.table_holds("10.96.0.11"));
    let status = house.status().unwrap();
    let text = |key: &str| status[key].to_string();
    assert!(text("problems").contains("broken.yaml"), "{status}");
    assert!(text("skipped").contains("shop/bad"), "{status}");
    assert_eq!(house.metric("ferry_skipped_objects"), Some(1.0));
    assert_eq!(house.healthz(), Some(503), "there is no Node");

    let table = house.run(&["status", "--socket", house.socket().to_str().unwrap()]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("\nSERVICE        ADDRESS            ENDPOINTS  INSIDE  OUTSIDE\n"),
        "{table}"
    );
    assert!(
        table.contains("\nshop/web:http  10.96.0.10:80/tcp  0          reject  -\n"),
        "{table}"
    );
    let trace = house.run(&[
        "trace",
        "--socket",
        house.socket().to_str().unwrap(),
        "--from",
        "10.244.1.2",
        "--to",
        "10.96.0.10:80",
    ]);
    let trace = String::from_utf8(trace.stdout).unwrap();
    assert!(
        trace.ends_with("rejected: the sender is told at once\n"),
        "{trace}"
    );
    assert_eq!(daemon.terminate(), Some(0));
    let gone = house.run(&["status", "--socket", house.socket().to_str().unwrap()]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&gone.stderr).contains("no daemon is running here"),
        "{gone:?}"
    );
}

/// What a mode leaves in a namespace, as far as its programs show it.
fn traces_of(house: &House, mode: &str) -> bool {
    let iptables = || house.node.sh("iptables-save; ip6tables-save").unwrap();
    match mode {
        "nftables" => house.node.sh("nft list tables").unwrap().contains("kube-proxy"),
        "iptables" => iptables().contains("KUBE-SVC-"),
        "userspace" => iptables().contains("KUBE-PORTALS"),
        other => panic!("{other}"),
    }
}

#[test]
fn switching_modes_leaves_nothing_of_the_other_behind() {
    let house = House::build("daemon-switch");
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    let mut last: Option<&str> = None;
    for mode in [
        "nftables",
        "iptables",
        "nftables",
        "userspace",
        "iptables",
        "userspace",
        "nftables",
    ] {
        let mut daemon = house.daemon_in(mode, &[]);
        daemon.wait_synced();
        assert!(traces_of(&house, mode), "{mode} wrote nothing:\n{}", house.log());
        if let Some(last) = last {
            house.wait(&format!("the end of {last} in {mode} mode"), || {
                !traces_of(&house, last)
            });
        }
        assert!(traces_of(&house, mode), "{mode} took its own rules away");
        assert_eq!(daemon.terminate(), Some(0));
        assert!(traces_of(&house, mode), "{mode} left its rules");
        last = Some(mode);
    }
}
