//! Endpoints: their conditions, ports, slices and hints, and who keeps coming to them.

use anyhow::{Context, Result};
use ferry_lab::netns::{Outcome, Proto};
use serde_json::json;

use super::run::{MANY, NODE, Run, node_port};
use super::services::{port, target};
use crate::objects::{POD1, POD2, RPOD1};

pub(super) fn published_though_not_ready(run: &mut Run) -> Result<()> {
    let (service, mut slice) = (run.service(), run.slice(&[POD1, POD2]));
    // what a slice says of pods that are to be published whether ready or not
    slice["endpoints"][0]["conditions"] = json!({"ready": true, "serving": false, "terminating": true});
    slice["endpoints"][1]["conditions"] = json!({"ready": true, "serving": true, "terminating": false});
    run.apply(&[service, slice.clone()])?;
    run.answers(
        run.probe("client", 80, Proto::Tcp)?.times(MANY),
        &["pod1:8080", "pod2:8080"],
    )?;
    slice["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false, "terminating": true});
    slice["endpoints"][1]["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    run.apply(&[slice])?;
    run.refused(run.probe("client", 80, Proto::Tcp)?)
}

pub(super) fn affinity_switched(run: &mut Run) -> Result<()> {
    let (mut service, slice) = (run.node_port_service(), run.slice(&[POD1, POD2, RPOD1]));
    run.apply(&[service.clone(), slice])?;
    for sticky in [true, false, true] {
        service["spec"]["sessionAffinity"] = if sticky { "ClientIP" } else { "None" }.into();
        if sticky {
            service["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 60}});
        } else if let Some(spec) = service["spec"].as_object_mut() {
            spec.remove("sessionAffinityConfig");
        }
        run.apply(&[service.clone()])?;
        for probe in [
            run.probe("client", 80, Proto::Tcp)?,
            node_port("client", Proto::Tcp)?,
        ] {
            let backends = |outcome: &Outcome| (outcome.backends.len() == 1) == sticky;
            run.until(&probe.times(MANY), backends)
                .with_context(|| format!("sticky: {sticky}"))?;
        }
    }
    Ok(())
}

pub(super) fn host_network(run: &mut Run) -> Result<()> {
    let (service, mut slice) = (run.service(), run.slice(&[(NODE, "node-a")]));
    slice["ports"] = json!([{"name": "tcp", "port": 9090, "protocol": "TCP"}, {"name": "udp", "port": 9090, "protocol": "UDP"}]);
    run.apply(&[service, slice])?;
    for from in ["pod1", "client", "node"] {
        run.answers(run.probe(from, 80, Proto::Tcp)?, &["node:9090"])?;
    }
    run.answers(run.probe("pod1", 80, Proto::Udp)?, &["node:9090"])
}

pub(super) fn named_targets(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.service(), run.slice(&[POD1]));
    service["spec"]["ports"] = json!([{"name": "web", "port": 80, "targetPort": "http", "protocol": "TCP"}]);
    slice["ports"] = json!([target("web", 8080)]);
    let mut other = run.slice(&[RPOD1]);
    other["metadata"]["name"] = format!("{}-b", run.name()).into();
    other["ports"] = json!([target("web", 9090)]);
    run.apply(&[service, slice, other])?;
    run.answers(
        run.probe("pod2", 80, Proto::Tcp)?.times(MANY),
        &["pod1:8080", "rpod1:9090"],
    )
}

pub(super) fn slices_merged(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.service(), run.slice(&[POD1, POD2]));
    service["spec"]["ports"] = json!([port("a", 80, 8080), port("b", 81, 8081)]);
    slice["ports"] = json!([target("a", 8080)]);
    let mut other = run.slice(&[POD1, RPOD1]);
    other["metadata"]["name"] = format!("{}-b", run.name()).into();
    other["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] =
        "endpointslicemirroring-controller.k8s.io".into();
    other["ports"] = json!([target("a", 8080), target("b", 8081)]);
    run.apply(&[service, slice, other.clone()])?;
    let all = ["pod1:8080", "pod2:8080", "rpod1:8080"];
    run.answers(run.probe("client", 80, Proto::Tcp)?.times(2 * MANY), &all)?;
    run.answers(
        run.probe("client", 81, Proto::Tcp)?.times(MANY),
        &["pod1:8081", "rpod1:8081"],
    )?;
    run.delete(&other)?;
    run.answers(
        run.probe("client", 80, Proto::Tcp)?.times(MANY),
        &["pod1:8080", "pod2:8080"],
    )?;
    run.refused(run.probe("client", 81, Proto::Tcp)?)
}

pub(super) fn hints_for_the_node(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.service(), run.slice(&[POD1, RPOD1]));
    service["spec"]["trafficDistribution"] = "PreferSameNode".into();
    slice["endpoints"][0]["hints"] = json!({"forNodes": [{"name": "node-a"}]});
    slice["endpoints"][1]["hints"] = json!({"forNodes": [{"name": "node-b"}]});
    run.apply(&[service, slice])?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?.times(MANY), &["pod1:8080"])?;
    let mut elsewhere = run.slice(&[RPOD1]);
    elsewhere["endpoints"][0]["hints"] = json!({"forNodes": [{"name": "node-b"}]});
    run.apply(&[elsewhere])?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?.times(MANY), &["rpod1:8080"])
}
