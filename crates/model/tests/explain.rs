//! Why a service is or is not reached: every cause that the plan can know, named right.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use ferry_model::*;

const VIP: &str = "10.0.0.1";

fn planner_of(node: Node, options: PlanOptions, events: Vec<Event>) -> Planner {
    let mut planner = Planner::new(options);
    let host = Host {
        addresses: [ip("192.0.2.1"), ip("198.51.100.1"), ip("127.0.0.1")].into(),
    };
    planner.update([Event::Node(Some(node.into())), Event::Host(host.into())]);
    planner.update(events);
    planner
}

fn node() -> Node {
    Node {
        addresses: vec![ip("192.0.2.1")],
        zone: Some("a".into()),
        ..Node::default()
    }
}

fn planner(events: Vec<Event>) -> Planner {
    planner_of(
        node(),
        options(Policy::nftables().without_localhost_node_ports()),
        events,
    )
}

fn of_service(port: Option<PortWanted>) -> Subject {
    Subject::Service {
        name: name("ns/web"),
        port,
        protocol: None,
    }
}

fn ask(planner: &Planner, subject: Subject, from: Asker) -> Explanation {
    explain(planner, &Question { subject, from })
}

fn at(address: &str, port: u16) -> Subject {
    Subject::Address {
        address: ip(address),
        port,
        protocol: None,
    }
}

fn causes(explanation: &Explanation) -> Vec<(&'static str, Weight)> {
    let all = explanation.all_findings();
    all.map(|finding| (finding.cause.code(), finding.weight))
        .collect()
}

/// Asks for the service as whoever it is there for; one cause must block it.
fn blocked_by(planner: &Planner) -> Cause {
    let explanation = ask(planner, of_service(None), Asker::Anybody);
    assert_eq!(causes(&explanation).len(), 1, "{explanation:#?}");
    let finding = explanation.all_findings().next().unwrap();
    assert_eq!(finding.weight, Weight::Blocks);
    finding.cause.clone()
}

#[test]
fn a_service_that_works_says_why_step_by_step() {
    let planner = planner(vec![
        service("ns/web", VIP).into(),
        slice(
            "ns/web",
            "a",
            vec![endpoint("10.1.0.1", "r L"), endpoint("10.1.0.2", "x")],
        )
        .into(),
    ]);
    let explanation = ask(&planner, of_service(None), Asker::Anybody);
    assert_eq!(causes(&explanation), []);
    let [place] = explanation.places.as_slice() else {
        panic!("{explanation:#?}")
    };
    assert_eq!(place.client, Client::Pod);
    let steps: Vec<String> = place
        .steps
        .iter()
        .map(|step| match &step.because {
            Some(because) => format!("{} <- {because}", step.says),
            None => step.says.clone(),
        })
        .collect();
    assert_eq!(
        steps,
        [
            "10.0.0.1:80/tcp is the cluster IP of ns/web:http <- Service ns/web: spec.clusterIPs: 10.0.0.1",
            "the client counts as a pod of this cluster <- configuration of this proxy: --detect-local-mode: 10.0.0.0/8",
            "every usable endpoint of the cluster will do <- Service ns/web: spec.internalTrafficPolicy: Cluster",
            "the endpoint sees the client's address",
        ]
    );
    let fates: Vec<String> = place
        .endpoints
        .iter()
        .map(|one| match &one.because {
            Some(because) => format!("{} {} <- {because}", one.address, one.fate),
            None => format!("{} {}", one.address, one.fate),
        })
        .collect();
    assert_eq!(
        fates,
        [
            "10.1.0.1:8080 gets traffic",
            "10.1.0.2:8080 left out: not ready <- EndpointSlice ns/web-a: endpoints[1].conditions.ready: false",
        ]
    );
}

#[test]
fn no_endpoints_none_ready_and_no_such_target_port_are_told_apart() {
    let alone = planner(vec![service("ns/web", VIP).into()]);
    assert_eq!(
        blocked_by(&alone).to_string(),
        "ns/web:http has no endpoints: it has no EndpointSlice"
    );
    let empty = planner(vec![
        service("ns/web", VIP).into(),
        slice("ns/web", "a", vec![]).into(),
    ]);
    assert_eq!(blocked_by(&empty).code(), "no-endpoints");
    let unready = planner(vec![
        service("ns/web", VIP).into(),
        slice(
            "ns/web",
            "a",
            vec![endpoint("10.1.0.1", "x"), endpoint("10.1.0.2", "x")],
        )
        .into(),
    ]);
    assert_eq!(
        blocked_by(&unready).to_string(),
        "none of the 2 endpoint(s) of ns/web:http is ready"
    );
    let mut without_port = slice("ns/web", "a", vec![endpoint("10.1.0.1", "r")]);
    without_port.ports.clear();
    let nameless = planner(vec![service("ns/web", VIP).into(), without_port.into()]);
    assert_eq!(blocked_by(&nameless).code(), "target-port-missing");
}

#[test]
fn a_local_policy_without_local_endpoints_blocks_others_and_not_pods() {
    let mut outside = service("ns/web", VIP);
    outside.kind = ServiceType::LoadBalancer;
    outside.external_policy = TrafficPolicy::Local;
    outside.load_balancer_ips = vec![ip("203.0.113.1")];
    let planner = planner(vec![
        outside.into(),
        slice("ns/web", "a", vec![endpoint("10.1.0.1", "r")]).into(),
    ]);
    let cause = blocked_by(&planner);
    assert_eq!(
        cause.to_string(),
        "spec.externalTrafficPolicy of ns/web:http is Local and this node has no usable endpoint; other nodes have 1"
    );
    assert!(cause.remedy().contains("spec.externalTrafficPolicy"));
    let explanation = ask(
        &planner,
        at("203.0.113.1", 80),
        Asker::Address(ip("10.1.0.9"), None),
    );
    assert_eq!(causes(&explanation), []);
    let explanation = ask(&planner, at("203.0.113.1", 80), Asker::Outside);
    let fates: Vec<Fate> = explanation.places[0]
        .endpoints
        .iter()
        .map(|one| one.fate)
        .collect();
    assert_eq!(fates, [Fate::Elsewhere]);
}

#[test]
fn hints_that_leave_the_zone_empty_are_noted_and_hints_that_fit_are_followed() {
    let with = |words: &[(&str, &str)]| {
        let endpoints = words.iter().map(|(ip, words)| endpoint(ip, words)).collect();
        planner(vec![
            service("ns/web", VIP).into(),
            slice("ns/web", "a", endpoints).into(),
        ])
    };
    let elsewhere = with(&[("10.1.0.1", "r z(b)"), ("10.1.0.2", "r z(c)")]);
    let explanation = ask(&elsewhere, of_service(None), Asker::Anybody);
    assert_eq!(causes(&explanation), [("hints-unused", Weight::Note)]);
    let said = explanation.all_findings().next().unwrap().cause.to_string();
    assert!(said.contains("zone a (hints: b, c)"), "{said}");

    let here = with(&[("10.1.0.1", "r z(a)"), ("10.1.0.2", "r z(b)")]);
    let explanation = ask(&here, of_service(None), Asker::Anybody);
    assert_eq!(causes(&explanation), []);
    let fates: Vec<Fate> = explanation.places[0]
        .endpoints
        .iter()
        .map(|one| one.fate)
        .collect();
    assert_eq!(fates, [Fate::Used, Fate::HintedElsewhere]);

    let some = with(&[("10.1.0.1", "r z(a)"), ("10.1.0.2", "r")]);
    let explanation = ask(&some, of_service(None), Asker::Anybody);
    let said = explanation.all_findings().next().unwrap().cause.to_string();
    assert!(said.contains("1 ready endpoint(s) have none"), "{said}");
}

#[test]
fn a_client_outside_the_source_ranges_is_told_so() {
    let mut guarded = service("ns/web", VIP);
    guarded.kind = ServiceType::LoadBalancer;
    guarded.load_balancer_ips = vec![ip("203.0.113.1")];
    guarded.source_ranges = vec![net("192.0.2.0/24")];
    let planner = planner(vec![
        guarded.into(),
        slice("ns/web", "a", vec![endpoint("10.1.0.1", "r")]).into(),
    ]);
    let from = |source| {
        let explanation = ask(&planner, at("203.0.113.1", 80), Asker::Address(ip(source), None));
        causes(&explanation)
    };
    assert_eq!(from("198.51.100.9"), [("source-range", Weight::Blocks)]);
    assert_eq!(from("192.0.2.9"), []);
}

#[test]
fn a_node_port_at_an_address_that_is_not_selected_is_told_so() {
    let mut open = service("ns/web", VIP);
    open.kind = ServiceType::NodePort;
    open.ports[0].node_port = Some(30080);
    let selected = PlanOptions {
        node_port_addresses: vec![NodePortAddress::Cidr(net("192.0.2.0/24"))],
        ..options(Policy::nftables().without_localhost_node_ports())
    };
    let slice = slice("ns/web", "a", vec![endpoint("10.1.0.1", "r")]);
    let planner = planner_of(node(), selected, vec![open.into(), slice.into()]);
    let explanation = ask(&planner, at("198.51.100.1", 30080), Asker::Outside);
    assert_eq!(causes(&explanation), [("node-port-address", Weight::Blocks)]);
    let remedy = explanation.all_findings().next().unwrap().cause.remedy();
    assert!(
        remedy.starts_with("use 192.0.2.1, or widen --nodeport-addresses"),
        "{remedy}"
    );
    let explanation = ask(&planner, at("192.0.2.1", 30080), Asker::Outside);
    assert_eq!(causes(&explanation), []);
    assert_eq!(explanation.places[0].kind, FrontendKind::NodePort);
}

#[test]
fn a_wrong_port_and_an_unknown_service_are_told_with_what_there_is() {
    let planner = planner(vec![
        service("ns/web", VIP).into(),
        service("other/db", "10.0.0.2").into(),
    ]);
    let by = |subject| {
        let explanation = ask(&planner, subject, Asker::Anybody);
        let finding = explanation.all_findings().next().unwrap();
        (finding.cause.code(), finding.cause.to_string())
    };
    let (code, said) = by(of_service(Some(PortWanted::Number(8080))));
    assert_eq!(
        (code, said.as_str()),
        (
            "wrong-port",
            "Service ns/web has no port 8080; it has 80/tcp (http)"
        )
    );
    assert_eq!(by(at(VIP, 443)).0, "wrong-port");
    assert_eq!(by(at("10.77.0.1", 80)).0, "no-service-there");
    assert_eq!(by(at("192.0.2.1", 31000)).0, "no-node-port");
    let unknown = Subject::Service {
        name: name("ns/db"),
        port: None,
        protocol: None,
    };
    let explanation = ask(&planner, unknown, Asker::Anybody);
    let finding = explanation.all_findings().next().unwrap();
    assert_eq!(finding.cause.code(), "unknown-service");
    assert_eq!(finding.cause.remedy(), "ask for other/db, if that was meant");
}

#[test]
fn of_two_services_that_claim_an_address_the_loser_is_told_who_has_it() {
    let with = |text: &str, cluster_ip: &str, created| Service {
        external_ips: vec![ip("203.0.113.7")],
        created: Some(created),
        ..service(text, cluster_ip)
    };
    let planner = planner(vec![
        with("ns/old", "10.0.0.2", 1).into(),
        with("ns/web", VIP, 2).into(),
        slice("ns/web", "a", vec![endpoint("10.1.0.1", "r")]).into(),
        slice("ns/old", "a", vec![endpoint("10.1.0.2", "r")]).into(),
    ]);
    let explanation = ask(&planner, of_service(None), Asker::Anybody);
    assert_eq!(causes(&explanation), [("contested", Weight::Blocks)]);
    let finding = explanation.all_findings().next().unwrap();
    assert_eq!(
        finding.cause.to_string(),
        "ns/web:http asks for 203.0.113.7:80 as its external IP, but ns/old:http has it already"
    );
    let explanation = ask(&planner, at("203.0.113.7", 80), Asker::Outside);
    assert_eq!(causes(&explanation), [("contested", Weight::Note)]);
    assert_eq!(explanation.places[0].port.service, name("ns/old"));
}
