//! Doubts about a valid configuration that only show once the node is known: kube-proxy's checks, its words.

use ferry_model::Family;
use ipnet::IpNet;

use super::settings::{DetectLocal, NodePortAddresses, Settings};
use super::values::aggregate;

/// What the checks need to know of the node.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    pub primary: Family,
    /// Both families work here.
    pub dual_stack: bool,
    /// The Node's `spec.podCIDRs`, if the daemon has looked.
    pub pod_cidrs: &'a [IpNet],
    /// The node-port addresses in force, `primary` expanded.
    pub node_port_cidrs: &'a [IpNet],
}

/// What the checks found. Log each of `doubts` under
/// `Kube-proxy configuration may be incomplete or incorrect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sanity {
    pub doubts: Vec<String>,
    /// The whole message, if the daemon must not start.
    pub fatal: Option<String>,
}

/// Checks the settings against the node.
pub fn sanity(settings: &Settings, node: NodeFacts<'_>) -> Sanity {
    let mut sanity = Sanity::default();
    sanity.doubts.extend(node_port_doubt(settings, node));
    let (found, fatal) = family_mismatches(settings, node);
    let Err(all) = aggregate(&found) else {
        return sanity;
    };
    if fatal {
        sanity.fatal = Some(format!("kube-proxy configuration is incorrect: {all}"));
    } else {
        sanity.doubts.push(all);
    }
    sanity
}

fn has(cidrs: &[IpNet], family: Family) -> bool {
    cidrs.iter().any(|cidr| Family::of_net(cidr) == family)
}

/// Some, and all of them of a family.
fn only(cidrs: &[IpNet], family: Family) -> bool {
    has(cidrs, family) && !has(cidrs, family.other())
}

fn cluster_cidrs(settings: &Settings) -> &[IpNet] {
    match &settings.detect_local {
        DetectLocal::ClusterCidr(cidrs) => cidrs,
        DetectLocal::NodeCidr | DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) => &[],
    }
}

fn node_port_doubt(settings: &Settings, node: NodeFacts<'_>) -> Option<String> {
    let (primary, other) = (node.primary, node.primary.other());
    let both = |cidrs: &[IpNet]| has(cidrs, primary) && has(cidrs, other);
    let looks_dual = [
        cluster_cidrs(settings),
        node.node_port_cidrs,
        &settings.ipvs.exclude_cidrs,
        node.pod_cidrs,
    ]
    .into_iter()
    .any(both);
    if settings.node_port_addresses == NodePortAddresses::All || node.node_port_cidrs.is_empty() {
        return Some(
            "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. \
             Consider using `--nodeport-addresses primary`"
                .to_owned(),
        );
    }
    if looks_dual && !has(node.node_port_cidrs, other) {
        return Some(format!(
            "cluster appears to be dual-stack but nodePortAddresses contains only {primary} addresses; \
             NodePort connections will be accepted on all local {other} IPs"
        ));
    }
    if !has(node.node_port_cidrs, primary) {
        return Some(format!(
            "cluster appears to be {primary}-primary but nodePortAddresses contains only {other} addresses; \
             NodePort connections will be accepted on all local {primary} IPs"
        ));
    }
    None
}

fn family_mismatches(settings: &Settings, node: NodeFacts<'_>) -> (Vec<String>, bool) {
    let wrong = node.primary.other();
    let cluster = format!(
        "{}-{}",
        node.primary,
        if node.dual_stack { "primary" } else { "only" }
    );
    let mut found = Vec::new();
    let mut fatal = false;
    if only(cluster_cidrs(settings), wrong) {
        found.push(format!(
            "cluster is {cluster} but clusterCIDRs contains only {wrong} addresses"
        ));
        fatal |= !node.dual_stack;
    }
    if only(node.pod_cidrs, wrong) {
        found.push(format!(
            "cluster is {cluster} but node.spec.podCIDRs contains only {wrong} addresses"
        ));
        fatal |= settings.detect_local == DetectLocal::NodeCidr;
    }
    if settings
        .winkernel_source_vip
        .is_some_and(|ip| Family::of(ip) == wrong)
    {
        found.push(format!("cluster is {cluster} but winkernel.sourceVip is {wrong}"));
    }
    if node.dual_stack {
        return (found, fatal);
    }
    if only(&settings.ipvs.exclude_cidrs, wrong) {
        found.push(format!(
            "cluster is {cluster} but ipvs.excludeCIDRs contains only {wrong} addresses"
        ));
    }
    let servers = [
        ("healthzBindAddress", settings.healthz_bind_address),
        ("metricsBindAddress", settings.metrics_bind_address),
    ];
    for (field, address) in servers {
        if address.is_some_and(|address| !address.ip().is_unspecified() && Family::of(address.ip()) == wrong)
        {
            found.push(format!("cluster is {cluster} but {field} is {wrong}"));
        }
    }
    (found, fatal)
}
