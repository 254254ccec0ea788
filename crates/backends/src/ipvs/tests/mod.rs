//! Pure tests: what is rendered, held to kube-proxy's own examples and to what was recorded from it; and the difference
//! between rulesets.
#![allow(clippy::unwrap_used, clippy::panic)]

mod differences;
mod examples;
mod recorded;

use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::*;

use super::Options;
use super::diff::Before;
use super::family::{render_all, rules};
use super::observe::{Addresses, view};
use super::rules::Rules;
use super::ruleset::Ruleset;
use crate::Likeness;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn options(detect_local: DetectLocal) -> PlanOptions {
    PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::ipvs(),
        masquerade_all: false,
        detect_local,
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    }
}

fn standing(node: &[&str], host: &[&str]) -> [Event; 2] {
    let node = Node {
        addresses: node.iter().map(|text| ip(text)).collect(),
        pod_cidrs: vec![
            "10.244.1.0/24".parse().unwrap(),
            "fd00:10:244:1::/64".parse().unwrap(),
        ],
        zone: Some("zone-a".into()),
        eligible: true,
    };
    let addresses = host.iter().map(|text| ip(text)).collect();
    [
        Event::Node(Some(Arc::new(node))),
        Event::Host(Arc::new(Host { addresses })),
    ]
}

/// What kube-proxy writes.
fn literal() -> Options {
    Options {
        likeness: Likeness::Rules,
        ..Options::default()
    }
}

fn rendered(plan: &Plan, family: Family) -> (Ruleset, Rules) {
    let addresses = Addresses::from_plan(plan.node().family(family).addresses.iter().copied());
    let view = view(plan.node(), family, &addresses);
    let mut ruleset = Ruleset::default();
    render_all(&mut ruleset, plan, &view, &literal(), &mut Before::default());
    let rules = rules(&ruleset, plan.node(), family, &literal(), true);
    (ruleset, rules)
}
