//! core/v1 Node to [`Node`], and the networks of a networking/v1 ServiceCIDR.

use std::net::IpAddr;

use ferry_model::{Family, Node};
use ipnet::IpNet;

use super::ip::{parse_cidr, parse_ip};
use super::report::Report;
use super::{Converted, Interner};
use crate::bounded::quote;
use crate::objects::{self, Shape};

/// Set by the cluster autoscaler on a node that it is about to remove.
pub(super) const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Traffic to a service network that no Service answers is refused: 0.0.0.0/0 would cut the node off.
const SHORTEST_PREFIX: u8 = 8;

pub fn node(object: &objects::Node, interner: &Interner) -> Converted<Node> {
    let mut report = Report::new(Shape::Node, &object.metadata);
    let spec = &object.spec;
    let removed = object.metadata.deleted;
    let tainted = spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    let single = std::slice::from_ref(&spec.pod_cidr);
    let pod_cidrs = if spec.pod_cidrs.is_empty() {
        single
    } else {
        &spec.pod_cidrs
    };
    let fact = Node {
        addresses: addresses(&object.status, &mut report),
        pod_cidrs: networks("spec.podCIDRs", pod_cidrs, &mut report),
        zone: object
            .metadata
            .labels
            .zone
            .as_deref()
            .map(|zone| interner.get(zone)),
        eligible: !removed && !tainted,
    };
    report.finish(fact)
}

/// Internal addresses before external ones; of these the first, and the first of the other family.
fn addresses(status: &objects::NodeStatus, report: &mut Report) -> Vec<IpAddr> {
    let mut chosen: Vec<IpAddr> = Vec::with_capacity(2);
    for kind in ["InternalIP", "ExternalIP"] {
        for (index, entry) in status
            .addresses
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.kind == kind)
        {
            match parse_ip(&entry.address) {
                Some(address)
                    if chosen
                        .iter()
                        .all(|known| Family::of(*known) != Family::of(address)) =>
                {
                    chosen.push(address);
                }
                Some(_) => {}
                None => report.skip(
                    format_args!("status.addresses[{index}].address"),
                    format!("{} is not an IP address", quote(&entry.address)),
                ),
            }
        }
    }
    chosen
}

/// The networks of a ServiceCIDR object.
pub fn service_cidr(object: &objects::ServiceCidr) -> Converted<Vec<IpNet>> {
    let mut report = Report::new(Shape::ServiceCidr, &object.metadata);
    let mut fact = networks("spec.cidrs", &object.spec.cidrs, &mut report);
    fact.retain(|net| {
        let is_sane = net.prefix_len() >= SHORTEST_PREFIX;
        if !is_sane {
            let reason = format!("{net} is too large: more than services live there");
            report.skip("spec.cidrs", reason);
        }
        is_sane
    });
    report.finish(fact)
}

fn networks(field: &str, texts: &[String], report: &mut Report) -> Vec<IpNet> {
    let mut found = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        match parse_cidr(text) {
            Some(net) => found.push(net),
            None => report.skip(
                format_args!("{field}[{index}]"),
                format!("{} is not a network", quote(text)),
            ),
        }
    }
    found
}
