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
