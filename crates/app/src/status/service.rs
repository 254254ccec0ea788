//! One service with what is known of it beside its plan: where each endpoint runs and whom it is meant for.

use std::net::IpAddr;

use ferry_model::{Planner, ServiceName};
use serde::{Deserialize, Serialize};

use super::ServiceReport;

/// One service, closely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceDetail {
    pub service: ServiceReport,
    /// The node that looks at it, and its zone.
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Where its endpoints run, by address.
    pub places: Vec<PlaceReport>,
}

/// Where an endpoint runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlaceReport {
    pub address: IpAddr,
    /// The slice that says so.
    pub slice: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The zones that it is meant for, by its hints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
}

impl ServiceDetail {
    /// Of a service by its name, `namespace/name`; none where there is no such service.
    pub(super) fn of(planner: &Planner, name: &str) -> Option<Self> {
        let (namespace, own) = name.split_once('/')?;
        let name = ServiceName::new(namespace, own);
        let service = planner.plan().service(&name)?;
        let slices = planner.snapshot().slices(&name);
        let mut places: Vec<PlaceReport> = slices
            .flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (slice, endpoint)))
            .map(|(slice, endpoint)| PlaceReport {
                address: endpoint.address,
                slice: slice.name.name().to_owned(),
                node: endpoint.node.as_deref().map(str::to_owned),
                zones: endpoint.zone_hints().iter().map(ToString::to_string).collect(),
            })
            .collect();
        places.sort();
        places.dedup_by_key(|place| place.address);
        let node = planner.plan().node();
        Some(Self {
            service: ServiceReport::of(service),
            node: node.name.to_string(),
            zone: node.zone.as_deref().map(str::to_owned),
            places,
        })
    }

    /// Where an endpoint, given as address and port, runs.
    pub fn place(&self, endpoint: &str) -> Option<&PlaceReport> {
        let address: std::net::SocketAddr = endpoint.parse().ok()?;
        self.places.iter().find(|place| place.address == address.ip())
    }
}
