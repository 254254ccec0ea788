//! Doubts about a valid configuration that only show once the node is known.

#![allow(clippy::unwrap_used)]

use ferry_app::config::{NodeFacts, Sanity, Settings, sanity};
use ferry_model::Family;
use ipnet::IpNet;

fn cidrs(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

struct Case<'a> {
    args: &'a [&'a str],
    primary: Family,
    dual_stack: bool,
    pod_cidrs: &'a [&'a str],
    node_ports: &'a [&'a str],
}

impl Default for Case<'_> {
    fn default() -> Self {
        Case {
            args: &["--nodeport-addresses=10.0.0.0/8"],
            primary: Family::V4,
            dual_stack: true,
            pod_cidrs: &[],
            node_ports: &["10.0.0.0/8"],
        }
    }
}

fn check(case: Case<'_>) -> Sanity {
    let settings = Settings::from_args(case.args).unwrap();
    let (pod_cidrs, node_port_cidrs) = (cidrs(case.pod_cidrs), cidrs(case.node_ports));
    sanity(
        &settings,
        NodeFacts {
            primary: case.primary,
            dual_stack: case.dual_stack,
            pod_cidrs: &pod_cidrs,
            node_port_cidrs: &node_port_cidrs,
        },
    )
}

#[track_caller]
fn doubts(case: Case<'_>, expected: &[&str]) {
    let found = check(case);
    assert_eq!(
        (found.doubts, found.fatal),
        (expected.iter().map(|&text| text.to_owned()).collect(), None)
    );
}

#[test]
fn a_sound_configuration_raises_no_doubt() {
    doubts(Case::default(), &[]);
    doubts(
        Case {
            args: &[
                "--cluster-cidr=10.0.0.0/8,fd00::/8",
                "--nodeport-addresses=10.0.0.0/8,fd00::/8",
            ],
            node_ports: &["10.0.0.0/8", "fd00::/8"],
            ..Case::default()
        },
        &[],
    );
}

#[test]
fn node_ports_on_every_address() {
    let unset = "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. \
                 Consider using `--nodeport-addresses primary`";
    doubts(
        Case {
            args: &[],
            node_ports: &[],
            ..Case::default()
        },
        &[unset],
    );
}

#[test]
fn node_ports_of_one_family_only() {
    let one = "cluster appears to be dual-stack but nodePortAddresses contains only IPv4 addresses; \
               NodePort connections will be accepted on all local IPv6 IPs";
    let args: &[&str] = &[
        "--cluster-cidr=10.0.0.0/8,fd00::/8",
        "--nodeport-addresses=10.0.0.0/8",
    ];
    doubts(
        Case {
            args,
            ..Case::default()
        },
        &[one],
    );
    doubts(
        Case {
            pod_cidrs: &["10.1.0.0/24", "fd00::/64"],
            ..Case::default()
        },
        &[one],
    );
    let wrong = "cluster appears to be IPv6-primary but nodePortAddresses contains only IPv4 addresses; \
                 NodePort connections will be accepted on all local IPv6 IPs";
    doubts(
        Case {
            primary: Family::V6,
            ..Case::default()
        },
        &[wrong],
    );
}

#[test]
fn cluster_cidrs_of_the_wrong_family() {
    let args: &[&str] = &["--cluster-cidr=fd00::/8", "--nodeport-addresses=10.0.0.0/8"];
    doubts(
        Case {
            args,
            ..Case::default()
        },
        &["cluster is IPv4-primary but clusterCIDRs contains only IPv6 addresses"],
    );
    let single = check(Case {
        args,
        dual_stack: false,
        ..Case::default()
    });
    assert_eq!(
        single.fatal.as_deref(),
        Some(
            "kube-proxy configuration is incorrect: cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses"
        )
    );
}

#[test]
fn pod_cidrs_of_the_wrong_family() {
    let case = Case {
        pod_cidrs: &["fd00::/64"],
        ..Case::default()
    };
    doubts(
        case,
        &["cluster is IPv4-primary but node.spec.podCIDRs contains only IPv6 addresses"],
    );
    let args: &[&str] = &["--detect-local-mode=NodeCIDR", "--nodeport-addresses=10.0.0.0/8"];
    let node_cidr = check(Case {
        args,
        pod_cidrs: &["fd00::/64"],
        ..Case::default()
    });
    assert!(
        node_cidr
            .fatal
            .unwrap()
            .ends_with("node.spec.podCIDRs contains only IPv6 addresses")
    );
}

#[test]
fn what_only_matters_with_one_family() {
    let args: &[&str] = &[
        "--proxy-mode=ipvs",
        "--ipvs-exclude-cidrs=fd00::/8",
        "--healthz-bind-address=[fd00::1]:1",
        "--metrics-bind-address=[::]:1",
        "--nodeport-addresses=10.0.0.0/8",
    ];
    doubts(
        Case {
            args,
            ..Case::default()
        },
        &[],
    );
    doubts(
        Case {
            args,
            dual_stack: false,
            ..Case::default()
        },
        &[
            "[cluster is IPv4-only but ipvs.excludeCIDRs contains only IPv6 addresses, \
           cluster is IPv4-only but healthzBindAddress is IPv6]",
        ],
    );
}
