//! Kubernetes' own end-to-end cases of sig-network that no recorded scenario has: one cluster that lives through all of
//! them, one after the other. docs/conformance.md has the whole list and says which test covers which case.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Answer, Outcome, Probe, Proto};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};

use crate::objects::{self, CLUSTER_CIDR, Endpoint, POD1, POD2, RPOD1};
use crate::{Mode, Stage};

const NODE: &str = "192.0.2.10";
const NODE_PORT: u16 = 30911;
const HEALTH_CHECK_NODE_PORT: u16 = 32911;
/// Enough for chance to meet every one of three endpoints.
const MANY: u32 = 30;

type Case = (&'static str, fn(&mut Run) -> Result<()>);

const CASES: &[Case] = &[
    ("named-ports-have-targets-of-their-own", multiport),
    ("ports-come-and-go", ports_come_and_go),
    ("a-service-is-made-again", recreated),
    ("a-neighbour-comes-and-goes", neighbour),
    ("the-type-changes", types),
    ("one-number-for-two-protocols", two_protocols),
    ("a-node-port-is-given-back", node_port_given_back),
    ("ready-though-terminating", published_though_not_ready),
    ("affinity-is-switched", affinity_switched),
    ("endpoints-on-the-host-network", host_network),
    (
        "health-check-node-port-follows-the-policy",
        health_check_node_port,
    ),
    ("a-named-target-differs-by-endpoint", named_targets),
    ("slices-are-merged", slices_merged),
    ("two-services-share-endpoints", shared_endpoints),
    (
        "a-load-balancer-without-node-ports",
        load_balancer_without_node_ports,
    ),
    ("hints-for-the-node", hints_for_the_node),
    ("a-datagram-in-fragments", fragments),
    ("a-large-request", large_request),
    ("a-target-port-changes-under-udp", target_port_changes),
    ("an-invalid-packet-resets-nothing", invalid_packet),
    ("others-translate-too", host_port),
    ("pods-reach-pods-as-themselves", no_snat),
    ("close-wait-times-out", close_wait),
    ("another-service-cidr", another_service_cidr),
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

struct Run {
    stage: Stage,
    /// Each case has addresses of its own, so that none meets the connections of another.
    octet: u8,
    made: Vec<Value>,
}

impl Run {
    fn vip(&self) -> String {
        format!("10.96.7.{}", self.octet)
    }

    fn name(&self) -> String {
        format!("case-{}", self.octet)
    }

    fn service(&self) -> Value {
        objects::service(&self.name(), &[&self.vip()])
    }

    fn node_port_service(&self) -> Value {
        let mut service = self.service();
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
        service["spec"]["ports"][1]["nodePort"] = NODE_PORT.into();
        service["spec"]["externalTrafficPolicy"] = "Cluster".into();
        service
    }

    fn slice(&self, endpoints: &[Endpoint]) -> Value {
        objects::slice(&self.name(), "IPv4", endpoints)
    }

    /// Changes the cluster; what is left at the end of the case is removed. Nobody waits for a sync: every question is asked
    /// until it is answered as it should be.
    fn apply(&mut self, objects: &[Value]) -> Result<()> {
        let identity = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        for object in objects {
            self.made.retain(|made| identity(made) != identity(object));
            self.made.push(object.clone());
        }
        self.stage.api().apply(objects.iter().cloned())
    }

    fn delete(&mut self, object: &Value) -> Result<()> {
        self.stage.api().delete(std::slice::from_ref(object))
    }

    fn probe(&self, from: &str, port: u16, proto: Proto) -> Result<Probe> {
        Ok(Probe::new(from, self.vip().parse()?, port, proto))
    }

    /// Exactly these answer, each as `name:port`.
    fn answers(&mut self, probe: Probe, by: &[&str]) -> Result<()> {
        let by: BTreeSet<String> = by.iter().map(|name| (*name).to_owned()).collect();
        self.until(&probe, |outcome| {
            outcome.answers == BTreeSet::from([Answer::Ok]) && outcome.backends == by
        })
        .with_context(|| format!("wanted {by:?}"))
    }

    /// Nobody answers: how that looks depends on the mode and on what lies behind the address.
    fn nobody_answers(&mut self, probe: Probe) -> Result<()> {
        self.until(&probe, |outcome| !outcome.answers.contains(&Answer::Ok))
            .context("wanted no answer")
    }

    fn refused(&mut self, probe: Probe) -> Result<()> {
        self.until(&probe, |outcome| {
            outcome.answers == BTreeSet::from([Answer::Refused])
        })
        .context("wanted a refusal")
    }

    fn until(&mut self, probe: &Probe, wanted: impl Fn(&Outcome) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let came = ferry_lab::wait_until(Duration::from_secs(8), || {
            last = self
                .stage
                .network()
                .probe(std::slice::from_ref(probe))
                .unwrap_or_default();
            last.len() == 1 && last.iter().all(&wanted)
        });
        if !came {
            bail!("got {last:?}\n--- ferry's log\n{}", self.stage.log());
        }
        Ok(())
    }

    /// The health-check node port's code; none if nobody listens.
    fn health_check_code(&self) -> Result<String> {
        let url = format!("http://{NODE}:{HEALTH_CHECK_NODE_PORT}/");
        let mut curl = self.stage.network().node().command("curl");
        let out = curl
            .args(["-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", &url])
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    fn health_check_is(&self, code: &str) -> Result<()> {
        let mut last = String::new();
        let came = ferry_lab::wait_until(Duration::from_secs(8), || {
            last = self.health_check_code().unwrap_or_default();
            last == code
        });
        ensure!(came, "the health-check node port says {last}, not {code}");
        Ok(())
    }
}

fn node_port(from: &str, proto: Proto) -> Result<Probe> {
    Ok(Probe::new(from, NODE.parse()?, NODE_PORT, proto))
}

fn port(name: &str, number: u16, target: u16) -> Value {
    json!({"name": name, "port": number, "targetPort": target, "protocol": "TCP"})
}

fn target(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "protocol": "TCP"})
}

fn multiport(run: &mut Run) -> Result<()> {
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

fn ports_come_and_go(run: &mut Run) -> Result<()> {
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

fn recreated(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    for _ in 0..3 {
        run.apply(&[service.clone(), slice.clone()])?;
        run.answers(run.probe("pod2", 80, Proto::Tcp)?, &["pod1:8080"])?;
        run.delete(&service)?;
        run.nobody_answers(run.probe("pod2", 80, Proto::Tcp)?)?;
    }
    Ok(())
}

fn neighbour(run: &mut Run) -> Result<()> {
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

fn types(run: &mut Run) -> Result<()> {
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

fn two_protocols(run: &mut Run) -> Result<()> {
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

fn node_port_given_back(run: &mut Run) -> Result<()> {
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

fn published_though_not_ready(run: &mut Run) -> Result<()> {
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

fn affinity_switched(run: &mut Run) -> Result<()> {
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

fn host_network(run: &mut Run) -> Result<()> {
    let (service, mut slice) = (run.service(), run.slice(&[(NODE, "node-a")]));
    slice["ports"] = json!([{"name": "tcp", "port": 9090, "protocol": "TCP"}, {"name": "udp", "port": 9090, "protocol": "UDP"}]);
    run.apply(&[service, slice])?;
    for from in ["pod1", "client", "node"] {
        run.answers(run.probe(from, 80, Proto::Tcp)?, &["node:9090"])?;
    }
    run.answers(run.probe("pod1", 80, Proto::Udp)?, &["node:9090"])
}

fn health_check_node_port(run: &mut Run) -> Result<()> {
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

fn named_targets(run: &mut Run) -> Result<()> {
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

fn slices_merged(run: &mut Run) -> Result<()> {
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

fn shared_endpoints(run: &mut Run) -> Result<()> {
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

fn load_balancer_without_node_ports(run: &mut Run) -> Result<()> {
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

fn hints_for_the_node(run: &mut Run) -> Result<()> {
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

fn fragments(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("client", 80, Proto::Udp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("client")?;
    let answer = run.stage.network().runtime().block_on(async {
        let socket = UdpSocket::from_std(sockets.get(false, Proto::Udp).await?.into())?;
        socket.connect(to).await?;
        socket.send(&[b'?'; 4000]).await?;
        let mut buffer = [0; 512];
        let read = tokio::time::timeout(
            ferry_lab::at_most(Duration::from_secs(5)),
            socket.recv(&mut buffer),
        );
        let length = read.await.context("no answer to a datagram of 4,000 bytes")??;
        Ok::<_, anyhow::Error>(buffer[..length].to_vec())
    })?;
    ensure!(!answer.is_empty(), "an empty answer");
    Ok(())
}

fn large_request(run: &mut Run) -> Result<()> {
    const LENGTH: usize = 1 << 20;
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("client", 80, Proto::Tcp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("client")?;
    run.stage.network().runtime().block_on(async {
        let socket = sockets.get(false, Proto::Tcp).await?;
        let stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        let (mut read, mut write) = stream.into_split();
        let sender = tokio::spawn(async move { write.write_all(&[b'x'; LENGTH]).await.map(|()| write) });
        // the greeting, and then every byte again
        let mut echoed = 0;
        let mut buffer = [0; 16384];
        let all = async {
            while echoed < LENGTH {
                match read.read(&mut buffer).await? {
                    0 => bail!("closed after {echoed} bytes"),
                    n => echoed += buffer[..n].iter().filter(|byte| **byte == b'x').count(),
                }
            }
            Ok(())
        };
        tokio::time::timeout(ferry_lab::at_most(Duration::from_secs(20)), all)
            .await
            .context("a megabyte did not come back")??;
        sender.await??;
        Ok::<_, anyhow::Error>(())
    })
}

fn target_port_changes(run: &mut Run) -> Result<()> {
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

/// A segment outside the window of its connection is not translated back. If it reached the client, that would answer a
/// stranger with a reset, whose number is right for the server's end of the connection.
/// In userspace mode client and server have a connection each.
fn invalid_packet(run: &mut Run) -> Result<()> {
    if run.stage.mode() == Mode::Userspace {
        return Ok(());
    }
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("remote", 80, Proto::Tcp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("remote")?;
    let network = run.stage.network();
    let raw = network
        .host("pod1")?
        .run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)))??;
    raw.set_nonblocking(true)?;
    let server = SocketAddrV4::new(POD1.0.parse()?, 8080);
    network.runtime().block_on(async {
        let socket = sockets.get(false, Proto::Tcp).await?;
        socket.bind(&SocketAddr::new(RPOD1.0.parse()?, 0).into())?;
        let mut stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        let SocketAddr::V4(client) = stream.local_addr()? else {
            bail!("an address of another family");
        };
        let mut buffer = [0; 512];
        ensure!(stream.read(&mut buffer).await? > 0, "no greeting");
        echo(&mut stream, b"before").await?;
        let (sequence, acknowledged) = last_numbers(&raw, client.port())?;
        for distance in [1 << 20, 1 << 28, 1 << 30] {
            let stray = segment(server, client, sequence.wrapping_add(distance), acknowledged);
            raw.send_to(&stray, &SocketAddrV4::new(*client.ip(), 0).into())?;
        }
        tokio::time::sleep(ferry_lab::patience(Duration::from_millis(200))).await;
        echo(&mut stream, b"after")
            .await
            .context("after segments outside the window")
    })
}

async fn echo(stream: &mut tokio::net::TcpStream, words: &[u8]) -> Result<()> {
    let mut buffer = [0; 64];
    stream.write_all(words).await?;
    let read = tokio::time::timeout(
        ferry_lab::at_most(Duration::from_secs(5)),
        stream.read(&mut buffer),
    );
    let length = read
        .await
        .context("no echo")?
        .context("the connection was reset")?;
    ensure!(&buffer[..length] == words, "the connection was closed");
    Ok(())
}

/// What the server's next segment would say of itself and of what it has got, from the segments that came in.
fn last_numbers(raw: &Socket, client_port: u16) -> Result<(u32, u32)> {
    let mut found = None;
    let mut buffer = [0; 2048];
    while let Ok(length) = std::io::Read::read(&mut &*raw, &mut buffer) {
        let packet = &buffer[..length];
        let tcp = packet.get(usize::from(packet[0] & 15) * 4..).unwrap_or_default();
        if tcp.len() < 20 || tcp[..2] != client_port.to_be_bytes() {
            continue;
        }
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let data = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        found = Some((number(8), number(4).wrapping_add(data as u32)));
    }
    found.context("the server got no segment")
}

/// An acknowledgement with these numbers.
fn segment(from: SocketAddrV4, to: SocketAddrV4, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20);
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    // five words of header, ACK, a window, no checksum yet, not urgent
    segment.extend([0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    let checksum = checksum(from.ip(), to.ip(), &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// TCP's checksum, over the addresses too.
fn checksum(from: &Ipv4Addr, to: &Ipv4Addr, segment: &[u8]) -> u16 {
    let mut bytes: Vec<u8> = [from.octets(), to.octets()].concat();
    bytes.extend([0, 6]);
    bytes.extend((segment.len() as u16).to_be_bytes());
    bytes.extend(segment);
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum + (sum >> 16)) as u16)
}

/// A host port, translated by somebody else's rules, works beside a node port.
fn host_port(run: &mut Run) -> Result<()> {
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

fn no_snat(run: &mut Run) -> Result<()> {
    let pods = [
        ("pod2", POD1.0, "pod2"),
        ("remote", POD1.0, "remote"),
        ("pod1", RPOD1.0, "pod1"),
    ];
    for (from, to, seen_as) in pods {
        let seen_as = BTreeSet::from([seen_as.to_owned()]);
        run.until(&Probe::new(from, to.parse()?, 8080, Proto::Tcp), |outcome| {
            outcome.sources == seen_as
        })?;
    }
    Ok(())
}

/// Userspace mode leaves connection tracking alone: its connections end at the node.
fn close_wait(run: &mut Run) -> Result<()> {
    if run.stage.mode() == Mode::Userspace {
        return Ok(());
    }
    let path = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let seconds = run
        .stage
        .network()
        .node()
        .run(|| std::fs::read_to_string(path))??;
    ensure!(seconds.trim() == "3600", "{path} is {seconds}");
    Ok(())
}

/// A service of a range that the cluster was given later is served; what nobody has of that range is dropped where the
/// mode does so.
fn another_service_cidr(run: &mut Run) -> Result<()> {
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
