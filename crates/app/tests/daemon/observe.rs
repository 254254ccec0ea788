//! What the running daemon tells when it is asked.

use serde_json::{Value, json};

use super::house::{House, service, slice};

/// A house with one service that has one endpoint.
fn house_with_web(label: &str) -> House {
    let house = House::build(label);
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    house
}

#[test]
fn the_history_names_the_slice_its_version_and_who_broke_the_rules() {
    let house = house_with_web("observe-history");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let mut unready = slice("web", "10.244.1.2");
    unready["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false});
    house.api.apply([unready]).unwrap();
    let told = |args: &[&str]| house.ask(args).1;
    house.wait("the change", || {
        let text = told(&["history", "shop/web"]);
        text.contains("ready=false") && text.contains("in the kernel")
    });
    let text = told(&["history", "shop/web", "--since", "1h"]);
    assert!(
        text.contains(
            "shop/web:http: 10.244.1.2:8080 left the cluster pool: slice web-1 says ready=false, serving=false"
        ),
        "{text}"
    );
    assert!(text.contains("EndpointSlice shop/web-1 at version "), "{text}");
    assert!(text.contains("for others -> reject"), "{text}");
    let report: Value = serde_json::from_str(&told(&["history", "-o", "json"])).unwrap();
    let entries = report["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["what"] == "listed"));
    let is_object = |entry: &&Value| entry["what"] == "changed" && entry["objects"].is_array();
    let change = entries.iter().find(is_object).unwrap();
    assert!(change["objects"][0]["version"].as_u64().unwrap() > 0, "{change}");
    assert!(change["inForce"][0]["secondsLater"].as_f64().unwrap() < 30.0);
    assert!(report["bytes"].as_u64().unwrap() < report["bound"].as_u64().unwrap());

    house.node.sh("nft delete table ip kube-proxy").unwrap();
    house.wait("the repair", || told(&["history"]).contains("changed by nft"));
    let refused = house.ask(&["history", "a/b/c"]);
    assert_eq!(refused.0, 1);
    assert!(
        refused.1.contains("is not the name of a Service"),
        "{}",
        refused.1
    );
    assert!(told(&["history", "other/none", "--since", "1ns"]).contains("nothing is remembered"));
}

/// In nftables and iptables mode the daemon hears of a change and puts it right before it can be asked; what those modes
/// find different is tested with their backends.
#[test]
fn a_difference_between_kernel_and_plan_is_named() {
    for mode in ["nftables", "iptables", "userspace"] {
        let house = house_with_web(&format!("observe-diff-{mode}"));
        let mut daemon = house.daemon_in(mode, &["--iptables-sync-period=1h"]);
        daemon.wait_synced();
        let (code, text) = house.ask(&["diff"]);
        assert_eq!(code, 0, "{mode}: {text}");
        assert!(
            text.contains("the kernel holds what the plan says"),
            "{mode}: {text}"
        );
        if mode == "userspace" {
            // Nobody tells of these rules, so they stay away.
            house.node.sh("iptables -t nat -F KUBE-PORTALS-HOST").unwrap();
            let (code, text) = house.ask(&["diff"]);
            assert_eq!(code, 1, "{text}");
            assert!(text.contains("rule(s) were missing"), "{text}");
            let (code, json) = house.ask(&["diff", "-o", "json"]);
            let report: Value = serde_json::from_str(&json).unwrap();
            assert_eq!((code, &report["mode"]), (1, &json!("userspace")));
        }
    }
    let house = House::build("observe-diff-none");
    let (code, text) = house.ask(&["diff"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("no daemon is running here"), "{text}");
}

#[test]
fn the_facts_of_a_running_daemon_are_compared_with_another_mode() {
    let house = house_with_web("observe-compare");
    let mut daemon = house.daemon_in("iptables", &[]);
    daemon.wait_synced();
    let (code, text) = house.ask(&["compare", "--mode", "iptables"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = house.ask(&["compare", "--mode", "userspace"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("before  the running daemon (iptables mode)"),
        "{text}"
    );
    assert!(text.contains("1 service port(s): shop/web"), "{text}");
    let config = house.path("new.conf");
    std::fs::write(
        &config,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
         clusterCIDR: 10.244.0.0/16\niptables: {masqueradeAll: true}\n",
    )
    .unwrap();
    let (code, text) = house.ask(&["compare", "--config", config.to_str().unwrap()]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("from pods to cluster IP"), "{text}");
    let (code, text) = house.ask(&["compare", "--config", "/nonexistent"]);
    assert_eq!(code, 2, "{text}");
}
