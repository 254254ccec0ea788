//! From outside: node ports, load balancers, and others who translate.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use ferry_lab::netns::{Probe, Proto};
use serde_json::json;

use super::run::{HEALTH_CHECK_NODE_PORT, MANY, NODE, NODE_PORT, Run, node_port};
use super::services::target;
use crate::objects::{self, POD1, POD2, RPOD1};

pub(super) fn node_port_given_back(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.node_port_service(), run.slice(&[POD1]));
    run.apply(&[service.clone(), slice])?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
    run.delete(&service)?;
    let mut heir = objects::service("heir", &["10.96.7.201"]);
    heir["spec"]["type"] = "NodePort".into();
    heir["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
    run.apply(&[heir, objects::slice("heir", "IPv4", &[POD2])])?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod2:8080"])
}

pub(super) fn health_check_node_port(run: &mut Run) -> Result<()> {
    let (mut service, mut slice) = (run.node_port_service(), run.slice(&[POD1, RPOD1]));
    service["spec"]["type"] = "LoadBalancer".into();
    let cluster = service.clone();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = HEALTH_CHECK_NODE_PORT.into();
    for _ in 0..2 {
        run.apply(&[service.clone(), slice.clone()])?;
        run.health_check_is("200")?;
        run.answers(node_port("client", Proto::Tcp)?.times(MANY), &["pod1:8080"])?;
        run.apply(std::slice::from_ref(&cluster))?;
        run.health_check_is("000")?;
        run.answers(
            node_port("client", Proto::Tcp)?.times(MANY),
            &["pod1:8080", "rpod1:8080"],
        )?;
    }
    slice["endpoints"][0]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    run.apply(&[service, slice])?;
    run.health_check_is("503")?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])
}

pub(super) fn load_balancer_without_node_ports(run: &mut Run) -> Result<()> {
    let (mut service, slice) = (run.service(), run.slice(&[POD1]));
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["allocateLoadBalancerNodePorts"] = false.into();
    service["spec"]["externalTrafficPolicy"] = "Cluster".into();
    service["status"]["loadBalancer"] = json!({"ingress": [{"ip": "198.18.0.77"}]});
    run.apply(&[service.clone(), slice])?;
    let at_balancer = Probe::new("client", "198.18.0.77".parse()?, 80, Proto::Tcp);
    run.answers(at_balancer.clone(), &["pod1:8080"])?;
    run.nobody_answers(node_port("client", Proto::Tcp)?)?;
    service["spec"]["allocateLoadBalancerNodePorts"] = true.into();
    service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
    run.apply(&[service.clone()])?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
    service["spec"]["ports"][0]["port"] = 8000.into();
    run.apply(&[service])?;
    run.answers(
        Probe {
            port: 8000,
            ..at_balancer.clone()
        },
        &["pod1:8080"],
    )?;
    run.nobody_answers(at_balancer)
}

/// A host port, translated by somebody else's rules, works beside a node port.
pub(super) fn host_port(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.node_port_service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    let node = run.stage.network().node();
    node.sh("iptables -t nat -A PREROUTING -d 192.0.2.10 -p tcp --dport 8911 -j DNAT --to 10.244.1.3:9090")?;
    run.answers(
        Probe::new("client", NODE.parse()?, 8911, Proto::Tcp),
        &["pod2:9090"],
    )?;
    run.answers(node_port("client", Proto::Tcp)?, &["pod1:8080"])?;
    let node = run.stage.network().node();
    node.sh("iptables -t nat -D PREROUTING -d 192.0.2.10 -p tcp --dport 8911 -j DNAT --to 10.244.1.3:9090")?;
    Ok(())
}

pub(super) fn target_port_changes(run: &mut Run) -> Result<()> {
    let (service, mut slice) = (run.node_port_service(), run.slice(&[POD1]));
    run.apply(&[service, slice.clone()])?;
    let one_flow = Probe {
        bind: Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        sport: 40911,
        ..node_port("client", Proto::Udp)?
    };
    run.answers(one_flow.clone(), &["pod1:8080"])?;
    slice["ports"] = json!([target("tcp", 8081), {"name": "udp", "port": 8081, "protocol": "UDP"}]);
    run.apply(&[slice])?;
    run.answers(one_flow, &["pod1:8081"])
}
