//! core/v1 Node and networking/v1 ServiceCIDR.

use serde::Deserialize;

use super::{Meta, nullable};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR", deserialize_with = "nullable")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Taint {
    #[serde(deserialize_with = "nullable")]
    pub key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<Address>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Address {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceCidrSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}
