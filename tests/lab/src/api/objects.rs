//! Plain objects for tests, all in the namespace `shop`: enough to be served, and nothing that a case does not ask for.

use serde_json::{Value, json};

/// A Service of type ClusterIP with the port `http` at 80.
pub fn service(name: &str, ip: &str) -> Value {
    let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": [family],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    })
}

/// An EndpointSlice whose endpoints are ready on `node-a`, at port 8080.
pub fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoint =
        |address| json!({"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<Value>>(),
    })
}

/// An Endpoints object with these addresses in its subsets, at port 8080.
pub fn endpoints(service: &str, subsets: &[&[&str]]) -> Value {
    let subset = |addresses: &&[&str]| {
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"addresses": addresses, "ports": [{"port": 8080}]})
    };
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": service, "namespace": "shop"},
        "subsets": subsets.iter().map(subset).collect::<Vec<Value>>(),
    })
}
