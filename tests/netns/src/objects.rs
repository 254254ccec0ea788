//! Services and slices for cases that are made, not recorded.

use serde_json::{Value, json};

/// An endpoint's address and the node it is on.
pub type Endpoint = (&'static str, &'static str);

pub const POD1: Endpoint = ("10.244.1.2", "node-a");
pub const POD2: Endpoint = ("10.244.1.3", "node-a");
pub const RPOD1: Endpoint = ("10.244.2.2", "node-b");
pub const RPOD2: Endpoint = ("10.244.2.3", "node-b");
pub const POD1_V6: Endpoint = ("fd00:10:244:1::2", "node-a");
pub const RPOD1_V6: Endpoint = ("fd00:10:244:2::2", "node-b");

/// The flag of a cluster whose pods are those of the lab.
pub const CLUSTER_CIDR: &str = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48";

/// A service with one port for TCP and one for UDP, both 80, at one address of each given family.
pub fn service(name: &str, ips: &[&str]) -> Value {
    let families: Vec<&str> = ips
        .iter()
        .map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families,
            "ipFamilyPolicy": "PreferDualStack", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [
                {"name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP"},
                {"name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP"},
            ],
        },
        "status": {"loadBalancer": {}},
    })
}

/// As [`service`], with clients that stick to their endpoint.
pub fn sticky_service(name: &str, ip: &str, seconds: u32) -> Value {
    let mut service = service(name, &[ip]);
    service["spec"]["sessionAffinity"] = "ClientIP".into();
    service["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
    service
}

/// The slice of a service for the family of the endpoints; name the family for an empty one.
pub fn slice(service: &str, family: &str, endpoints: &[Endpoint]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, node)| {
            json!({
                "addresses": [address], "nodeName": node,
                "conditions": {"ready": true, "serving": true, "terminating": false},
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "name": format!("{service}-{}", family.to_lowercase()), "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "ports": [
            {"name": "tcp", "port": 8080, "protocol": "TCP"},
            {"name": "udp", "port": 8080, "protocol": "UDP"},
        ],
        "endpoints": endpoints,
    })
}
