//! The Kubernetes objects as they arrive: only the fields that are used, in serde form.
//!
//! Pure data. Unknown fields are skipped without being stored, `null` means "absent" everywhere, and numbers
//! are read wide, so that an impossible value in one field is judged by `convert` and not by the decoder.

mod annotations;
mod any;
mod node;
mod service;
mod slice;

pub use annotations::{Annotations, TRIGGER_TIME};
pub use any::{Object, Shape, Unreadable};
pub use node::{Address, Node, NodeSpec, NodeStatus, ServiceCidr, ServiceCidrSpec, Taint};
pub use service::{
    AffinityConfig, ClientIp, Ingress, LoadBalancer, Service, ServicePort, ServiceSpec, ServiceStatus,
};
pub use slice::{
    Conditions, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, Hint, Hints, SliceEndpoint, Subset,
};

use serde::{Deserialize, Deserializer};

/// The part of `metadata` that matters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub annotations: Annotations,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
}

/// The labels that mean something to a service proxy; all others are dropped while decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Labels {
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<String>,
    #[serde(rename = "endpointslice.kubernetes.io/managed-by")]
    pub managed_by: Option<String>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

/// What every object says about itself, read before its kind is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Header {
    #[serde(deserialize_with = "nullable")]
    pub api_version: String,
    #[serde(deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub metadata: HeaderMeta,
}

/// The identity inside a [`Header`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderMeta {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
}

/// Go writes empty lists and maps as `null`; both mean "nothing".
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
