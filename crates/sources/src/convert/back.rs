//! Facts to Kubernetes objects: what a service proxy knows of a cluster, in a form that it and everybody else can read.
//! What always holds: an object that is converted again becomes the fact that it was made of.

use std::net::IpAddr;

use ferry_model::{
    EndpointSlice, Event, Node, Service, ServiceOptions, ServiceType, SliceEndpoint, TrafficPolicy,
};
use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The object that a fact was, as far as it is known; none for what is gone and for what is no object.
pub fn object(fact: &Event, node_name: &str) -> Option<Value> {
    match fact {
        Event::Service(_, service) => service.as_deref().map(service_object),
        Event::Slice(_, slice) => slice.as_deref().map(slice_object),
        Event::Node(node) => node.as_deref().map(|node| node_object(node, node_name)),
        Event::ServiceCidr(name, cidrs) => cidrs.as_deref().map(|cidrs| cidr_object(name, cidrs)),
        Event::Host(_) => None,
    }
}

fn service_object(service: &Service) -> Value {
    let texts = |ips: &[IpAddr]| -> Vec<String> { ips.iter().map(IpAddr::to_string).collect() };
    let families: Vec<&str> = service
        .cluster_ips
        .iter()
        .map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" })
        .collect();
    let ports = service.ports.iter().map(|port| {
        let mut object = json!({
            "name": &*port.name,
            "protocol": port.protocol.as_str().to_uppercase(),
            "port": port.port,
        });
        if let Some(node_port) = port.node_port {
            object["nodePort"] = node_port.into();
        }
        object
    });
    let ports: Vec<Value> = ports.collect();
    let mut spec = json!({
        "type": match service.kind {
            ServiceType::ClusterIp => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
        },
        "clusterIP": service.cluster_ips.first().map(IpAddr::to_string),
        "clusterIPs": texts(&service.cluster_ips),
        "ipFamilies": families,
        "ports": ports,
        "internalTrafficPolicy": policy(service.internal_policy),
        "externalTrafficPolicy": policy(service.external_policy),
    });
    if !service.external_ips.is_empty() {
        spec["externalIPs"] = texts(&service.external_ips).into();
    }
    if !service.source_ranges.is_empty() {
        let ranges: Vec<String> = service.source_ranges.iter().map(IpNet::to_string).collect();
        spec["loadBalancerSourceRanges"] = ranges.into();
    }
    if let Some(affinity) = service.affinity {
        spec["sessionAffinity"] = "ClientIP".into();
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": affinity.as_secs()}});
    }
    if let Some(port) = service.health_check_node_port {
        spec["healthCheckNodePort"] = port.into();
    }
    let name = &service.name;
    let mut metadata = metadata(name.namespace(), name.name(), annotations(service));
    if let Some(created) = service
        .created
        .and_then(|second| Timestamp::from_second(second).ok())
    {
        metadata["creationTimestamp"] = created.to_string().into();
    }
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    if !service.load_balancer_ips.is_empty() {
        let ingress = service.load_balancer_ips.iter();
        let ingress: Vec<Value> = ingress.map(|ip| json!({"ip": ip.to_string()})).collect();
        object["status"] = json!({"loadBalancer": {"ingress": ingress}});
    }
    object
}

/// What our own annotations asked for; no others are known.
fn annotations(service: &Service) -> Map<String, Value> {
    let ServiceOptions {
        scheduler,
        drain,
        proxy_protocol,
    } = &service.options;
    let mut annotations = Map::new();
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            annotations.insert(format!("ferry.dev/{key}"), value.into());
        }
    };
    set("scheduler", scheduler.as_deref().map(str::to_owned));
    set(
        "drain-deadline",
        drain.map(|drain| format!("{}ns", drain.as_nanos())),
    );
    set("proxy-protocol", proxy_protocol.then(|| "v2".to_owned()));
    annotations
}

fn metadata(namespace: &str, name: &str, annotations: Map<String, Value>) -> Value {
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    if !annotations.is_empty() {
        metadata["annotations"] = annotations.into();
    }
    metadata
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

/// A part of an Endpoints object has a name that no slice can have, and gets one that it can.
fn slice_object(slice: &EndpointSlice) -> Value {
    let ports = slice.ports.iter().map(|port| {
        json!({
            "name": &*port.name,
            "protocol": port.protocol.as_str().to_uppercase(),
            "port": port.port,
        })
    });
    let name = slice.name.name().replace('#', ".endpoints-");
    let mut metadata = metadata(slice.name.namespace(), &name, Map::new());
    metadata["labels"] = json!({"kubernetes.io/service-name": slice.service.name()});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": slice.family.as_str(),
        "ports": ports.collect::<Vec<Value>>(),
        "endpoints": slice.endpoints.iter().map(endpoint_object).collect::<Vec<Value>>(),
    })
}

fn endpoint_object(endpoint: &SliceEndpoint) -> Value {
    let mut object = json!({
        "addresses": [endpoint.address.to_string()],
        "conditions": {
            "ready": endpoint.ready,
            "serving": endpoint.serving,
            "terminating": endpoint.terminating,
        },
    });
    if let Some(node) = &endpoint.node {
        object["nodeName"] = (**node).into();
    }
    if let Some(hints) = &endpoint.hints {
        let names = |names: &[std::sync::Arc<str>]| -> Vec<Value> {
            names.iter().map(|name| json!({"name": &**name})).collect()
        };
        object["hints"] = json!({"forZones": names(&hints.zones), "forNodes": names(&hints.nodes)});
    }
    object
}

fn node_object(node: &Node, name: &str) -> Value {
    let mut metadata = metadata("", name, Map::new());
    if let Some(zone) = &node.zone {
        metadata["labels"] = json!({"topology.kubernetes.io/zone": &**zone});
    }
    let addresses = node.addresses.iter();
    let addresses: Vec<Value> = addresses
        .map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}))
        .collect();
    let pod_cidrs: Vec<String> = node.pod_cidrs.iter().map(IpNet::to_string).collect();
    let mut spec = json!({"podCIDRs": pod_cidrs});
    if !node.eligible {
        spec["taints"] = json!([{"key": super::node::TO_BE_DELETED, "effect": "NoSchedule"}]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"addresses": addresses},
    })
}

fn cidr_object(name: &str, cidrs: &[IpNet]) -> Value {
    let cidrs: Vec<String> = cidrs.iter().map(IpNet::to_string).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": metadata("", name, Map::new()),
        "spec": {"cidrs": cidrs},
    })
}
