//! One service and its slices -> what to do with its traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::endpoints::{Wanted, endpoints};
use super::{Endpoint, External, HealthCheck, NodePlan, PortPlan, Scope, ServicePlan, Verdict};
use crate::facts::{EndpointSlice, Service, ServicePort, TrafficPolicy};
use crate::names::{Family, PerFamily, PortName};
use crate::options::Policy;

pub(super) fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Arc<EndpointSlice>>,
    node: &NodePlan,
) -> ServicePlan {
    let slices: Vec<_> = slices.collect();
    let mut ports = Vec::with_capacity(service.ports.len());
    for family in Family::BOTH {
        let Some(cluster_ip) = service
            .cluster_ips
            .iter()
            .copied()
            .find(|ip| Family::of(*ip) == family)
        else {
            continue;
        };
        let shared = Shared::of(service, family, cluster_ip, node);
        // Two ports of one name and protocol: the last one counts.
        let by_name: BTreeMap<_, &ServicePort> = service
            .ports
            .iter()
            .map(|port| ((&*port.name, port.protocol), port))
            .collect();
        ports.extend(
            by_name
                .into_values()
                .map(|port| plan_port(service, port, &slices, &shared, node)),
        );
    }
    let health_check = service.health_check_node_port.map(|port| HealthCheck {
        port,
        local_endpoints: PerFamily::from_fn(|family| local_ready(service, &ports, family)),
    });
    ServicePlan {
        name: service.name.clone(),
        ports,
        health_check,
        options: service.options.clone(),
        lost: Vec::new(),
    }
}

/// What the ports of a service have in common in one family.
struct Shared {
    family: Family,
    cluster_ip: IpAddr,
    /// Declared, whether or not the gate lets them be served: they still make the service external.
    declared_external_ips: bool,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    source_ranges: Vec<IpNet>,
    node_in_source_ranges: bool,
}

impl Shared {
    fn of(service: &Service, family: Family, cluster_ip: IpAddr, node: &NodePlan) -> Self {
        let own = |ips: &[IpAddr]| -> Vec<IpAddr> {
            ips.iter()
                .copied()
                .filter(|ip| Family::of(*ip) == family)
                .collect()
        };
        let external_ips = own(&service.external_ips);
        let mut source_ranges: Vec<IpNet> = service
            .source_ranges
            .iter()
            .copied()
            .filter(|range| Family::of_net(range) == family)
            .collect();
        if source_ranges.iter().any(|range| range.prefix_len() == 0) {
            source_ranges.clear();
        }
        let node_ip = node.family(family).node_ip;
        Shared {
            family,
            cluster_ip,
            declared_external_ips: !external_ips.is_empty(),
            external_ips: if node.allow_external_ips {
                external_ips
            } else {
                Vec::new()
            },
            load_balancer_ips: own(&service.load_balancer_ips),
            node_in_source_ranges: node_ip
                .is_some_and(|ip| source_ranges.iter().any(|range| range.contains(&ip))),
            source_ranges,
        }
    }
}

fn plan_port(
    service: &Service,
    port: &ServicePort,
    slices: &[&Arc<EndpointSlice>],
    shared: &Shared,
    node: &NodePlan,
) -> PortPlan {
    let externally_accessible =
        port.node_port.is_some() || !shared.load_balancer_ips.is_empty() || shared.declared_external_ips;
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = service.external_policy == TrafficPolicy::Local;
    let wanted = Wanted {
        cluster: !internal_local || externally_accessible,
        local: internal_local || (external_local && externally_accessible),
    };
    let (endpoints, has_endpoints) =
        endpoints(slices, shared.family, &port.name, port.protocol, wanted, node);
    let verdict = |policy| verdict(policy, &endpoints, has_endpoints, &node.policy);
    PortPlan {
        family: shared.family,
        name: PortName {
            service: service.name.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
        },
        port: port.port,
        cluster_ip: shared.cluster_ip,
        external_ips: shared.external_ips.clone(),
        load_balancer_ips: shared.load_balancer_ips.clone(),
        node_port: port.node_port,
        internal_policy: service.internal_policy,
        internal: verdict(service.internal_policy),
        external: External {
            policy: service.external_policy,
            verdict: verdict(service.external_policy),
        },
        externally_accessible,
        has_endpoints,
        affinity: service.affinity,
        source_ranges: shared.source_ranges.clone(),
        node_in_source_ranges: shared.node_in_source_ranges,
        endpoints,
    }
}

fn verdict(policy: TrafficPolicy, endpoints: &[Endpoint], has_endpoints: bool, modes: &Policy) -> Verdict {
    match policy {
        _ if !has_endpoints => Verdict::Reject,
        TrafficPolicy::Cluster => Verdict::Forward(Scope::Cluster),
        TrafficPolicy::Local if endpoints.iter().any(Endpoint::in_local_pool) => {
            Verdict::Forward(Scope::Local)
        }
        TrafficPolicy::Local if modes.local_falls_back && endpoints.iter().any(Endpoint::in_cluster_pool) => {
            Verdict::Forward(Scope::Cluster)
        }
        TrafficPolicy::Local if modes.local_falls_back => Verdict::Reject,
        TrafficPolicy::Local => Verdict::Drop,
    }
}

/// Ready endpoints on this node by distinct address: a pod with two ports counts once, a draining one not at all.
fn local_ready(service: &Service, ports: &[PortPlan], family: Family) -> Option<u32> {
    service.cluster_ips.iter().find(|ip| Family::of(**ip) == family)?;
    let ready = ports
        .iter()
        .filter(|port| port.family == family)
        .flat_map(|port| port.endpoints.iter())
        .filter(|endpoint| endpoint.is_local() && endpoint.is_ready())
        .map(|endpoint| endpoint.address().ip());
    Some(ready.collect::<BTreeSet<_>>().len() as u32)
}
