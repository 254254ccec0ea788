//! What `plan` and `trace` print, to the letter. They read manifests and touch nothing.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/commands");
    Command::new(env!("CARGO_BIN_EXE_ferry"))
        .arg(args[0])
        .arg("--manifests")
        .arg(data.join("manifests"))
        .args(["--hostname-override", "node-a", "--cluster-cidr", "10.244.0.0/16"])
        .args(&args[1..])
        .output()
        .unwrap()
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_plan_says_what_becomes_of_every_service() {
    assert_eq!(
        text(&["plan", "--mode", "iptables"]),
        include_str!("data/commands/plan.txt")
    );
}

#[test]
fn a_plan_as_json_says_the_same() {
    let plan: serde_json::Value = serde_json::from_str(&text(&["plan", "-o", "json"])).unwrap();
    let web = plan["services"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["name"] == "shop/web")
        .unwrap();
    assert_eq!(web["healthCheckNodePort"], 30999);
    assert_eq!(web["ports"][0]["clusterIp"], "10.96.0.10:80");
    assert_eq!(web["ports"][0]["affinitySeconds"], 600);
    let endpoints = web["ports"][0]["endpoints"].as_array().unwrap();
    let pools: Vec<(bool, bool)> = endpoints
        .iter()
        .map(|e| (e["inClusterPool"] == true, e["inLocalPool"] == true))
        .collect();
    assert_eq!(pools, [(true, true), (true, false), (false, false)]);
    assert_eq!(plan["skipped"].as_array().unwrap().len(), 1);
}

#[test]
fn a_trace_gives_the_reason_for_each_step() {
    let trace =
        |from: &str, to: &str, mode: &str| text(&["trace", "--mode", mode, "--from", from, "--to", to]);
    let all = [
        trace("203.0.113.9", "198.51.100.5:80", "iptables"),
        trace("192.0.2.200", "198.51.100.5:80", "iptables"),
        trace("10.244.1.9", "10.96.0.53:53/udp", "iptables"),
        trace("10.244.1.9", "10.96.0.10:81", "nftables"),
        trace("10.244.1.9", "10.96.0.10:81", "iptables"),
    ];
    assert_eq!(all.join("\n"), include_str!("data/commands/traces.txt"));
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_ferry"))
        .args(["plan", "--manifests", "/nonexistent/manifests"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/nonexistent/manifests"), "{said}");
}

#[test]
fn a_comparison_names_each_class_of_packets_once_and_its_services() {
    let compared = |args: &[&str]| {
        let output = run(&[&["compare"], args].concat());
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said.into_owned())
    };
    let (code, same) = compared(&["--proxy-mode", "iptables", "--mode", "iptables"]);
    assert_eq!(code, Some(0), "{same}");
    assert!(same.contains("no packet would be treated differently"), "{same}");

    let (code, text) = compared(&["--proxy-mode", "iptables", "--mode", "nftables"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("a port of a cluster IP that no service has: not ours -> reject"),
        "{text}"
    );
    assert!(text.contains("node ports are answered on"), "{text}");

    let (code, json) = compared(&["--proxy-mode", "iptables", "--mode", "userspace", "-o", "json"]);
    assert_eq!(code, Some(1), "{json}");
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let classes = report["classes"].as_array().unwrap();
    let relayed = classes.iter().find(|class| {
        class["client"] == "pods"
            && class["frontend"] == "cluster IP"
            && class["after"]
                .as_str()
                .unwrap()
                .ends_with("which see the node's address")
    });
    let services = relayed.unwrap()["services"].as_array().unwrap();
    assert!(
        services.iter().any(|name| name == "shop/web:http/tcp IPv4"),
        "{json}"
    );
    assert_eq!(
        (&report["form"], &report["after"]["mode"]),
        (&1.into(), &"userspace".into())
    );
}

/// The same program as another version of itself: by its printed plan nothing is different, and in another mode the same
/// is as without it.
#[test]
fn another_program_is_asked_for_its_plan() {
    let myself = env!("CARGO_BIN_EXE_ferry");
    let output = run(&["compare", "--proxy-mode", "iptables", "--binary", myself]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let output = run(&[
        "compare",
        "--proxy-mode",
        "iptables",
        "--mode",
        "ipvs",
        "--binary",
        myself,
    ]);
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["compare", "--binary", "/bin/false"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("/bin/false plan: exit status: 1"), "{said}");
    let output = run(&["compare"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("name what to compare with"));
}
