//! Facts become objects that become the same facts: with everything that the recorded scenarios have.

use ferry_model::Event;
use ferry_sources::convert::{self, Interner};
use ferry_sources::manifests::{Format, read};
use serde_json::{Value, json};

fn facts(objects: &[Value]) -> Vec<Event> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let changes = read(list.as_bytes(), Format::Json, &Interner::default()).unwrap();
    changes.into_iter().flat_map(|change| change.events).collect()
}

/// Every object anywhere in a document.
fn objects(document: &Value, found: &mut Vec<Value>) {
    match document {
        Value::Object(fields) if fields.contains_key("kind") && fields.contains_key("metadata") => {
            found.push(document.clone());
        }
        Value::Object(fields) => fields.values().for_each(|value| objects(value, found)),
        Value::Array(values) => values.iter().for_each(|value| objects(value, found)),
        _ => {}
    }
}

fn assert_same_again(objects: &[Value]) -> usize {
    let is_there = |fact: &Event| convert::object(fact, "node-a").is_some();
    let first: Vec<Event> = facts(objects).into_iter().filter(is_there).collect();
    let back: Vec<Value> = first
        .iter()
        .filter_map(|fact| convert::object(fact, "node-a"))
        .collect();
    assert_eq!(facts(&back), first);
    first.len()
}

#[test]
fn every_recorded_object_comes_back_the_same() {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle/scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(scenarios).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut found = Vec::new();
        objects(&serde_json::from_str(&text).unwrap(), &mut found);
        seen += assert_same_again(&found);
    }
    assert!(seen > 50, "{seen} objects");
}

#[test]
fn what_no_recording_has_comes_back_too() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "all", "namespace": "ns", "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {
                "ferry.dev/scheduler": "wrr", "ferry.dev/drain-deadline": "1m30s", "ferry.dev/proxy-protocol": "v2",
            },
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ports": [
                {"name": "a", "port": 1, "nodePort": 30001, "protocol": "SCTP"},
                {"name": "b", "port": 2, "protocol": "UDP"},
            ],
            "externalIPs": ["203.0.113.1"], "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/32"],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "all-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "all"}},
        "addressType": "IPv4", "ports": [{"name": "a", "port": 7, "protocol": "SCTP"}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "nodeName": "n", "conditions": {"ready": false, "serving": true, "terminating": true},
             "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]}},
            {"addresses": ["10.1.0.2"]},
        ],
    });
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "z"}},
        "spec": {"podCIDRs": ["10.244.0.0/24"], "taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    let cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/16", "fd00::/108"]},
    });
    assert_eq!(assert_same_again(&[service, slice, node, cidr]), 4);
}
