//! Clusters of any size, for benches.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// So many services with so many ready endpoints each, spread over nodes; every tenth endpoint is on `node-a`.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    pub services: u32,
    pub endpoints: u32,
}

impl Cluster {
    /// All objects: the node and its service CIDR, then a service and a slice each.
    pub fn objects(self) -> impl Iterator<Item = Value> {
        let pairs = (0..self.services).flat_map(move |i| [self.service(i), self.slice(i, 0)]);
        super::default_objects().into_iter().chain(pairs)
    }

    /// The address of service `i`, inside 10.96.0.0/12.
    pub fn cluster_ip(self, i: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 1, 0)) + i)
    }

    pub fn service(self, i: u32) -> Value {
        let ip = self.cluster_ip(i).to_string();
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name(i), "namespace": "bench", "uid": format!("5e000000-0000-4000-8000-{i:012}"),
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": name(i)},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "selector": {"app": name(i)},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
            "status": {"loadBalancer": {}},
        })
    }

    /// The slice of service `i`. Each `generation` replaces the last endpoint by another.
    pub fn slice(self, i: u32, generation: u32) -> Value {
        self.slice_of(i, self.endpoints, generation)
    }

    /// As [`Cluster::slice`], with another number of endpoints.
    pub fn slice_of(self, i: u32, count: u32, generation: u32) -> Value {
        let endpoints: Vec<Value> = (0..count)
            .map(|k| {
                let moved = if k + 1 == count { generation } else { 0 };
                let address =
                    Ipv4Addr::from(u32::from(Ipv4Addr::new(11, 0, 0, 1)) + i * 64 + k + moved * 0x0100_0000);
                let node = if k % 10 == 0 {
                    "node-a".to_owned()
                } else {
                    format!("node-{}", (i + k) % 500)
                };
                json!({
                    "addresses": [address.to_string()],
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                    "nodeName": node, "zone": format!("zone-{}", k % 3),
                    "targetRef": {
                        "kind": "Pod", "namespace": "bench", "name": format!("{}-{k}", name(i)),
                        "uid": format!("90d00000-0000-4000-8000-{i:08}{k:04}"),
                    },
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{}-slice", name(i)), "namespace": "bench",
                "uid": format!("51ce0000-0000-4000-8000-{i:012}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "kubernetes.io/service-name": name(i),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    }
}

fn name(i: u32) -> String {
    format!("service-{i:05}")
}
