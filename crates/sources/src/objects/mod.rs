//! The Kubernetes objects as they arrive, in JSON (by serde) or protobuf: only the fields that are used.
//!
//! Pure data. Unknown fields are skipped without being stored, `null` means "absent" everywhere, and numbers
//! are read wide, so that an impossible value in one field is judged by `convert` and not by the decoder.

mod annotations;
mod any;
mod node;
mod protobuf;
mod service;
mod slice;
pub(crate) mod wire;

pub use annotations::{Annotations, TRIGGER_TIME};
pub use any::{Object, Shape, Unreadable};
pub use node::{Address, Node, NodeSpec, NodeStatus, ServiceCidr, ServiceCidrSpec, Taint};
pub(crate) use protobuf::{Entry, Identity};
pub use service::{
    AffinityConfig, ClientIp, Ingress, LoadBalancer, Service, ServicePort, ServiceSpec, ServiceStatus,
};
pub use slice::{
    Conditions, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, Hint, Hints, SliceEndpoint, Subset,
};

use std::borrow::Cow;

use jiff::Timestamp;
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
    /// In seconds since the epoch, if it says so in a way that can be read.
    #[serde(rename = "creationTimestamp", deserialize_with = "seconds")]
    pub created: Option<i64>,
    #[serde(rename = "deletionTimestamp", deserialize_with = "is_given")]
    pub deleted: bool,
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

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(deserializer)?;
    let time = text.and_then(|text| text.parse::<Timestamp>().ok());
    Ok(time.map(Timestamp::as_second))
}

fn is_given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<Cow<'_, str>>::deserialize(deserializer)?.is_some())
}

/// Go writes empty lists and maps as `null`; both mean "nothing".
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
