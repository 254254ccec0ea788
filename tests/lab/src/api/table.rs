//! Lists as tables: what kubectl asks for when a person looks.

use serde_json::{Value, json};

use super::kinds::Kind;
use super::store::Object;

/// Did the client ask for a table?
pub(super) fn wanted(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    let has = |parameter| first.split(';').any(|p| p.trim() == parameter);
    has("as=Table") && has("v=v1")
}

pub(super) fn render(kind: &Kind, version: u64, objects: &[&Object], age: std::time::Duration) -> Value {
    let names: &[&str] = match kind.kind {
        "Service" => &["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"],
        "EndpointSlice" => &["Name", "AddressType", "Ports", "Endpoints", "Age"],
        "Endpoints" => &["Name", "Endpoints", "Age"],
        "ServiceCIDR" => &["Name", "CIDRs", "Age"],
        "Node" | "Namespace" => &["Name", "Status", "Age"],
        _ => &["Name", "Age"],
    };
    let columns: Vec<Value> = names
        .iter()
        .map(|n| {
            let format = if *n == "Name" { "name" } else { "" };
            json!({"name": n, "type": "string", "format": format, "description": "", "priority": 0})
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|o| {
            let mut cells = vec![o.value["metadata"]["name"].as_str().unwrap_or_default().to_owned()];
            cells.extend(cells_of(kind, &o.value));
            cells.push(format!("{}s", age.as_secs()));
            let metadata = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o.value["metadata"],
            });
            json!({"cells": cells, "object": metadata})
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version.to_string()},
        "columnDefinitions": columns, "rows": rows,
    })
}

fn cells_of(kind: &Kind, object: &Value) -> Vec<String> {
    let none = |text: String| {
        if text.is_empty() {
            "<none>".to_owned()
        } else {
            text
        }
    };
    let spec = &object["spec"];
    match kind.kind {
        "Service" => {
            let ingress = join(&object["status"]["loadBalancer"]["ingress"], |i| text(&i["ip"]));
            let external = join(&spec["externalIPs"], text);
            let both: Vec<String> = [external, ingress]
                .into_iter()
                .filter(|s| !s.is_empty())
                .collect();
            let ports = join(&spec["ports"], |p| {
                let node = p["nodePort"].as_u64().map_or(String::new(), |n| format!(":{n}"));
                format!("{}{node}/{}", p["port"], p["protocol"].as_str().unwrap_or("TCP"))
            });
            let kind = spec["type"].as_str().unwrap_or("ClusterIP").to_owned();
            vec![
                kind,
                none(text(&spec["clusterIP"])),
                none(both.join(",")),
                none(ports),
            ]
        }
        "EndpointSlice" => {
            let ports = join(&object["ports"], |p| p["port"].to_string());
            let endpoints = join(&object["endpoints"], |e| join(&e["addresses"], text));
            vec![text(&object["addressType"]), none(ports), none(endpoints)]
        }
        "Endpoints" => {
            vec![none(join(&object["subsets"], |s| {
                join(&s["addresses"], |a| text(&a["ip"]))
            }))]
        }
        "ServiceCIDR" => vec![join(&spec["cidrs"], text)],
        "Node" => vec!["Ready".into()],
        "Namespace" => vec!["Active".into()],
        _ => Vec::new(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn join(list: &Value, each: impl Fn(&Value) -> String) -> String {
    list.as_array()
        .into_iter()
        .flatten()
        .map(each)
        .collect::<Vec<_>>()
        .join(",")
}
