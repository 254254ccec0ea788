//! Kubernetes' own end-to-end cases of sig-network that no recorded scenario has: one cluster that lives through all of
//! them, one after the other. docs/conformance.md has the whole list and says which test covers which case.

mod endpoints;
mod outside;
mod run;
mod services;
mod wire;

use std::net::SocketAddr;

use anyhow::{Context, Result};
use ferry_lab::netns::{Probe, Proto};
use serde_json::json;

use crate::objects::{self, CLUSTER_CIDR, POD1};
use crate::{Mode, Stage};
use run::Run;

type Case = (&'static str, fn(&mut Run) -> Result<()>);

const CASES: &[Case] = &[
    ("named-ports-have-targets-of-their-own", services::multiport),
    ("ports-come-and-go", services::ports_come_and_go),
    ("a-service-is-made-again", services::recreated),
    ("a-neighbour-comes-and-goes", services::neighbour),
    ("the-type-changes", services::types),
    ("one-number-for-two-protocols", services::two_protocols),
    ("a-node-port-is-given-back", outside::node_port_given_back),
    ("ready-though-terminating", endpoints::published_though_not_ready),
    ("affinity-is-switched", endpoints::affinity_switched),
    ("endpoints-on-the-host-network", endpoints::host_network),
    (
        "health-check-node-port-follows-the-policy",
        outside::health_check_node_port,
    ),
    ("a-named-target-differs-by-endpoint", endpoints::named_targets),
    ("slices-are-merged", endpoints::slices_merged),
    ("two-services-share-endpoints", services::shared_endpoints),
    (
        "a-load-balancer-without-node-ports",
        outside::load_balancer_without_node_ports,
    ),
    ("hints-for-the-node", endpoints::hints_for_the_node),
    ("a-datagram-in-fragments", wire::fragments),
    ("a-large-request", wire::large_request),
    ("a-target-port-changes-under-udp", outside::target_port_changes),
    ("an-invalid-packet-resets-nothing", wire::invalid_packet),
    ("others-translate-too", outside::host_port),
    ("pods-reach-pods-as-themselves", wire::no_snat),
    ("close-wait-times-out", wire::close_wait),
    ("another-service-cidr", services::another_service_cidr),
];

/// What the cases are called in docs/conformance.md.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name).chain(["sctp"])
}

/// All cases, in one mode.
pub fn cases(mode: Mode) -> Result<()> {
    let mut args = vec![CLUSTER_CIDR.to_owned()];
    if matches!(mode, Mode::Nftables | Mode::Ipvs) {
        // what kube-proxy has in these modes against segments outside their window; iptables mode drops them
        args.push("--conntrack-tcp-be-liberal".to_owned());
    }
    let mut run = Run {
        stage: Stage::up(mode, &args, &[])?,
        octet: 0,
        made: Vec::new(),
    };
    for (name, case) in CASES {
        run.octet += 1;
        case(&mut run).with_context(|| format!("{name}, {}", mode.as_str()))?;
        let made = std::mem::take(&mut run.made);
        run.stage.api().delete(&made)?;
    }
    run.stage.finish()
}

/// Stream Control Transmission, for kernels that have it.
pub fn sctp(mode: Mode) -> Result<()> {
    let mut service = objects::service("web", &["10.96.7.1"]);
    service["spec"]["ports"] = json!([{"name": "sctp", "port": 80, "targetPort": 8080, "protocol": "SCTP"}]);
    let mut slice = objects::slice("web", "IPv4", &[POD1]);
    slice["ports"] = json!([{"name": "sctp", "port": 8080, "protocol": "SCTP"}]);
    let mut stage = Stage::without_proxy(mode, &[CLUSTER_CIDR.to_owned()], &[service, slice])?;
    stage.listen("pod1", Proto::Sctp, SocketAddr::new(POD1.0.parse()?, 8080))?;
    stage.start_proxy()?;
    let mut run = Run {
        stage,
        octet: 1,
        made: Vec::new(),
    };
    for from in ["pod2", "node", "client"] {
        run.answers(
            Probe::new(from, "10.96.7.1".parse()?, 80, Proto::Sctp),
            &["pod1:8080"],
        )?;
    }
    run.stage.finish()
}
