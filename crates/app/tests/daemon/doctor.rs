//! `ferry doctor` on a node of its own.

use ferry_lab::api::Faults;
use serde_json::Value;

use crate::house::House;

/// What it finds, and whether it thinks that the proxy would work. Other processes of the machine are out of sight.
fn examined(house: &House, args: &[&str]) -> (bool, Vec<Value>) {
    let kubeconfig = house.api.kubeconfig(house.dir.path()).unwrap();
    let mut command = house.program_as(
        &[
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            env!("CARGO_BIN_EXE_ferry"),
        ],
        &["doctor", "-o=json", "--proxy-mode=nftables"],
    );
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--status-socket={}", house.socket().display()))
        .arg("--hostname-override=node-a")
        .args(args);
    let out = command.output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out.stderr)));
    let findings = report["findings"].as_array().unwrap().clone();
    for finding in &findings {
        let is_good = finding["verdict"] == "ok";
        assert_eq!(finding.get("remedy").is_none(), is_good, "{finding}");
    }
    (out.status.success(), findings)
}

fn has(findings: &[Value], check: &str, verdict: &str, words: &str) -> bool {
    findings.iter().any(|finding| {
        finding["check"] == check
            && finding["verdict"] == verdict
            && finding["found"].as_str().unwrap().contains(words)
    })
}

#[test]
fn a_good_node_gets_a_good_report() {
    let house = House::build("doctor-good");
    let (good, findings) = examined(&house, &[]);
    assert!(good, "{findings:#?}");
    for (check, words) in [
        ("privileges", "CAP_NET_ADMIN"),
        ("kernel", "Linux "),
        ("iptables", "iptables 1."),
        ("leftovers", "nothing of another mode"),
        ("proxies", "no other proxy"),
        ("node", "the Node node-a is known"),
        ("clock", "agrees"),
        ("api", "lets this account do all"),
    ] {
        assert!(has(&findings, check, "ok", words), "{check}: {findings:#?}");
    }
    // a fresh namespace forwards nothing
    assert!(has(&findings, "sysctl", "warning", "net.ipv4.ip_forward is 0"));
}

#[test]
fn what_others_left_and_who_else_serves_is_told() {
    let house = House::build("doctor-others");
    house
        .node
        .sh("iptables-nft -t nat -N KUBE-SERVICES && iptables-legacy -t mangle -N KUBE-KUBELET-CANARY")
        .unwrap();
    house
        .node
        .ip("link add kube-ipvs0 type veth peer name kube-dummy-if")
        .unwrap();
    let (good, findings) = examined(&house, &[]);
    assert!(!good, "two proxies undo each other's rules");
    assert!(has(
        &findings,
        "proxies",
        "problem",
        "kube-router is on this node"
    ));
    assert!(has(&findings, "leftovers", "note", "kube-ipvs0"));
    // whichever kind the plain name is, one of the two is the other
    let told = has(&findings, "leftovers", "note", "KUBE-SERVICES")
        || has(&findings, "iptables", "warning", "KUBE-SERVICES");
    assert!(told, "{findings:#?}");
    assert!(
        has(&findings, "iptables", "warning", "both kinds of iptables"),
        "{findings:#?}"
    );
}

#[test]
fn what_the_server_does_not_let_us_do_is_told() {
    let house = House::build("doctor-api");
    house.api.set_faults(Faults {
        forbidden: ["endpointslices".to_owned(), "events".to_owned()].into(),
        ..Faults::default()
    });
    let (good, findings) = examined(&house, &[]);
    assert!(!good);
    let words = "this account may not list endpointslices.discovery.k8s.io";
    assert!(has(&findings, "api", "problem", words), "{findings:#?}");
    assert!(has(
        &findings,
        "api",
        "warning",
        "may not create events.events.k8s.io"
    ));

    house.api.set_faults(Faults::default());
    let (good, findings) = examined(&house, &["--hostname-override=nobody"]);
    assert!(!good && has(&findings, "node", "problem", "404"), "{findings:#?}");
    let (good, findings) = examined(&house, &["--master=http://127.0.0.1:1"]);
    assert!(
        !good && has(&findings, "api", "problem", "cannot reach"),
        "{findings:#?}"
    );
}

#[test]
fn a_ferry_that_runs_is_no_obstacle() {
    let house = House::build("doctor-own");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let (good, findings) = examined(&house, &[]);
    assert!(good, "{findings:#?}");
    assert!(has(
        &findings,
        "proxies",
        "ok",
        "a ferry runs here in nftables mode"
    ));
    // the table in force is no leftover, but would be one of another mode
    let (_, findings) = examined(&house, &["--proxy-mode=iptables"]);
    assert!(
        has(&findings, "leftovers", "note", "table ip kube-proxy"),
        "{findings:#?}"
    );
}
