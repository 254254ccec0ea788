//! What holds for any facts in any order.

#![allow(clippy::unwrap_used)]

mod common;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use ferry_model::*;
use proptest::prelude::*;

/// Few names and addresses, so that services collide, slices overlap and objects come and go.
fn any_service() -> impl Strategy<Value = Event> {
    let policy = || prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)];
    let node_port = proptest::option::of(30000u16..30003);
    let addresses = proptest::collection::vec(1u8..4, 0..2);
    (
        0u8..4,
        1u8..4,
        policy(),
        policy(),
        node_port,
        addresses.clone(),
        addresses,
        any::<bool>(),
        proptest::option::weighted(0.8, Just(())),
    )
        .prop_map(
            |(n, cluster_ip, internal, external, node_port, lb, ext, udp, present)| {
                let text = format!("ns/s{n}");
                let mut svc = service(&text, &format!("172.30.0.{cluster_ip}"));
                svc.cluster_ips.push(ip(&format!("fd00:172::{n}")));
                (svc.internal_policy, svc.external_policy) = (internal, external);
                svc.ports[0].node_port = node_port;
                svc.ports[0].protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
                svc.load_balancer_ips = lb.iter().map(|byte| ip(&format!("1.1.1.{byte}"))).collect();
                svc.external_ips = ext.iter().map(|byte| ip(&format!("1.1.1.{byte}"))).collect();
                Event::Service(name(&text), present.map(|()| Arc::new(svc)))
            },
        )
}

fn any_slice() -> impl Strategy<Value = Event> {
    let words = prop_oneof![
        Just("r"),
        Just("r L"),
        Just("st L"),
        Just("st"),
        Just("x"),
        Just("r z(a)"),
        Just("r L z(a) n(node-1)")
    ];
    let endpoints = proptest::collection::vec((1u8..6, words), 0..5);
    (
        0u8..4,
        0u8..3,
        endpoints,
        any::<bool>(),
        proptest::option::weighted(0.8, Just(())),
    )
        .prop_map(|(service, suffix, endpoints, udp, present)| {
            let endpoints = endpoints
                .iter()
                .map(|(byte, words)| endpoint(&format!("10.0.0.{byte}"), words))
                .collect();
            let mut slice = slice(&format!("ns/s{service}"), "x", endpoints);
            // The name does not depend on the service: a slice can be relabelled.
            slice.name = SliceName::new("ns", &format!("slice{suffix}"));
            slice.ports[0].protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            Event::Slice(slice.name.clone(), present.map(|()| Arc::new(slice)))
        })
}

fn any_node() -> impl Strategy<Value = Event> {
    let zone = proptest::option::of(prop_oneof![Just("a"), Just("b")]);
    (zone, any::<bool>()).prop_map(|(zone, host_event)| {
        if host_event {
            set_host(host(if zone.is_some() {
                &["192.168.0.2", "127.0.0.1"]
            } else {
                &["192.168.0.2"]
            }))
        } else {
            set_node(node(zone))
        }
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(
        prop_oneof![5 => any_service(), 5 => any_slice(), 1 => any_node()],
        0..40,
    )
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::iptables()),
        Just(Policy::nftables().without_localhost_node_ports()),
        Just(Policy::ipvs()),
        Just(Policy::userspace())
    ]
}

/// What an event is about; the last event of each object is what counts.
fn object(event: &Event) -> String {
    match event {
        Event::Service(name, _) => format!("service {name}"),
        Event::Slice(name, _) => format!("slice {name}"),
        Event::Node(_) => "node".into(),
        Event::ServiceCidr(name, _) => format!("cidr {name}"),
        Event::Host(_) => "host".into(),
    }
}

fn services(planner: &Planner) -> Vec<ServicePlan> {
    planner
        .plan()
        .services()
        .map(|service| (**service).clone())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn planning_step_by_step_equals_planning_from_scratch(events in events(), policy in policies()) {
        let mut planner = Planner::new(options(policy));
        let mut known = planner.plan().revision();
        let mut copy: BTreeMap<ServiceName, Arc<ServicePlan>> = BTreeMap::new();
        for event in events.clone() {
            planner.update([event]);
            // A reader that follows the journal has the same plan.
            if let Changed::Services(names) = planner.plan().changed_since(known) {
                for name in names {
                    match planner.plan().service(name) {
                        Some(service) => copy.insert(name.clone(), Arc::clone(service)),
                        None => copy.remove(name),
                    };
                }
            }
            known = planner.plan().revision();
        }
        let last: BTreeMap<String, Event> = events.into_iter().map(|event| (object(&event), event)).collect();
        let scratch = planned(options(policy), last.into_values());
        prop_assert_eq!(services(&planner), services(&scratch));
        prop_assert_eq!(planner.plan().node(), scratch.plan().node());
        prop_assert_eq!(planner.plan().tally(), scratch.plan().tally());
        prop_assert_eq!(planner.plan().skipped(), scratch.plan().skipped());
        prop_assert_eq!(copy.into_values().collect::<Vec<_>>(), planner.plan().services().cloned().collect::<Vec<_>>());
    }

    #[test]
    fn any_order_of_objects_gives_the_same_plan(events in events().prop_shuffle(), policy in policies()) {
        let last: BTreeMap<String, Event> = events.into_iter().map(|event| (object(&event), event)).collect();
        let forwards = planned(options(policy), last.values().cloned());
        let mut backwards = Planner::new(options(policy));
        for event in last.into_values().rev() {
            backwards.update([event]);
        }
        prop_assert_eq!(forwards.snapshot(), backwards.snapshot());
        prop_assert_eq!(services(&forwards), services(&backwards));
        prop_assert_eq!(forwards.plan().skipped(), backwards.plan().skipped());
    }

    #[test]
    fn no_frontend_has_two_owners(events in events(), policy in policies()) {
        let planner = planned(options(policy), events);
        let mut seen = BTreeMap::new();
        for service in planner.plan().services() {
            for port in &service.ports {
                for key in port.keys() {
                    let owner = seen.entry(key).or_insert_with(|| port.name.clone());
                    prop_assert_eq!(&*owner, &port.name);
                    prop_assert_eq!(&planner.plan().port_at(&key).map(|port| port.name.clone()), &Some(port.name.clone()));
                }
            }
        }
    }

    #[test]
    fn trace_never_leaves_the_pool(events in events(), policy in policies(), source in 1u8..6, destination in 0u8..8, port in prop_oneof![Just(80u16), 30000u16..30003]) {
        let planner = planned(options(policy), events);
        let destination = match destination {
            0 => ip("192.168.0.2"),
            1..4 => ip(&format!("172.30.0.{destination}")),
            _ => ip(&format!("1.1.1.{}", destination - 3)),
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let packet = Packet { source: ip(&format!("10.0.0.{source}")), origin: Origin::Network(None), destination, port, protocol };
            let outcome = trace(planner.plan(), &packet);
            let (Action::Forward { .. }, Some(port), targets) = (outcome.action, outcome.port, outcome.targets) else { continue };
            let service = planner.plan().service(&port.service).unwrap();
            let planned = service.ports.iter().find(|p| p.name == port && p.family == Family::V4).unwrap();
            prop_assert!(!targets.is_empty());
            for target in targets {
                prop_assert!(planned.reachable().any(|endpoint| endpoint.address() == target.address));
            }
        }
    }
}
