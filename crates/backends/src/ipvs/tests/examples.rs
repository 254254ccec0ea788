//! kube-proxy's own example of six services that use everything, with and without a way to tell pods from others.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_host::iptables::Table;
use ferry_model::*;

use super::super::rules;
use super::super::sets::Set;
use super::{ip, options, rendered, standing};

fn service(name: &str, number: u8, protocol: Protocol, node_port: u16) -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        ports: vec![ServicePort {
            name: "p".into(),
            protocol,
            port: 80,
            node_port: Some(node_port),
        }],
        ..Service::new(
            ServiceName::new("ns", name),
            vec![ip(&format!("172.30.0.{number}"))],
        )
    }
}

fn slice(of: &Service, address: &str) -> EndpointSlice {
    let endpoint = SliceEndpoint::ready(ip(address), Some("node-a".into()));
    EndpointSlice {
        name: SliceName::new("ns", of.name.name()),
        service: of.name.clone(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "p".into(),
            protocol: of.ports[0].protocol,
            port: 80,
        }],
        endpoints: vec![endpoint],
    }
}

fn six_services() -> Vec<Service> {
    let mut one = service("one", 1, Protocol::Tcp, 30001);
    one.external_ips = vec![ip("50.60.70.81")];
    one.load_balancer_ips = vec![ip("1.2.3.1")];
    one.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let mut two = service("two", 2, Protocol::Tcp, 30002);
    two.external_ips = vec![ip("50.60.70.82")];
    two.load_balancer_ips = vec![ip("1.2.3.2")];
    two.source_ranges = vec!["100.101.102.0/24".parse().unwrap()];
    two.external_policy = TrafficPolicy::Local;
    two.health_check_node_port = Some(30099);
    let mut all = vec![one, two];
    for (name, number, protocol, node_port) in [
        ("three", 3, Protocol::Udp, 30003),
        ("four", 4, Protocol::Udp, 30004),
        ("five", 5, Protocol::Sctp, 30005),
        ("six", 6, Protocol::Sctp, 30006),
    ] {
        let mut service = service(name, number, protocol, node_port);
        if number % 2 == 0 {
            service.external_policy = TrafficPolicy::Local;
        }
        all.push(service);
    }
    all
}

fn plan_of(services: &[Service], options: PlanOptions) -> Planner {
    let mut planner = Planner::new(options);
    planner.update(standing(&["100.101.102.103"], &["100.101.102.103", "127.0.0.1"]));
    for service in services {
        planner.update([Event::Service(
            service.name.clone(),
            Some(Arc::new(service.clone())),
        )]);
    }
    planner
}

fn detecting() -> PlanOptions {
    options(DetectLocal::ClusterCidrs(vec!["10.0.0.0/8".parse().unwrap()]))
}

fn example(options: PlanOptions) -> Planner {
    let services = six_services();
    let mut planner = plan_of(&services, options);
    let slice = slice(&services[0], "10.180.0.1");
    planner.update([Event::from(slice)]);
    planner
}

#[test]
fn every_set_holds_what_kube_proxy_puts_there() {
    let planner = example(detecting());
    let (ruleset, _) = rendered(planner.plan(), Family::V4);
    let entries = |set: Set| -> Vec<String> {
        let own = ruleset.entries().filter(|(of, _)| *of == set);
        let mut text: Vec<String> = own.map(|(_, entry)| entry.to_string()).collect();
        text.sort();
        text
    };
    for (set, want) in [
        (Set::LoopBack, "10.180.0.1,tcp:80,10.180.0.1"),
        (
            Set::ClusterIp,
            "172.30.0.1,tcp:80 172.30.0.2,tcp:80 172.30.0.3,udp:80 172.30.0.4,udp:80 172.30.0.5,sctp:80 \
             172.30.0.6,sctp:80",
        ),
        (Set::ExternalIp, "50.60.70.81,tcp:80"),
        (Set::ExternalIpLocal, "50.60.70.82,tcp:80"),
        (Set::LoadBalancer, "1.2.3.1,tcp:80 1.2.3.2,tcp:80"),
        (Set::LoadBalancerFw, "1.2.3.1,tcp:80 1.2.3.2,tcp:80"),
        (Set::LoadBalancerLocal, "1.2.3.2,tcp:80"),
        (Set::LoadBalancerSourceIp, "1.2.3.2,tcp:80,1.2.3.2"),
        (
            Set::LoadBalancerSourceCidr,
            "1.2.3.1,tcp:80,10.0.0.0/8 1.2.3.2,tcp:80,100.101.102.0/24",
        ),
        (Set::NodePortTcp, "30001 30002"),
        (Set::NodePortLocalTcp, "30002"),
        (Set::NodePortUdp, "30003 30004"),
        (Set::NodePortLocalUdp, "30004"),
        (
            Set::NodePortSctp,
            "100.101.102.103,sctp:30005 100.101.102.103,sctp:30006",
        ),
        (Set::NodePortLocalSctp, "100.101.102.103,sctp:30006"),
        (Set::HealthCheckNodePort, "30099"),
        (
            Set::IpvsIps,
            "1.2.3.1 1.2.3.2 172.30.0.1 172.30.0.2 172.30.0.3 172.30.0.4 172.30.0.5 172.30.0.6 50.60.70.81 \
             50.60.70.82",
        ),
    ] {
        assert_eq!(entries(set).join(" "), want, "{set:?}");
    }
}

#[test]
fn every_frontend_has_a_virtual_server() {
    let planner = example(detecting());
    let (ruleset, _) = rendered(planner.plan(), Family::V4);
    let got: BTreeSet<String> = ruleset
        .virtuals()
        .map(|(at, server)| {
            format!(
                "{at} {}",
                server
                    .servers
                    .iter()
                    .map(SocketAddr::to_string)
                    .collect::<String>()
            )
        })
        .collect();
    let served = [
        "1.2.3.1:80",
        "100.101.102.103:30001",
        "172.30.0.1:80",
        "50.60.70.81:80",
    ];
    let mut want: BTreeSet<String> = served
        .iter()
        .map(|at| format!("{at}/TCP 10.180.0.1:80"))
        .collect();
    for at in [
        "1.2.3.2:80/TCP",
        "100.101.102.103:30002/TCP",
        "172.30.0.2:80/TCP",
        "50.60.70.82:80/TCP",
    ] {
        want.insert(format!("{at} "));
    }
    for (number, protocol) in [(3, "UDP"), (4, "UDP"), (5, "SCTP"), (6, "SCTP")] {
        want.insert(format!("172.30.0.{number}:80/{protocol} "));
        want.insert(format!("100.101.102.103:3000{number}/{protocol} "));
    }
    assert_eq!(got, want);
}

#[test]
fn cluster_ip_traffic_is_marked_by_what_is_known_of_its_source() {
    let masquerade_all = PlanOptions {
        masquerade_all: true,
        ..detecting()
    };
    let unknown = options(DetectLocal::ClusterCidrs(vec![]));
    let bridge = options(DetectLocal::Bridge("br0".into()));
    let prefix = options(DetectLocal::InterfacePrefix("veth".into()));
    for (options, want) in [
        (
            detecting(),
            "KUBE-CLUSTER-IP dst,dst ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ",
        ),
        (unknown, "KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ"),
        (masquerade_all, "KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ"),
        (bridge, "KUBE-CLUSTER-IP dst,dst ! -i br0 -j KUBE-MARK-MASQ"),
        (prefix, "KUBE-CLUSTER-IP dst,dst ! -i veth+ -j KUBE-MARK-MASQ"),
    ] {
        let (_, rules) = rendered(example(options).plan(), Family::V4);
        assert!(
            rules.chains[0].rules[2].ends_with(want),
            "{}",
            rules.chains[0].rules[2]
        );
    }
}

#[test]
fn the_node_is_kept_out_where_the_ranges_do_not_hold_it() {
    let (_, rules) = rendered(example(detecting()).plan(), Family::V4);
    let out = rules
        .chains
        .iter()
        .find(|chain| chain.name == rules::IPVS_OUT_FILTER)
        .unwrap();
    assert_eq!(
        out.rules,
        ["-s 1.2.3.1 -m ipvs --vaddr 1.2.3.1 --vproto tcp --vport 80 -j DROP"]
    );
}

#[test]
fn without_services_only_the_frame_is_left() {
    for (family, loopback) in [(Family::V4, "127.0.0.0/8"), (Family::V6, "::1/128")] {
        let (_, rules) = rendered(plan_of(&[], detecting()).plan(), family);
        let count = |table, name| {
            rules
                .chains
                .iter()
                .find(|chain| chain.table == table && chain.name == name)
                .unwrap()
                .rules
                .len()
        };
        assert_eq!(rules.chains[0].rules[0], format!("-s {loopback} -j RETURN"));
        assert_eq!(count(Table::Nat, crate::chains::SERVICES), 2);
        assert_eq!(count(Table::Nat, rules::NODE_PORT), 0);
        assert_eq!(count(Table::Filter, rules::NODE_PORT), 1);
        assert_eq!(count(Table::Filter, rules::IPVS_OUT_FILTER), 0);
    }
}

#[test]
fn an_address_of_another_interface_is_served_and_not_bound() {
    let mut service = service("one", 1, Protocol::Tcp, 30001);
    service.external_ips = vec![ip("100.101.102.103"), ip("50.60.70.81")];
    let (ruleset, _) = rendered(plan_of(&[service], detecting()).plan(), Family::V4);
    let bound: Vec<String> = ruleset.addresses().map(|address| address.to_string()).collect();
    assert_eq!(bound, ["50.60.70.81", "172.30.0.1"]);
    assert!(
        ruleset
            .virtuals()
            .any(|(at, _)| at.to_string() == "100.101.102.103:80/TCP")
    );
}

#[test]
fn options_of_a_service_decide_scheduler_affinity_and_draining() {
    let mut service = service("one", 1, Protocol::Udp, 30001);
    service.affinity = Some(Duration::from_secs(10800));
    service.options.scheduler = Some("mh".into());
    let drain = |service: &Service| {
        let planner = plan_of(std::slice::from_ref(service), detecting());
        let (ruleset, _) = rendered(planner.plan(), Family::V4);
        assert_eq!(ruleset.virtuals().count(), 2);
        for (_, server) in ruleset.virtuals() {
            assert_eq!((&*server.service.scheduler, server.service.flags), ("mh", 0x10));
            assert_eq!(server.service.persistence, service.affinity);
        }
        ruleset.virtuals().next().unwrap().1.drain
    };
    assert_eq!(
        drain(&service),
        Duration::from_secs(1),
        "time for answers on their way"
    );
    service.options.drain = Some(Duration::ZERO);
    assert_eq!(drain(&service), Duration::ZERO, "not even that");
    service.options.drain = Some(Duration::from_secs(7));
    assert_eq!(drain(&service), Duration::from_secs(7));
    service.ports[0].protocol = Protocol::Tcp;
    service.options.drain = None;
    assert_eq!(drain(&service), Duration::from_secs(900));
}
