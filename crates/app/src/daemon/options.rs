//! From settings to what the plan depends on.

use std::sync::Arc;

use ferry_model::{DetectLocal, NodePortAddress, PlanOptions};

use crate::config::{self, NodePortAddresses, Settings};
use crate::sync::Rhythm;

/// What the plan depends on beside the facts.
pub(crate) fn plan_options(settings: &Settings, node_name: Arc<str>) -> PlanOptions {
    let detect_local = match &settings.detect_local {
        config::DetectLocal::ClusterCidr(cidrs) => DetectLocal::ClusterCidrs(cidrs.clone()),
        config::DetectLocal::NodeCidr => DetectLocal::NodeCidrs,
        config::DetectLocal::BridgeInterface(name) => DetectLocal::Bridge(name.as_str().into()),
        config::DetectLocal::InterfaceNamePrefix(prefix) => {
            DetectLocal::InterfacePrefix(prefix.as_str().into())
        }
    };
    let node_port_addresses = match &settings.node_port_addresses {
        NodePortAddresses::All => Vec::new(),
        NodePortAddresses::Primary => vec![NodePortAddress::Primary],
        NodePortAddresses::Cidrs(cidrs) => cidrs.iter().copied().map(NodePortAddress::Cidr).collect(),
    };
    PlanOptions {
        node_name,
        policy: (settings.mode.policy)(settings),
        masquerade_all: settings.masquerade_all,
        detect_local,
        node_port_addresses,
        bind_address: Some(settings.bind_address).filter(|address| !address.is_unspecified()),
        allow_external_ips: settings.gates.enabled("AllowServiceExternalIPs"),
    }
}

/// How often to sync.
pub(crate) fn rhythm(settings: &Settings) -> Rhythm {
    let period = (settings.mode.full_sync_period)(settings);
    Rhythm {
        min: settings.min_sync_period,
        retry: settings.sync_period,
        // A minimum above the period would mean never.
        period: period.max(settings.min_sync_period),
    }
}
