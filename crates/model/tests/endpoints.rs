//! Which endpoints serve which traffic: the decision table of kube-proxy, case by case.

#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use ferry_model::*;

struct Case {
    what: &'static str,
    /// Words: `iL`, `eL` for Local policies, `np` for a node port.
    service: &'static str,
    node: &'static str,
    zone: Option<&'static str>,
    /// Last byte of the address and what [`endpoint`] takes.
    endpoints: &'static [(&'static str, &'static str)],
    cluster: &'static str,
    local: &'static str,
    has_endpoints: bool,
}

const CASES: &[Case] = &[
    Case {
        what: "zone hints are followed",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("3", "r z(a)"), ("4", "r z(b)"), ("5", "r z(c)"), ("6", "r z(a)")],
        cluster: "3 6",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "an external Local policy ignores topology",
        service: "eL np",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[
            ("3", "r L z(a)"),
            ("4", "r L z(b)"),
            ("5", "r z(c)"),
            ("6", "r z(a)"),
        ],
        cluster: "3 6",
        local: "3 4",
        has_endpoints: true,
    },
    Case {
        what: "an internal Local policy ignores topology",
        service: "iL np",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[
            ("3", "r L z(a)"),
            ("4", "r L z(b)"),
            ("5", "r z(c)"),
            ("6", "r z(a)"),
        ],
        cluster: "3 6",
        local: "3 4",
        has_endpoints: true,
    },
    Case {
        what: "a node without a zone ignores zone hints",
        service: "",
        node: "node-1",
        zone: None,
        endpoints: &[("3", "r z(a)")],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "an empty zone is no zone",
        service: "",
        node: "node-1",
        zone: Some(""),
        endpoints: &[("3", "r z(a)")],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "no endpoint for our zone",
        service: "",
        node: "node-1",
        zone: Some("b"),
        endpoints: &[("3", "r z(a)")],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "unready endpoints of the zone do not count",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("3", "r z(a)"), ("4", "r z(b)"), ("5", "r z(c)"), ("6", "x z(a)")],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "only unready endpoints in our zone",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("3", "x z(a)"), ("4", "r z(b)"), ("5", "r z(c)"), ("6", "x z(a)")],
        cluster: "4 5",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "one ready endpoint without a hint",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("3", "r z(a)"), ("4", "r z(b)"), ("5", "r"), ("6", "r z(a)")],
        cluster: "3 4 5 6",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "an unready endpoint without a hint",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("3", "r z(a)"), ("4", "r z(b)"), ("5", "x")],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "hints for several zones",
        service: "",
        node: "node-1",
        zone: Some("c"),
        endpoints: &[
            ("3", "r z(a,b,c)"),
            ("4", "r z(b,c)"),
            ("5", "r z(b,d)"),
            ("6", "r z(c)"),
        ],
        cluster: "3 4 6",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "node hints go first",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[
            ("3", "r z(a) n(node-1)"),
            ("4", "r z(b) n(node-2)"),
            ("5", "r z(c) n(node-3)"),
            ("6", "r z(a) n(node-4)"),
        ],
        cluster: "3",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "one endpoint without any hint",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[
            ("3", "r z(a) n(node-1)"),
            ("4", "r"),
            ("5", "r z(c) n(node-3)"),
            ("6", "r z(a) n(node-4)"),
        ],
        cluster: "3 4 5 6",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "no endpoint for our node, some for our zone",
        service: "",
        node: "node-0",
        zone: Some("a"),
        endpoints: &[
            ("3", "r z(a) n(node-1)"),
            ("4", "r z(b) n(node-2)"),
            ("6", "r z(a) n(node-4)"),
        ],
        cluster: "3 6",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "internal Local without endpoints",
        service: "iL",
        node: "node-1",
        zone: None,
        endpoints: &[],
        cluster: "",
        local: "",
        has_endpoints: false,
    },
    Case {
        what: "internal Local with remote endpoints only",
        service: "iL",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r"), ("1", "r")],
        cluster: "",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "internal Local, all local",
        service: "iL",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r L"), ("1", "r L")],
        cluster: "",
        local: "0 1",
        has_endpoints: true,
    },
    Case {
        what: "internal Local, one local",
        service: "iL",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r L"), ("1", "r")],
        cluster: "",
        local: "0",
        has_endpoints: true,
    },
    Case {
        what: "nothing ready, nothing serving",
        service: "",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "x"), ("1", "x")],
        cluster: "",
        local: "",
        has_endpoints: false,
    },
    Case {
        what: "one ready",
        service: "",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "x"), ("1", "r")],
        cluster: "1",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "terminating ones serve when nothing is ready",
        service: "",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "st L"), ("1", "st")],
        cluster: "0 1",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "internal Local and a node port",
        service: "iL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r L"), ("1", "r")],
        cluster: "0 1",
        local: "0",
        has_endpoints: true,
    },
    Case {
        what: "external Local and a node port",
        service: "eL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r L"), ("1", "r")],
        cluster: "0 1",
        local: "0",
        has_endpoints: true,
    },
    Case {
        what: "both Local",
        service: "iL eL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r L"), ("1", "r")],
        cluster: "0 1",
        local: "0",
        has_endpoints: true,
    },
    Case {
        what: "both Local, remote only",
        service: "iL eL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r"), ("1", "r")],
        cluster: "0 1",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "both Local, remote and terminating only",
        service: "iL eL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "st"), ("1", "st")],
        cluster: "0 1",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "each pool falls back to terminating ones by itself",
        service: "eL np",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r"), ("1", "x L"), ("2", "st L"), ("3", "st")],
        cluster: "0",
        local: "2",
        has_endpoints: true,
    },
    Case {
        what: "external Local without a way in from outside",
        service: "eL",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r"), ("1", "r L")],
        cluster: "0 1",
        local: "",
        has_endpoints: true,
    },
    Case {
        what: "internal Local picks its own",
        service: "iL",
        node: "node-1",
        zone: None,
        endpoints: &[("0", "r"), ("1", "r L")],
        cluster: "",
        local: "1",
        has_endpoints: true,
    },
    Case {
        what: "no endpoints at all",
        service: "",
        node: "node-1",
        zone: None,
        endpoints: &[],
        cluster: "",
        local: "",
        has_endpoints: false,
    },
    Case {
        what: "hints of unusable endpoints",
        service: "",
        node: "node-1",
        zone: Some("a"),
        endpoints: &[("0", "x")],
        cluster: "",
        local: "",
        has_endpoints: false,
    },
];

#[test]
fn every_case_of_the_table() {
    for case in CASES {
        let words: Vec<&str> = case.service.split(' ').collect();
        let policy = |word| {
            if words.contains(&word) {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            }
        };
        let mut service = service("ns/svc", "172.30.0.1");
        service.internal_policy = policy("iL");
        service.external_policy = policy("eL");
        service.ports[0].node_port = words.contains(&"np").then_some(30080);
        let endpoints = case
            .endpoints
            .iter()
            .map(|(byte, words)| endpoint(&format!("10.1.2.{byte}"), words));
        let mut options = options(Policy::nftables().without_localhost_node_ports());
        options.node_name = case.node.into();
        let slice = slice("ns/svc", "x", endpoints.collect());
        let planner = planned(
            options,
            [add(service), add_slice(slice), set_node(node(case.zone))],
        );
        let port = &planner.plan().service(&name("ns/svc")).unwrap().ports[0];

        let bytes = |endpoints: Vec<String>| {
            let bytes = endpoints
                .iter()
                .map(|e| e.trim_start_matches("10.1.2.").trim_end_matches(":8080"));
            bytes.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            bytes(addresses(port.pool(Scope::Cluster).iter())),
            case.cluster,
            "cluster pool: {}",
            case.what
        );
        assert_eq!(
            bytes(addresses(port.pool(Scope::Local).iter())),
            case.local,
            "local pool: {}",
            case.what
        );
        assert_eq!(
            port.has_endpoints, case.has_endpoints,
            "has endpoints: {}",
            case.what
        );
    }
}

#[test]
fn endpoints_sort_by_their_text() {
    let endpoints = ["10.0.1.2", "10.0.1.1", "10.0.1.10"].map(|address| endpoint(address, "r"));
    let events = [
        add(service("ns/svc", "172.30.0.1")),
        add_slice(slice("ns/svc", "x", endpoints.into())),
    ];
    let planner = planned(options(Policy::nftables().without_localhost_node_ports()), events);
    let port = &planner.plan().service(&name("ns/svc")).unwrap().ports[0];
    assert_eq!(
        addresses(port.pool(Scope::Cluster).iter()),
        ["10.0.1.10:8080", "10.0.1.1:8080", "10.0.1.2:8080"]
    );
}

#[test]
fn slices_merge_and_the_living_beat_the_terminating() {
    let first = slice(
        "ns/svc",
        "a",
        vec![endpoint("10.0.0.1", "r L"), endpoint("10.0.0.2", "st")],
    );
    let second = slice(
        "ns/svc",
        "b",
        vec![
            endpoint("10.0.0.1", "st"),
            endpoint("10.0.0.2", "r"),
            endpoint("10.0.0.3", "r"),
        ],
    );
    let events = [
        add(service("ns/svc", "172.30.0.1")),
        add_slice(first),
        add_slice(second),
    ];
    let planner = planned(options(Policy::nftables().without_localhost_node_ports()), events);
    let port = &planner.plan().service(&name("ns/svc")).unwrap().ports[0];
    assert_eq!(
        addresses(port.pool(Scope::Cluster).iter()),
        ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"]
    );
    assert!(
        port.endpoints[0].is_local(),
        "the terminating copy of .1 did not replace the living one"
    );
}

#[test]
fn a_named_port_may_differ_between_slices() {
    let mut other = slice("ns/svc", "b", vec![endpoint("10.0.0.1", "r")]);
    other.ports[0].port = 9090;
    let events = [
        add(service("ns/svc", "172.30.0.1")),
        add_slice(slice("ns/svc", "a", vec![endpoint("10.0.0.1", "r")])),
        add_slice(other),
    ];
    let planner = planned(options(Policy::nftables().without_localhost_node_ports()), events);
    let port = &planner.plan().service(&name("ns/svc")).unwrap().ports[0];
    assert_eq!(
        addresses(port.pool(Scope::Cluster).iter()),
        ["10.0.0.1:8080", "10.0.0.1:9090"]
    );
}

#[test]
fn a_pod_with_two_ports_is_one_local_endpoint_to_the_health_check() {
    let mut svc = service("ns/svc", "172.30.0.1");
    svc.kind = ServiceType::LoadBalancer;
    svc.external_policy = TrafficPolicy::Local;
    svc.health_check_node_port = Some(32100);
    svc.ports.push(port("https", 443));
    let mut pods = slice(
        "ns/svc",
        "a",
        vec![
            endpoint("10.0.0.1", "r L"),
            endpoint("10.0.0.2", "st L"),
            endpoint("10.0.0.3", "r"),
        ],
    );
    pods.ports.push(SlicePort {
        name: "https".into(),
        protocol: Protocol::Tcp,
        port: 8443,
    });
    let planner = planned(
        options(Policy::nftables().without_localhost_node_ports()),
        [add(svc), add_slice(pods)],
    );
    let health = planner
        .plan()
        .service(&name("ns/svc"))
        .unwrap()
        .health_check
        .unwrap();
    assert_eq!(
        (health.port, health.local_endpoints),
        (
            32100,
            PerFamily {
                v4: Some(1),
                v6: None
            }
        )
    );
}
