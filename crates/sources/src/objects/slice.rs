//! discovery/v1 EndpointSlice, and the core/v1 Endpoints of clusters that serve no slices.

use serde::Deserialize;

use super::{Meta, nullable};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub address_type: String,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port of a slice or of an Endpoints subset. Slices may leave everything out; `convert` knows what that means.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: Conditions,
    pub node_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub hints: Hints,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<Hint>,
    #[serde(deserialize_with = "nullable")]
    pub for_nodes: Vec<Hint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Hint {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
}

/// core/v1 Endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    #[serde(deserialize_with = "nullable")]
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub subsets: Vec<Subset>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subset {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "nullable")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    #[serde(deserialize_with = "nullable")]
    pub ip: String,
    pub node_name: Option<String>,
}
