//! Services: their ports, their types, their neighbours.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use ferry_lab::netns::{Answer, Probe, Proto};
use serde_json::{Value, json};

use super::run::{MANY, Run, node_port};
use crate::Mode;
use crate::objects::{self, POD1, RPOD1};

pub(super) fn port(name: &str, number: u16, target: u16) -> Value {
    json!({"name": name, "port": number, "targetPort": target, "protocol": "TCP"})
}

pub(super) fn target(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "protocol": "TCP"})
}

pub(super) fn multiport(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.service(), run.slice(&[POD1, RPOD1]));
    service["spec"]["ports"] = json!([port("a", 80, 8080), port("b", 81, 9090)]);
    slice["ports"] = json!([target("b", 9090), target("a", 8080)]);
    run.apply(&[service, slice])?;
    run.answers(
        run.probe("pod2", 80, Proto::Tcp)?.times(MANY),
        &["pod1:8080", "rpod1:8080"],
    )?;
    run.answers(
        run.probe("pod2", 81, Proto::Tcp)?.times(MANY),
        &["pod1:9090", "rpod1:9090"],
    )
}

pub(super) fn ports_come_and_go(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.service(), run.slice(&[POD1]));
    slice["ports"] = json!([target("a", 8080), target("b", 8081), target("c", 9090)]);
    service["spec"]["ports"] = json!([port("a", 80, 8080)]);
    run.apply(&[service.clone(), slice])?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
    service["spec"]["ports"] = json!([port("a", 80, 8080), port("b", 81, 8081), port("c", 82, 9090)]);
    run.apply(&[service.clone()])?;
    run.answers(run.probe("pod2", 81, Proto::Tcp)?, &["pod1:8081"])?;
    run.answers(run.probe("pod2", 82, Proto::Tcp)?, &["pod1:9090"])?;
    service["spec"]["ports"] = json!([port("c", 82, 9090)]);
    run.apply(&[service])?;
    run.nobody_answers(run.probe("pod2", 80, Proto::Tcp)?)?;
    run.nobody_answers(run.probe("pod2", 81, Proto::Tcp)?)?;
    run.answers(run.probe("pod2", 82, Proto::Tcp)?, &["pod1:9090"])
}

pub(super) fn recreated(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    for _ in 0..3 {
        run.apply(&[service.clone(), slice.clone()])?;
        run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
        run.delete(&service)?;
        run.nobody_answers(run.probe("pod2", 80, Proto::Tcp)?)?;
    }
    Ok(())
}

pub(super) fn neighbour(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
    let other = objects::service("neighbour", &["10.96.7.200"]);
    let endpoints = objects::slice("neighbour", "IPv4", &[RPOD1]);
    let at_other = || Ok::<_, anyhow::Error>(Probe::new("pod2", "10.96.7.200".parse()?, 80, Proto::Tcp));
    for _ in 0..3 {
        run.apply(&[other.clone(), endpoints.clone()])?;
        run.answers(at_other()?, &["rpod1:8080"])?;
        let before = run
            .stage
            .network()
            .probe(&[run.probe("pod2", 80, Proto::Tcp)?.times(MANY)])?;
        run.delete(&other)?;
        run.nobody_answers(at_other()?)?;
        let after = run
            .stage
            .network()
            .probe(&[run.probe("pod2", 80, Proto::Tcp)?.times(MANY)])?;
        ensure!(
            before == after,
            "the neighbour's end was felt: {before:?} {after:?}"
        );
    }
    Ok(())
}

pub(super) fn types(run: &mut Run) -> Result<()> {
    let name = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": run.name(), "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "example.com", "sessionAffinity": "None"},
        "status": {"loadBalancer": {}},
    });
    let (service, with_node_port, slice) = (run.service(), run.node_port_service(), run.slice(&[POD1]));
    run.apply(&[name.clone(), slice])?;
    run.nobody_answers(run.probe("pod2", 80, Proto::Tcp)?)?;
    for now in [&service, &with_node_port] {
        run.apply(std::slice::from_ref(now))?;
        run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
        if now["spec"]["type"] == "NodePort" {
            run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
        }
        run.apply(std::slice::from_ref(&name))?;
        run.nobody_answers(run.probe("pod2", 80, Proto::Tcp)?)?;
        run.nobody_answers(node_port("client", Proto::Tcp)?)?;
    }
    run.apply(&[with_node_port])?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
    run.apply(&[service])?;
    run.nobody_answers(node_port("client", Proto::Tcp)?)?;
    run.nobody_answers(node_port("client", Proto::Udp)?)?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])
}

pub(super) fn two_protocols(run: &mut Run) -> Result<()> {
    let (mut service, slice) = (run.node_port_service(), run.slice(&[POD1]));
    let both = service["spec"]["ports"].clone();
    service["spec"]["ports"] = json!([both[0]]);
    run.apply(&[service.clone(), slice])?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
    run.nobody_answers(node_port("client", Proto::Udp)?)?;
    service["spec"]["ports"] = both;
    run.apply(&[service])?;
    for proto in [Proto::Tcp, Proto::Udp] {
        run.answers(node_port("client", proto)?, &["pod1:8080"])?;
        run.answers(run.probe("pod2", 80, proto)?, &["pod1:8080"])?;
    }
    Ok(())
}

pub(super) fn shared_endpoints(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    let twin = objects::service("twin", &["10.96.7.202"]);
    run.apply(&[
        service,
        slice,
        twin.clone(),
        objects::slice("twin", "IPv4", &[POD1]),
    ])?;
    let at_twin = Probe::new("pod2", "10.96.7.202".parse()?, 80, Proto::Tcp);
    run.answers(at_twin.clone(), &["pod1:8080"])?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
    run.delete(&twin)?;
    run.nobody_answers(at_twin)?;
    run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])
}

/// A service of a range that the cluster was given later is served; what nobody has of that range is dropped where the
/// mode does so.
pub(super) fn another_service_cidr(run: &mut Run) -> Result<()> {
    let cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}]},
    });
    let service = objects::service(&run.name(), &["10.97.0.7"]);
    let slice = run.slice(&[POD1]);
    run.apply(&[cidr, service, slice])?;
    run.answers(
        Probe::new("pod2", "10.97.0.7".parse()?, 80, Proto::Tcp),
        &["pod1:8080"],
    )?;
    let nobody = Probe::new("pod2", "10.97.0.99".parse()?, 80, Proto::Tcp);
    match run.stage.mode() {
        Mode::Nftables => run.until(&nobody, |outcome| {
            outcome.answers == BTreeSet::from([Answer::Timeout])
        }),
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => run.nobody_answers(nobody),
    }
}
