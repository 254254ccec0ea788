//! core/v1 Service.

use serde::Deserialize;

use super::{Meta, nullable};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub ip_families: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub external_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub session_affinity: String,
    #[serde(deserialize_with = "nullable")]
    pub session_affinity_config: AffinityConfig,
    #[serde(deserialize_with = "nullable")]
    pub external_traffic_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub internal_traffic_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub health_check_node_port: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub protocol: String,
    #[serde(deserialize_with = "nullable")]
    pub port: i64,
    #[serde(deserialize_with = "nullable")]
    pub node_port: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct AffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    pub client_ip: ClientIp,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    pub timeout_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancer,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    #[serde(deserialize_with = "nullable")]
    pub ip: String,
    pub ip_mode: Option<String>,
}
