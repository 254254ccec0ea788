//! discovery/v1 EndpointSlice and core/v1 Endpoints to [`EndpointSlice`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ferry_model::{EndpointSlice, Family, Hints, ServiceName, SliceEndpoint, SliceName, SlicePort};
use jiff::Timestamp;

use super::ip::{is_special, parse_ip};
use super::report::Report;
use super::text::{check_name, check_port_name, port_number, protocol};
use super::{Converted, Interner};
use crate::bounded::quote;
use crate::objects::{self, EndpointPort, Hint, Meta, Shape};

/// An EndpointSlice as a fact; `None` where it belongs to no service or holds no IP addresses.
pub fn slice(object: &objects::EndpointSlice, interner: &Interner) -> Converted<Option<EndpointSlice>> {
    let mut report = Report::new(Shape::EndpointSlice, &object.metadata);
    let fact = convert(object, interner, &mut report);
    report.finish(fact)
}

/// When the change happened that an object reports, if it says so in a way that can be read.
pub fn trigger_time(meta: &Meta) -> Option<SystemTime> {
    let text = meta.annotations.trigger_time.as_deref()?;
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

fn convert(
    object: &objects::EndpointSlice,
    interner: &Interner,
    report: &mut Report,
) -> Option<EndpointSlice> {
    let meta = &object.metadata;
    report.check_names(meta)?;
    let service = meta.labels.service_name.as_deref().unwrap_or_default();
    check_name(service)
        .map_err(|reason| report.skip("label kubernetes.io/service-name", reason))
        .ok()?;
    let Some(family) = Family::BOTH
        .into_iter()
        .find(|family| family.as_str() == object.address_type)
    else {
        report.skip(
            "addressType",
            format!("{} is not IPv4 or IPv6", quote(&object.address_type)),
        );
        return None;
    };
    let mut endpoints: Vec<SliceEndpoint> = Vec::with_capacity(object.endpoints.len());
    for (index, endpoint) in object.endpoints.iter().enumerate() {
        match address(endpoint.addresses.first(), family) {
            Ok(address) => {
                let before = endpoints.last().and_then(|endpoint| endpoint.hints.as_ref());
                let hints = hints(&endpoint.hints, before, interner);
                endpoints.push(slice_endpoint(address, endpoint, hints, interner));
            }
            Err(reason) => report.skip(format_args!("endpoints[{index}].addresses"), reason),
        }
    }
    Some(EndpointSlice {
        name: SliceName::new(&meta.namespace, &meta.name),
        service: ServiceName::new(&meta.namespace, service),
        family,
        ports: ports("ports", &object.ports, interner, report, |port| {
            port.name.as_deref()
        }),
        endpoints,
    })
}

fn address(text: Option<&String>, family: Family) -> Result<IpAddr, String> {
    let address = endpoint_address(text.ok_or("is empty")?)?;
    if Family::of(address) != family {
        return Err(format!("{address} is not of the slice's addressType {family}"));
    }
    Ok(address)
}

fn endpoint_address(text: &str) -> Result<IpAddr, String> {
    let address = parse_ip(text).ok_or_else(|| format!("{} is not an IP address", quote(text)))?;
    if is_special(address) {
        return Err(format!("{address} cannot be an endpoint"));
    }
    Ok(address)
}

fn slice_endpoint(
    address: IpAddr,
    object: &objects::SliceEndpoint,
    hints: Option<Arc<Hints>>,
    interner: &Interner,
) -> SliceEndpoint {
    SliceEndpoint {
        address,
        node: object.node_name.as_deref().map(|name| interner.get(name)),
        ready: object.conditions.ready.unwrap_or(true),
        serving: object.conditions.serving.unwrap_or(true),
        terminating: object.conditions.terminating.unwrap_or(false),
        hints,
    }
}

/// The hints of an endpoint: one value with those of the endpoint before it, if they are the same.
fn hints(object: &objects::Hints, before: Option<&Arc<Hints>>, interner: &Interner) -> Option<Arc<Hints>> {
    let hints = Hints {
        zones: hinted(&object.for_zones, interner),
        nodes: hinted(&object.for_nodes, interner),
    };
    match before {
        _ if hints == Hints::default() => None,
        Some(before) if **before == hints => Some(Arc::clone(before)),
        _ => Some(Arc::new(hints)),
    }
}

/// Hints are a set; sorted, so that equal sets are equal facts.
fn hinted(hints: &[Hint], interner: &Interner) -> Box<[Arc<str>]> {
    let mut names: Vec<Arc<str>> = hints.iter().map(|hint| interner.get(&hint.name)).collect();
    names.sort();
    names.dedup();
    names.into()
}

/// `name_of` says what a missing name means: an error in a slice, the empty name in Endpoints.
fn ports<'a>(
    field: &str,
    objects: &'a [EndpointPort],
    interner: &Interner,
    report: &mut Report,
    name_of: impl Fn(&'a EndpointPort) -> Option<&'a str>,
) -> Vec<SlicePort> {
    let mut ports = Vec::with_capacity(objects.len());
    for (index, object) in objects.iter().enumerate() {
        let mut skip =
            |part: &str, reason: String| report.skip(format_args!("{field}[{index}].{part}"), reason);
        let Some(name) = name_of(object) else {
            skip("name", "is missing".into());
            continue;
        };
        if let Err(reason) = check_port_name(name) {
            skip("name", reason);
            continue;
        }
        let number = match object.port {
            None | Some(0) => Err("is missing: slices for all ports are not served".into()),
            Some(number) => port_number(number),
        };
        match (number, protocol(object.protocol.as_deref().unwrap_or_default())) {
            (Ok(port), Ok(protocol)) => ports.push(SlicePort {
                name: interner.get(name),
                protocol,
                port,
            }),
            (Err(reason), _) => skip("port", reason),
            (_, Err(reason)) => skip("protocol", reason),
        }
    }
    ports
}

/// An Endpoints object as slices, one per subset and family that has addresses.
pub fn endpoints(object: &objects::Endpoints, interner: &Interner) -> Converted<Vec<EndpointSlice>> {
    let mut report = Report::new(Shape::Endpoints, &object.metadata);
    let mut slices = Vec::new();
    if report.check_names(&object.metadata).is_some() {
        for index in 0..object.subsets.len() {
            subset(object, index, interner, &mut report, &mut slices);
        }
    }
    report.finish(slices)
}

/// The name of the `part`-th slice of an Endpoints object; no real slice can have it.
pub fn endpoints_slice_name(namespace: &str, name: &str, part: usize) -> SliceName {
    SliceName::new(namespace, &format!("{name}#{part}"))
}

fn subset(
    object: &objects::Endpoints,
    index: usize,
    interner: &Interner,
    report: &mut Report,
    slices: &mut Vec<EndpointSlice>,
) {
    let (meta, subset) = (&object.metadata, &object.subsets[index]);
    let field = format!("subsets[{index}].ports");
    let ports = ports(&field, &subset.ports, interner, report, |port| {
        Some(port.name.as_deref().unwrap_or_default())
    });
    let mut of_family: [Vec<SliceEndpoint>; 2] = [Vec::new(), Vec::new()];
    let lists = [
        ("addresses", &subset.addresses, true),
        ("notReadyAddresses", &subset.not_ready_addresses, false),
    ];
    for (list, addresses, ready) in lists {
        for (position, address) in addresses.iter().enumerate() {
            let ip = match endpoint_address(&address.ip) {
                Ok(ip) => ip,
                Err(reason) => {
                    report.skip(format_args!("subsets[{index}].{list}[{position}].ip"), reason);
                    continue;
                }
            };
            of_family[usize::from(ip.is_ipv6())].push(SliceEndpoint {
                address: ip,
                node: address.node_name.as_deref().map(|name| interner.get(name)),
                ready,
                serving: ready,
                terminating: false,
                hints: None,
            });
        }
    }
    for (family, endpoints) in Family::BOTH.into_iter().zip(of_family) {
        if !endpoints.is_empty() {
            slices.push(EndpointSlice {
                name: endpoints_slice_name(&meta.namespace, &meta.name, slices.len()),
                service: ServiceName::new(&meta.namespace, &meta.name),
                family,
                ports: ports.clone(),
                endpoints,
            });
        }
    }
}
