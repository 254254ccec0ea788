//! core/v1 Service to [`Service`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_model::{Family, Service, ServiceName, ServicePort, ServiceType, TrafficPolicy};
use ipnet::IpNet;

use super::annotations::options;
use super::ip::{is_special, parse_cidr, parse_ip};
use super::report::Report;
use super::text::{check_port_name, port_number, protocol};
use super::{Converted, Interner};
use crate::bounded::quote;
use crate::objects::{self, ServiceSpec, Shape};

/// What the API server fills in, and what is used where an object bypassed it.
const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);
const MAX_AFFINITY: i64 = 86_400;

/// A Service as a fact; `None` for one that has nothing to serve (headless, ExternalName, without address).
pub fn service(object: &objects::Service, interner: &Interner) -> Converted<Option<Service>> {
    let mut report = Report::new(Shape::Service, &object.metadata);
    let fact = convert(object, interner, &mut report);
    report.finish(fact)
}

fn convert(object: &objects::Service, interner: &Interner, report: &mut Report) -> Option<Service> {
    let (meta, spec) = (&object.metadata, &object.spec);
    report.check_names(meta)?;
    if spec.kind == "ExternalName" || spec.cluster_ip == "None" {
        return None;
    }
    if spec.cluster_ip.is_empty() {
        report.skip("spec.clusterIP", "is empty: the Service has no address to serve");
        return None;
    }
    let cluster_ips = cluster_ips(spec, report);
    if cluster_ips.is_empty() {
        return None;
    }
    let kind = service_type(spec, report);
    let external_policy = external_policy(spec, kind, report);
    Some(Service {
        name: ServiceName::new(&meta.namespace, &meta.name),
        created: meta.created,
        kind,
        cluster_ips,
        ports: ports(spec, interner, report),
        external_ips: external_ips(spec, report),
        load_balancer_ips: load_balancer_ips(&object.status, report),
        source_ranges: source_ranges(spec, report),
        internal_policy: policy(
            "spec.internalTrafficPolicy",
            &spec.internal_traffic_policy,
            report,
        ),
        external_policy,
        affinity: affinity(spec, report),
        health_check_node_port: health_check_node_port(spec, kind, external_policy, report),
        options: options(&meta.annotations, interner, report),
    })
}

fn service_type(spec: &ServiceSpec, report: &mut Report) -> ServiceType {
    match spec.kind.as_str() {
        "" | "ClusterIP" => ServiceType::ClusterIp,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        other => {
            report.skip(
                "spec.type",
                format!("{} is not a known type; served as ClusterIP", quote(other)),
            );
            ServiceType::ClusterIp
        }
    }
}

/// The cluster IP of each family: `ipFamilies` says which entry of `clusterIPs` is whose.
fn cluster_ips(spec: &ServiceSpec, report: &mut Report) -> Vec<IpAddr> {
    if spec.ip_families.is_empty() {
        return cluster_ip("spec.clusterIP", &spec.cluster_ip, None, report)
            .into_iter()
            .collect();
    }
    let single = std::slice::from_ref(&spec.cluster_ip);
    let texts = if spec.cluster_ips.is_empty() {
        single
    } else {
        &spec.cluster_ips
    };
    let mut found: Vec<IpAddr> = Vec::with_capacity(texts.len().min(2));
    for (index, name) in spec.ip_families.iter().enumerate() {
        let Some(family) = Family::BOTH.into_iter().find(|family| family.as_str() == name) else {
            report.skip(
                format_args!("spec.ipFamilies[{index}]"),
                format!("{} is not IPv4 or IPv6", quote(name)),
            );
            continue;
        };
        let Some(text) = texts
            .get(index)
            .filter(|_| spec.ip_families[..index].iter().all(|other| other != name))
        else {
            continue;
        };
        found.extend(cluster_ip(
            format_args!("spec.clusterIPs[{index}]"),
            text,
            Some(family),
            report,
        ));
    }
    found
}

fn cluster_ip(
    field: impl std::fmt::Display,
    text: &str,
    family: Option<Family>,
    report: &mut Report,
) -> Option<IpAddr> {
    let reason = match (parse_ip(text), family) {
        (None, _) => format!("{} is not an IP address", quote(text)),
        (Some(address), _) if address.is_unspecified() || address.is_loopback() || address.is_multicast() => {
            format!("{address} cannot be served")
        }
        (Some(address), Some(family)) if Family::of(address) != family => {
            format!("{address} is not of its ipFamily {family}")
        }
        (Some(address), _) => return Some(address),
    };
    report.skip(field, reason);
    None
}

fn ports(spec: &ServiceSpec, interner: &Interner, report: &mut Report) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
    let mut places = HashMap::new();
    for (index, object) in spec.ports.iter().enumerate() {
        let Some(port) = port(index, object, interner, report) else {
            continue;
        };
        let identity = (Arc::clone(&port.name), port.protocol);
        let is_alone = spec.ports.len() == 1;
        match (!is_alone).then(|| places.entry(identity)) {
            // Of two with one identity the last holds, as in kube-proxy.
            Some(Entry::Occupied(earlier)) => {
                let reason = format!(
                    "repeats the name {} and protocol of an earlier port",
                    quote(&port.name)
                );
                report.skip(
                    format_args!("spec.ports[{index}]"),
                    reason + ", which it replaces",
                );
                ports[*earlier.get()] = port;
            }
            other => {
                if let Some(Entry::Vacant(place)) = other {
                    place.insert(ports.len());
                }
                ports.push(port);
            }
        }
    }
    ports
}

fn port(
    index: usize,
    object: &objects::ServicePort,
    interner: &Interner,
    report: &mut Report,
) -> Option<ServicePort> {
    let mut skip =
        |field: &str, reason: String| report.skip(format_args!("spec.ports[{index}].{field}"), reason);
    check_port_name(&object.name)
        .map_err(|reason| skip("name", reason))
        .ok()?;
    let protocol = protocol(&object.protocol)
        .map_err(|reason| skip("protocol", reason))
        .ok()?;
    let port = port_number(object.port)
        .map_err(|reason| skip("port", reason))
        .ok()?;
    let node_port = match object.node_port {
        0 => None,
        number => port_number(number)
            .map_err(|reason| skip("nodePort", reason))
            .ok(),
    };
    Some(ServicePort {
        name: interner.get(&object.name),
        protocol,
        port,
        node_port,
    })
}

fn external_ips(spec: &ServiceSpec, report: &mut Report) -> Vec<IpAddr> {
    let mut found = Vec::with_capacity(spec.external_ips.len());
    for (index, text) in spec
        .external_ips
        .iter()
        .enumerate()
        .filter(|(_, text)| !text.trim().is_empty())
    {
        match parse_ip(text).ok_or_else(|| format!("{} is not an IP address", quote(text))) {
            Ok(address) if is_special(address) => {
                report.skip(
                    format_args!("spec.externalIPs[{index}]"),
                    format!("{address} is not an address of the outside"),
                );
            }
            Ok(address) if !found.contains(&address) => found.push(address),
            Ok(_) => {}
            Err(reason) => report.skip(format_args!("spec.externalIPs[{index}]"), reason),
        }
    }
    found
}

fn load_balancer_ips(status: &objects::ServiceStatus, report: &mut Report) -> Vec<IpAddr> {
    let ingress = &status.load_balancer.ingress;
    let mut found = Vec::with_capacity(ingress.len());
    for (index, entry) in ingress
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.ip.is_empty())
    {
        let mut skip = |field: &str, reason: String| {
            report.skip(
                format_args!("status.loadBalancer.ingress[{index}].{field}"),
                reason,
            );
        };
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => {}
            Some("Proxy") => continue,
            Some(other) => {
                skip("ipMode", format!("{} is not VIP or Proxy", quote(other)));
                continue;
            }
        }
        match parse_ip(&entry.ip) {
            Some(address) if is_special(address) => {
                skip("ip", format!("{address} is not an address of the outside"));
            }
            Some(address) if !found.contains(&address) => found.push(address),
            Some(_) => {}
            None => skip("ip", format!("{} is not an IP address", quote(&entry.ip))),
        }
    }
    found
}

fn source_ranges(spec: &ServiceSpec, report: &mut Report) -> Vec<IpNet> {
    let mut found = Vec::with_capacity(spec.load_balancer_source_ranges.len());
    for (index, text) in spec.load_balancer_source_ranges.iter().enumerate() {
        match (text.trim(), parse_cidr(text.trim())) {
            ("", _) => {}
            (_, Some(net)) if !found.contains(&net) => found.push(net),
            (_, Some(_)) => {}
            (text, None) => report.skip(
                format_args!("spec.loadBalancerSourceRanges[{index}]"),
                format!("{} is not a network such as 10.0.0.0/8", quote(text)),
            ),
        }
    }
    found
}

fn policy(field: &str, text: &str, report: &mut Report) -> TrafficPolicy {
    match text {
        "" | "Cluster" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        other => {
            report.skip(
                field,
                format!("{} is not Cluster or Local; served as Cluster", quote(other)),
            );
            TrafficPolicy::Cluster
        }
    }
}

/// A Service that is not meant to be reached from outside has no policy for it. What counts is what it declares:
/// any external address, of whichever family, even one that is not served.
fn external_policy(spec: &ServiceSpec, kind: ServiceType, report: &mut Report) -> TrafficPolicy {
    let asked = policy(
        "spec.externalTrafficPolicy",
        &spec.external_traffic_policy,
        report,
    );
    match kind {
        ServiceType::ClusterIp if spec.external_ips.is_empty() => TrafficPolicy::Cluster,
        ServiceType::ClusterIp | ServiceType::NodePort | ServiceType::LoadBalancer => asked,
    }
}

fn affinity(spec: &ServiceSpec, report: &mut Report) -> Option<Duration> {
    match spec.session_affinity.as_str() {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            report.skip(
                "spec.sessionAffinity",
                format!("{} is not None or ClientIP", quote(other)),
            );
            return None;
        }
    }
    match spec.session_affinity_config.client_ip.timeout_seconds {
        None => Some(DEFAULT_AFFINITY),
        Some(seconds @ 1..=MAX_AFFINITY) => Some(Duration::from_secs(seconds.unsigned_abs())),
        Some(seconds) => {
            let reason = format!("{seconds} is not between 1 and {MAX_AFFINITY}; 10800 is used");
            report.skip("spec.sessionAffinityConfig.clientIP.timeoutSeconds", reason);
            Some(DEFAULT_AFFINITY)
        }
    }
}

/// Only a load balancer that must send to nodes with endpoints has a reason to ask.
fn health_check_node_port(
    spec: &ServiceSpec,
    kind: ServiceType,
    external_policy: TrafficPolicy,
    report: &mut Report,
) -> Option<u16> {
    if kind != ServiceType::LoadBalancer || external_policy != TrafficPolicy::Local {
        return None;
    }
    let reason = match spec.health_check_node_port {
        0 => "is missing: load balancers cannot ask which nodes have endpoints".into(),
        number => match port_number(number) {
            Ok(port) => return Some(port),
            Err(reason) => reason,
        },
    };
    report.skip("spec.healthCheckNodePort", reason);
    None
}
