//! The plan is held to what kube-proxy did: every recorded probe goes through `convert`, `plan` and `trace`, and has to
//! end as it was recorded. No kernel is needed, so this is the first to tell when a decision is wrong.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferry_model::*;
use ferry_sources::convert::{self, Interner};
use serde_json::Value;

const NODE_NAME: &str = "node-a";

/// The lab's hosts by name: IPv4 and IPv6 address.
const HOSTS: &[(&str, &str, &str)] = &[
    ("node", "192.0.2.10", "2001:db8:2::10"),
    ("node2", "198.51.100.10", "2001:db8:51::10"),
    ("podside", "10.244.1.1", "fd00:10:244:1::1"),
    ("pod1", "10.244.1.2", "fd00:10:244:1::2"),
    ("pod2", "10.244.1.3", "fd00:10:244:1::3"),
    ("remote", "192.0.2.11", "2001:db8:2::11"),
    ("rpod1", "10.244.2.2", "fd00:10:244:2::2"),
    ("rpod2", "10.244.2.3", "fd00:10:244:2::3"),
    ("client", "192.0.2.100", "2001:db8:2::100"),
    ("client2", "198.51.100.100", "2001:db8:51::100"),
    ("outsider", "203.0.113.9", "2001:db8:113::9"),
    ("loopback", "127.0.0.1", "::1"),
];

fn address_of(host: &str, family: Family) -> IpAddr {
    let (_, v4, v6) = HOSTS
        .iter()
        .find(|(name, ..)| *name == host)
        .unwrap_or_else(|| panic!("no host {host}"));
    match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    }
}

fn name_of(address: IpAddr) -> String {
    let known = HOSTS
        .iter()
        .find(|(_, v4, v6)| [v4, v6].iter().any(|text| text.parse() == Ok(address)));
    known.map_or_else(|| address.to_string(), |(name, ..)| name.to_string())
}

fn is_node_address(address: IpAddr) -> bool {
    ["node", "node2", "podside", "loopback"].contains(&&*name_of(address))
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// An object as the watch would deliver it; the API server's selectors are applied here.
fn event(object: &Value, deleted: bool) -> Option<Event> {
    let interner = Interner::default();
    let labels = &object["metadata"]["labels"];
    match object["kind"].as_str().unwrap() {
        "Service" => {
            let slim = serde_json::from_value(object.clone()).unwrap();
            let name = ServiceName::new(
                object["metadata"]["namespace"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap(),
            );
            let foreign = labels.get("service.kubernetes.io/service-proxy-name").is_some();
            let fact = convert::service(&slim, &interner)
                .fact
                .filter(|_| !deleted && !foreign);
            Some(Event::Service(name, fact.map(Arc::new)))
        }
        "EndpointSlice" => {
            let slim = serde_json::from_value(object.clone()).unwrap();
            let slice = convert::slice(&slim, &interner).fact?;
            let headless = labels.get("service.kubernetes.io/headless").is_some();
            Some(Event::Slice(
                slice.name.clone(),
                (!deleted && !headless).then(|| Arc::new(slice)),
            ))
        }
        "Node" => {
            let slim = serde_json::from_value(object.clone()).unwrap();
            Some(Event::Node(Some(Arc::new(convert::node(&slim, &interner).fact))))
        }
        kind => panic!("an object of kind {kind}"),
    }
}

/// What the lab's cluster has in every scenario.
fn standing_events() -> Vec<Event> {
    let networks = ["10.96.0.0/12", "fd00:10:96::/112"].map(|cidr| cidr.parse().unwrap());
    let both = |host| Family::BOTH.map(|family| address_of(host, family));
    let addresses = ["node", "node2", "podside", "loopback"]
        .into_iter()
        .flat_map(both)
        .collect();
    let node = Node {
        addresses: both("node").into(),
        pod_cidrs: ["10.244.1.0/24", "fd00:10:244:1::/64"]
            .map(|cidr| cidr.parse().unwrap())
            .into(),
        zone: Some("zone-a".into()),
        eligible: true,
    };
    vec![
        Event::Node(Some(Arc::new(node))),
        Event::ServiceCidr("kubernetes".into(), Some(networks.into())),
        Event::Host(Arc::new(Host { addresses })),
    ]
}

/// The flags that the scenarios use, as far as a plan depends on them.
fn options(scenario: &Value, policy: Policy, node_ports: &[NodePortAddress]) -> PlanOptions {
    let mut options = PlanOptions {
        node_name: NODE_NAME.into(),
        policy,
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![]),
        node_port_addresses: node_ports.into(),
        bind_address: None,
        allow_external_ips: true,
    };
    for flag in list(scenario, "args") {
        match flag
            .as_str()
            .unwrap()
            .split_once('=')
            .unwrap_or((flag.as_str().unwrap(), ""))
        {
            ("--cluster-cidr", cidrs) => {
                options.detect_local =
                    DetectLocal::ClusterCidrs(cidrs.split(',').map(|c| c.parse().unwrap()).collect());
            }
            ("--masquerade-all", _) => options.masquerade_all = true,
            ("--detect-local-mode", _) => {}
            ("--pod-interface-name-prefix", prefix) => {
                options.detect_local = DetectLocal::InterfacePrefix(prefix.into())
            }
            ("--nodeport-addresses", cidrs) => {
                options.node_port_addresses = cidrs
                    .split(',')
                    .map(|cidr| NodePortAddress::Cidr(cidr.parse().unwrap()))
                    .collect();
            }
            (flag, _) => panic!("a scenario uses {flag}, which this test does not know"),
        }
    }
    options
}

/// A probe's first packet as the node meets it.
fn packet(plan: &Plan, probe: &Value, from: &str) -> Packet {
    let destination: IpAddr = probe["to"].as_str().unwrap().parse().unwrap();
    let family = Family::of(destination);
    let source = match from {
        // The node reaches its own addresses from themselves, everything else by its main one.
        "node" if is_node_address(destination) => destination,
        "node" if plan.node().binds_service_addresses && plan.is_service_address(destination) => destination,
        // The client has an address in each of the node's networks and uses the nearer one.
        "client" if name_of(destination) == "node2" => address_of("client2", family),
        host => address_of(host, family),
    };
    let origin = match from {
        "node" => Origin::Node,
        pod @ ("pod1" | "pod2") => Origin::Network(Some(format!("veth-{pod}").into())),
        _ => Origin::Network(Some("eth0".into())),
    };
    let protocol = match probe["proto"].as_str() {
        Some("udp") => Protocol::Udp,
        _ => Protocol::Tcp,
    };
    Packet {
        source,
        origin,
        destination,
        port: probe["port"].as_u64().unwrap() as u16,
        protocol,
    }
}

/// The source that an endpoint sees: the client, or the node's address on the way to the endpoint.
fn seen_source(packet: &Packet, target: &Target) -> String {
    let endpoint = name_of(target.address.ip());
    name_of(match (target.masquerade, &*endpoint) {
        (false, _) => packet.source,
        (true, "pod1" | "pod2") => address_of("podside", Family::of(packet.destination)),
        (true, "node") => target.address.ip(),
        (true, _) => address_of("node", Family::of(packet.destination)),
    })
}

/// The answer takes the short way, past the node, and the client does not know who is talking.
fn answer_misses_the_node(packet: &Packet, target: &Target) -> bool {
    let remote = ["rpod1", "rpod2"].contains(&&*name_of(target.address.ip()));
    let direct = ["client", "client2", "outsider"].contains(&&*name_of(packet.source));
    remote && direct && !target.masquerade
}

/// Compares one probe; `None` if it ends as recorded.
fn difference(planner: &Planner, probe: &Value, from: &str, recorded: &Value) -> Option<String> {
    let packet = packet(planner.plan(), probe, from);
    let outcome = trace(planner.plan(), &packet);
    let names = |key: &str| -> BTreeSet<String> {
        list(recorded, key)
            .map(|name| name.as_str().unwrap().to_string())
            .collect()
    };
    let result = recorded["result"].as_str().unwrap();
    let targets = &outcome.targets;
    let agrees = match outcome.action {
        Action::Reject => result == "refused",
        Action::Drop => result == "timeout",
        // Not ours: the node's own addresses have no listener there, and the gateway swallows the rest.
        Action::NotOurs if is_node_address(packet.destination) => result == "refused",
        Action::NotOurs => ["timeout", "unreachable"].contains(&result),
        Action::Forward { .. } if recorded.get("sticky").is_some() => {
            result == "ok" && outcome.affinity.is_some() && recorded["sticky"] == Value::Bool(true)
        }
        Action::Forward { .. }
            if targets
                .iter()
                .all(|target| answer_misses_the_node(&packet, target)) =>
        {
            result == "timeout"
        }
        Action::Forward { .. } => {
            let backend = |t: &Target| format!("{}:{}", name_of(t.address.ip()), t.address.port());
            let backends: BTreeSet<String> = targets.iter().map(backend).collect();
            let sources: BTreeSet<String> = targets
                .iter()
                .map(|target| seen_source(&packet, target))
                .collect();
            // A few tries need not meet every endpoint; many do.
            let tries = probe["count"].as_u64().unwrap_or(1) as usize;
            if tries >= 8 * targets.len() {
                result == "ok" && backends == names("backends") && sources == names("sources")
            } else {
                result == "ok"
                    && names("backends").is_subset(&backends)
                    && names("sources").is_subset(&sources)
            }
        }
    };
    (!agrees).then(|| {
        format!(
            "{recorded}\n    but trace says {:?}, {:?}\n    {}",
            outcome.action,
            outcome.targets,
            outcome.steps.join("\n    ")
        )
    })
}

fn check_mode(mode: &str, policy: Policy, node_ports: &[NodePortAddress]) {
    let mut differences = Vec::new();
    let mut probes = 0;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(data().join("expected").join(mode))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        let recording = read(&path);
        let scenario = read(&data().join("scenarios").join(path.file_name().unwrap()));
        let mut planner = Planner::new(options(&scenario, policy, node_ports));
        planner.update(standing_events());
        planner.update(list(&scenario, "objects").filter_map(|object| event(object, false)));
        for (step, recorded) in list(&scenario, "steps").zip(list(&recording, "steps")) {
            planner.update(list(step, "apply").filter_map(|object| event(object, false)));
            planner.update(list(step, "delete").filter_map(|object| event(object, true)));
            let senders = |probe: &'_ Value| -> Vec<String> {
                match &probe["from"] {
                    Value::Array(hosts) => hosts
                        .iter()
                        .map(|host| host.as_str().unwrap().to_string())
                        .collect(),
                    host => vec![host.as_str().unwrap().to_string()],
                }
            };
            let sent = list(step, "probes")
                .flat_map(|probe| senders(probe).into_iter().map(move |from| (probe, from)));
            let recorded_probes: Vec<&Value> = list(recorded, "probes").collect();
            let sent: Vec<_> = sent.collect();
            assert_eq!(sent.len(), recorded_probes.len(), "{}", path.display());
            for ((probe, from), recorded_probe) in sent.iter().zip(recorded_probes) {
                probes += 1;
                if let Some(difference) = difference(&planner, probe, from, recorded_probe) {
                    differences.push(format!("{} / {}: {difference}", scenario["name"], step["name"]));
                }
            }
        }
    }
    assert!(probes > 100, "only {probes} probes: is the recorded data there?");
    assert!(
        differences.is_empty(),
        "{} of {probes} probes differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn nftables_mode_as_recorded() {
    check_mode(
        "nftables",
        Policy::nftables().without_localhost_node_ports(),
        &[NodePortAddress::Primary],
    );
}

#[test]
fn iptables_mode_as_recorded() {
    check_mode("iptables", Policy::iptables(), &[]);
}

#[test]
fn ipvs_mode_as_recorded() {
    check_mode("ipvs", Policy::ipvs(), &[]);
}
