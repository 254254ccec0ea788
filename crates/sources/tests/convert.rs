//! Objects to facts: the tables of kube-proxy's own conversion tests, and everything that can be wrong with an object.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, SystemTime};

use ferry_model::{EndpointSlice, Family, Node, Protocol, Service, ServiceType, TrafficPolicy};
use ferry_sources::convert::{self, Converted, Interner};
use ferry_sources::objects::{Object, Shape};
use serde_json::{Value, json};

fn service(spec: Value, status: Value) -> Converted<Option<Service>> {
    let object = json!({"metadata": {"namespace": "ns", "name": "svc"}, "spec": spec, "status": status});
    match Object::from_value(Shape::Service, &object).expect("readable") {
        Object::Service(object) => convert::service(&object, &Interner::default()),
        other => unreachable!("{other:?}"),
    }
}

/// A Service with one port and these fields besides.
fn with(extra: Value) -> Converted<Option<Service>> {
    let mut spec = json!({"clusterIP": "10.0.0.1", "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]});
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    service(spec, Value::Null)
}

fn good<T>(converted: Converted<Option<T>>) -> T {
    assert_eq!(converted.skipped, []);
    converted.fact.expect("a fact")
}

fn reasons<T>(converted: &Converted<T>) -> Vec<String> {
    converted.skipped.iter().map(ToString::to_string).collect()
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

#[test]
fn services_with_nothing_to_serve() {
    let ports = json!([{"port": 53, "protocol": "UDP"}]);
    for spec in [
        json!({"clusterIP": "None", "ports": ports}),
        json!({"clusterIP": "None", "ports": [{"port": 7777, "protocol": "SCTP"}]}),
        json!({"clusterIP": "None"}),
        json!({"clusterIP": "None", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ports": ports}),
        json!({"type": "ExternalName", "clusterIP": "10.0.0.1", "externalName": "foo", "ports": ports}),
        json!({"type": "ExternalName", "externalName": "foo"}),
    ] {
        let converted = service(spec.clone(), Value::Null);
        assert_eq!((converted.fact, converted.skipped), (None, vec![]), "{spec}");
    }
    let converted = service(json!({"ports": ports}), Value::Null);
    assert_eq!(converted.fact, None);
    assert_eq!(
        reasons(&converted),
        ["Service ns/svc: spec.clusterIP: is empty: the Service has no address to serve"]
    );
}

#[test]
fn cluster_ips_by_family() {
    for (spec, expected) in [
        (json!({"clusterIP": "10.0.0.1"}), vec!["10.0.0.1"]),
        (json!({"clusterIP": "2001:db8::1"}), vec!["2001:db8::1"]),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "2001:db8::1"]}),
            vec!["10.0.0.1"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]}),
            vec!["10.0.0.1"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "2001:db8::1"], "ipFamilies": ["IPv4", "IPv6"]}),
            vec!["10.0.0.1", "2001:db8::1"],
        ),
        (
            json!({"clusterIP": "2001:db8::1", "clusterIPs": ["2001:db8::1", "10.0.0.1"], "ipFamilies": ["IPv6", "IPv4"]}),
            vec!["2001:db8::1", "10.0.0.1"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"]}),
            vec!["10.0.0.1"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4", "IPv6"]}),
            vec!["10.0.0.1"],
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"], "ipFamilies": ["IPv4", "IPv4"]}),
            vec!["10.0.0.1"],
        ),
        (json!({"clusterIP": "010.000.0.041"}), vec!["10.0.0.41"]),
        (json!({"clusterIP": "::ffff:10.0.0.1"}), vec!["10.0.0.1"]),
    ] {
        assert_eq!(
            texts(&good(service(spec.clone(), Value::Null)).cluster_ips),
            expected,
            "{spec}"
        );
    }
}

#[test]
fn bad_cluster_ips_are_told() {
    for (spec, served, reason) in [
        (
            json!({"clusterIP": "ten"}),
            vec![],
            r#"spec.clusterIP: "ten" is not an IP address"#,
        ),
        (
            json!({"clusterIP": "0.0.0.0"}),
            vec![],
            "spec.clusterIP: 0.0.0.0 cannot be served",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"], "ipFamilies": ["IPv4", "IPv6"]}),
            vec!["10.0.0.1"],
            "spec.clusterIPs[1]: 10.0.0.2 is not of its ipFamily IPv6",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "x"], "ipFamilies": ["IPv4", "IPv5"]}),
            vec!["10.0.0.1"],
            r#"spec.ipFamilies[1]: "IPv5" is not IPv4 or IPv6"#,
        ),
    ] {
        let converted = service(spec, Value::Null);
        assert_eq!(reasons(&converted), [format!("Service ns/svc: {reason}")]);
        assert_eq!(
            converted
                .fact
                .map_or_else(Vec::new, |fact| texts(&fact.cluster_ips)),
            served
        );
    }
}

#[test]
fn ports() {
    let fact = good(with(json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 53, "protocol": "UDP", "nodePort": 30053},
        {"name": "b", "port": 80, "nodePort": null, "targetPort": "http", "appProtocol": "x"},
        {"name": "", "port": 65535, "protocol": "SCTP"},
    ]})));
    assert_eq!(fact.kind, ServiceType::NodePort);
    let ports: Vec<_> = fact
        .ports
        .iter()
        .map(|p| (&*p.name, p.protocol, p.port, p.node_port))
        .collect();
    assert_eq!(
        ports,
        [
            ("a", Protocol::Udp, 53, Some(30053)),
            ("b", Protocol::Tcp, 80, None),
            ("", Protocol::Sctp, 65535, None),
        ]
    );
    assert!(good(with(json!({"ports": null}))).ports.is_empty());
}

#[test]
fn bad_ports_do_not_spoil_good_ones() {
    let converted = with(json!({"ports": [
        {"name": "zero", "port": 0},
        {"name": "big", "port": 65536},
        {"name": "huge", "port": 99999999999_i64},
        {"name": "minus", "port": -1},
        {"name": "Bad Name\n-j ACCEPT", "port": 80},
        {"name": "proto", "port": 80, "protocol": "tcp"},
        {"name": "node", "port": 80, "nodePort": 70000},
        {"name": "same", "port": 81},
        {"name": "same", "port": 82},
        {"name": "same", "port": 83, "protocol": "UDP"},
    ]}));
    let prefix = "Service ns/svc: spec.ports";
    assert_eq!(
        reasons(&converted),
        [
            format!("{prefix}[0].port: 0 is not a port number (1-65535)"),
            format!("{prefix}[1].port: 65536 is not a port number (1-65535)"),
            format!("{prefix}[2].port: 99999999999 is not a port number (1-65535)"),
            format!("{prefix}[3].port: -1 is not a port number (1-65535)"),
            format!("{prefix}[4].name: \"Bad Name\\n-j ACCEPT\" is not a DNS name"),
            format!("{prefix}[5].protocol: \"tcp\" is not TCP, UDP or SCTP"),
            format!("{prefix}[6].nodePort: 70000 is not a port number (1-65535)"),
            format!(
                "{prefix}[8]: repeats the name \"same\" and protocol of an earlier port, which it replaces"
            ),
        ]
    );
    let fact = converted.fact.unwrap();
    let ports: Vec<_> = fact
        .ports
        .iter()
        .map(|p| (&*p.name, p.port, p.node_port))
        .collect();
    assert_eq!(
        ports,
        [("node", 80, None), ("same", 82, None), ("same", 83, None)]
    );
}

#[test]
fn names_that_could_break_rules_are_refused() {
    for (namespace, name) in [
        ("", "a"),
        ("ns", ""),
        ("ns", "a b"),
        ("n/s", "a"),
        ("ns", "a\"\nCOMMIT"),
        ("ns", "A"),
    ] {
        let object =
            json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": "10.0.0.1"}});
        let Ok(Object::Service(object)) = Object::from_value(Shape::Service, &object) else {
            unreachable!()
        };
        let converted = convert::service(&object, &Interner::default());
        assert_eq!(
            (converted.fact, converted.skipped.len()),
            (None, 1),
            "{namespace}/{name}"
        );
        assert!(!converted.skipped[0].to_string().contains('\n'));
    }
}

#[test]
fn external_ips() {
    let converted = with(json!({"externalIPs": [
        "203.0.113.1", "", "  ", "2001:db8::7", "203.0.113.1", "nonsense", " 203.0.113.2", "127.0.0.1", "224.0.0.1",
        "169.254.1.1", "203.0.113.0003",
    ]}));
    assert_eq!(
        texts(&converted.fact.as_ref().unwrap().external_ips),
        ["203.0.113.1", "2001:db8::7", "203.0.113.3"]
    );
    let fields: Vec<_> = converted
        .skipped
        .iter()
        .map(|skipped| skipped.object.clone())
        .collect();
    assert_eq!(
        fields,
        [5, 6, 7, 8, 9].map(|index| format!("Service ns/svc: spec.externalIPs[{index}]"))
    );
}

#[test]
fn load_balancer_ips() {
    let spec =
        json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "loadBalancerIP": "10.1.2.3", "ports": []});
    let ingress = |entries: Value| service(spec.clone(), json!({"loadBalancer": {"ingress": entries}}));
    for (entries, expected) in [
        (json!([{"ip": "10.1.2.4"}]), vec!["10.1.2.4"]),
        (json!([{"ip": "10.1.2.4", "ipMode": "VIP"}]), vec!["10.1.2.4"]),
        (json!([{"ip": "10.1.2.4", "ipMode": "Proxy"}]), vec![]),
        (json!([{"hostname": "lb.example"}]), vec![]),
        (
            json!([{"ip": "10.1.2.4"}, {"ip": "2001:db8::4"}, {"ip": "10.1.2.4"}]),
            vec!["10.1.2.4", "2001:db8::4"],
        ),
        (Value::Null, vec![]),
    ] {
        assert_eq!(
            texts(&good(ingress(entries.clone())).load_balancer_ips),
            expected,
            "{entries}"
        );
    }
    let converted = ingress(json!([{"ip": "x"}, {"ip": "10.1.2.4", "ipMode": "Later"}, {"ip": "10.1.2.5"}]));
    assert_eq!(
        reasons(&converted),
        [
            r#"Service ns/svc: status.loadBalancer.ingress[0].ip: "x" is not an IP address"#,
            r#"Service ns/svc: status.loadBalancer.ingress[1].ipMode: "Later" is not VIP or Proxy"#,
        ]
    );
    assert_eq!(texts(&converted.fact.unwrap().load_balancer_ips), ["10.1.2.5"]);
    // Addresses count whatever the type.
    let status = json!({"loadBalancer": {"ingress": [{"ip": "10.1.2.4"}]}});
    let fact = good(service(json!({"clusterIP": "10.0.0.1"}), status));
    assert_eq!(fact.load_balancer_ips.len(), 1);
}

#[test]
fn source_ranges() {
    let converted = with(json!({"loadBalancerSourceRanges": [
        " 1.2.3.4/28", "1.2.3.4/28 ", "", "2001:db8::1/64", "0.0.0.0/0", "nonsense", "203.0.113.000/025",
    ]}));
    let fact = converted.fact.as_ref().unwrap();
    let expected = ["1.2.3.0/28", "2001:db8::/64", "0.0.0.0/0", "203.0.113.0/25"];
    assert_eq!(texts(&fact.source_ranges), expected);
    let reason = r#"spec.loadBalancerSourceRanges[5]: "nonsense" is not a network such as 10.0.0.0/8"#;
    assert_eq!(reasons(&converted), [format!("Service ns/svc: {reason}")]);
}

#[test]
fn policies() {
    use TrafficPolicy::{Cluster, Local};
    for (spec, internal, external) in [
        (json!({}), Cluster, Cluster),
        (json!({"internalTrafficPolicy": "Local"}), Local, Cluster),
        (
            json!({"externalTrafficPolicy": "Cluster", "type": "NodePort"}),
            Cluster,
            Cluster,
        ),
        (
            json!({"externalTrafficPolicy": "Local", "type": "NodePort"}),
            Cluster,
            Local,
        ),
        // Not meant to be reached from outside: no policy for it.
        (json!({"externalTrafficPolicy": "Local"}), Cluster, Cluster),
        (
            json!({"externalTrafficPolicy": "Local", "externalIPs": ["2001:db8::7"]}),
            Cluster,
            Local,
        ),
    ] {
        let fact = good(with(spec.clone()));
        assert_eq!(
            (fact.internal_policy, fact.external_policy),
            (internal, external),
            "{spec}"
        );
    }
    let converted =
        with(json!({"internalTrafficPolicy": "local", "externalTrafficPolicy": "Nope", "type": "Other"}));
    assert_eq!(
        reasons(&converted),
        [
            r#"Service ns/svc: spec.type: "Other" is not a known type; served as ClusterIP"#,
            r#"Service ns/svc: spec.externalTrafficPolicy: "Nope" is not Cluster or Local; served as Cluster"#,
            r#"Service ns/svc: spec.internalTrafficPolicy: "local" is not Cluster or Local; served as Cluster"#,
        ]
    );
    assert!(converted.fact.is_some());
}

#[test]
fn session_affinity() {
    let config = |seconds: Value| {
        json!({"sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    for (spec, expected) in [
        (json!({}), None),
        (json!({"sessionAffinity": "None"}), None),
        (json!({"sessionAffinity": "ClientIP"}), Some(10800)),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": null}),
            Some(10800),
        ),
        (config(Value::Null), Some(10800)),
        (config(json!(1)), Some(1)),
        (config(json!(86400)), Some(86400)),
    ] {
        assert_eq!(
            good(with(spec.clone())).affinity,
            expected.map(Duration::from_secs),
            "{spec}"
        );
    }
    for bad in [0, -1, 86401] {
        let converted = with(config(json!(bad)));
        assert_eq!(converted.skipped.len(), 1);
        assert_eq!(converted.fact.unwrap().affinity, Some(Duration::from_secs(10800)));
    }
    assert_eq!(
        with(json!({"sessionAffinity": "Cookie"})).fact.unwrap().affinity,
        None
    );
}

#[test]
fn health_check_node_ports() {
    let local = |kind: &str, port: Value| json!({"type": kind, "externalTrafficPolicy": "Local", "healthCheckNodePort": port});
    for (spec, expected) in [
        (local("LoadBalancer", json!(345)), Some(345)),
        (local("NodePort", json!(345)), None),
        (local("ClusterIP", json!(345)), None),
        (json!({"type": "LoadBalancer", "healthCheckNodePort": 345}), None),
    ] {
        assert_eq!(
            good(with(spec.clone())).health_check_node_port,
            expected,
            "{spec}"
        );
    }
    for bad in [json!(0), Value::Null, json!(70000), json!(-5)] {
        let converted = with(local("LoadBalancer", bad));
        assert_eq!(converted.skipped.len(), 1);
        assert_eq!(converted.fact.unwrap().health_check_node_port, None);
    }
}

#[test]
fn annotations_of_ours() {
    let annotated = |annotations: Value| {
        let object = json!({"metadata": {"namespace": "ns", "name": "svc", "annotations": annotations},
            "spec": {"clusterIP": "10.0.0.1"}});
        match Object::from_value(Shape::Service, &object).unwrap() {
            Object::Service(object) => convert::service(&object, &Interner::default()),
            other => unreachable!("{other:?}"),
        }
    };
    let options = good(annotated(json!({
        "ferry.dev/scheduler": "mh", "ferry.dev/drain-deadline": "1m30s", "ferry.dev/proxy-protocol": "v2",
        "kubectl.kubernetes.io/last-applied-configuration": "{}", "other": {"not": "a string"},
    })))
    .options;
    assert_eq!(options.scheduler.as_deref(), Some("mh"));
    assert_eq!(
        (options.drain, options.proxy_protocol),
        (Some(Duration::from_secs(90)), true)
    );
    assert_eq!(good(annotated(Value::Null)).options, Default::default());

    let converted = annotated(json!({
        "ferry.dev/scheduler": "round robin", "ferry.dev/drain-deadline": "soon", "ferry.dev/proxy-protocol": "v1",
        "ferry.dev/sheduler": "rr",
    }));
    assert_eq!(converted.skipped.len(), 4, "{:?}", reasons(&converted));
    assert_eq!(converted.fact.unwrap().options, Default::default());
}

fn slice(object: Value) -> Converted<Option<EndpointSlice>> {
    match Object::from_value(Shape::EndpointSlice, &object).expect("readable") {
        Object::EndpointSlice(object) => convert::slice(&object, &Interner::default()),
        other => unreachable!("{other:?}"),
    }
}

/// A slice of a service with these ports and endpoints.
fn slice_with(ports: Value, endpoints: Value) -> Converted<Option<EndpointSlice>> {
    slice(json!({
        "metadata": {"namespace": "ns", "name": "svc-1", "labels": {"kubernetes.io/service-name": "svc"}},
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    }))
}

#[test]
fn slices() {
    let fact = good(slice_with(
        json!([{"name": "p", "port": 80, "protocol": "UDP"}, {"name": "", "port": 443}]),
        json!([
            {"addresses": ["10.1.0.1", "10.1.0.99"], "nodeName": "n", "zone": "ignored"},
            {"addresses": ["10.1.0.01"], "conditions": {"ready": false, "serving": true, "terminating": true},
             "hints": {"forZones": [{"name": "b"}, {"name": "a"}, {"name": "b"}], "forNodes": [{"name": "x"}]}},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": null, "serving": false}, "hints": {"forZones": null}},
        ]),
    ));
    assert_eq!(
        (fact.name.as_str(), fact.service.as_str(), fact.family),
        ("ns/svc-1", "ns/svc", Family::V4)
    );
    let ports: Vec<_> = fact
        .ports
        .iter()
        .map(|port| (&*port.name, port.protocol, port.port))
        .collect();
    assert_eq!(ports, [("p", Protocol::Udp, 80), ("", Protocol::Tcp, 443)]);
    let endpoints: Vec<_> = fact
        .endpoints
        .iter()
        .map(|e| {
            (
                e.address.to_string(),
                e.node.as_deref(),
                e.ready,
                e.serving,
                e.terminating,
            )
        })
        .collect();
    assert_eq!(
        endpoints,
        [
            ("10.1.0.1".into(), Some("n"), true, true, false),
            ("10.1.0.1".into(), None, false, true, true),
            ("10.1.0.3".into(), None, true, false, false),
        ]
    );
    assert_eq!(texts(fact.endpoints[1].zone_hints()), ["a", "b"]);
    assert_eq!(texts(fact.endpoints[1].node_hints()), ["x"]);
    assert!(fact.endpoints[2].hints.is_none());
}

#[test]
fn slices_that_belong_nowhere() {
    let meta = |labels: Value| json!({"namespace": "ns", "name": "s", "labels": labels});
    let ours = json!({"kubernetes.io/service-name": "svc"});
    for (object, field) in [
        (
            json!({"metadata": meta(Value::Null), "addressType": "IPv4"}),
            "label kubernetes.io/service-name: is empty",
        ),
        (
            json!({"metadata": meta(json!({"kubernetes.io/service-name": ""})), "addressType": "IPv4"}),
            "label kubernetes.io/service-name: is empty",
        ),
        (
            json!({"metadata": meta(ours.clone()), "addressType": "FQDN"}),
            "addressType: \"FQDN\" is not IPv4 or IPv6",
        ),
        (
            json!({"metadata": meta(ours.clone())}),
            "addressType: \"\" is not IPv4 or IPv6",
        ),
        (
            json!({"metadata": {"namespace": "ns", "labels": ours}, "addressType": "IPv4"}),
            "metadata.name: is empty",
        ),
        (json!({}), "metadata.namespace: is empty"),
    ] {
        let converted = slice(object);
        assert_eq!(converted.fact, None);
        assert!(
            reasons(&converted)[0].ends_with(field),
            "{:?}",
            reasons(&converted)
        );
    }
}

#[test]
fn bad_parts_of_slices_do_not_spoil_good_ones() {
    let converted = slice_with(
        json!([
            {"port": 80}, {"name": "a"}, {"name": "b", "port": 0}, {"name": "c", "port": 70000},
            {"name": "d", "port": 80, "protocol": "ICMP"}, {"name": null, "port": 1}, {"name": "good", "port": 80},
        ]),
        json!([
            {"addresses": []}, {"addresses": null}, {}, {"addresses": ["x"]}, {"addresses": ["2001:db8::1"]},
            {"addresses": ["0.0.0.0"]}, {"addresses": ["10.1.0.1"]},
        ]),
    );
    let fields: Vec<_> = converted
        .skipped
        .iter()
        .map(|s| s.object.trim_start_matches("EndpointSlice ns/svc-1: ").to_owned())
        .collect();
    let mut expected: Vec<String> = (0..6)
        .map(|index| format!("endpoints[{index}].addresses"))
        .collect();
    expected.extend(
        ["name", "port", "port", "port", "protocol", "name"]
            .iter()
            .enumerate()
            .map(|(n, f)| format!("ports[{n}].{f}")),
    );
    assert_eq!(fields, expected);
    let fact = converted.fact.unwrap();
    assert_eq!((fact.ports.len(), fact.endpoints.len()), (1, 1));
}

#[test]
fn a_thousand_bad_endpoints_are_one_problem() {
    let endpoints: Vec<Value> = (0..1000)
        .map(|n| json!({"addresses": [format!("bad-{n}")]}))
        .collect();
    let converted = slice_with(json!([]), Value::Array(endpoints));
    assert_eq!(converted.skipped.len(), 17);
    assert_eq!(
        converted.skipped[16].reason,
        "984 more parts are not served either"
    );
}

#[test]
fn endpoints_become_slices() {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "svc"},
        "subsets": [
            {"addresses": [{"ip": "10.1.0.1", "nodeName": "n"}, {"ip": "2001:db8::1"}],
             "notReadyAddresses": [{"ip": "10.1.0.2"}, {"ip": "bad"}], "ports": [{"port": 80}, {"name": "x", "port": 81, "protocol": "UDP"}]},
            {"addresses": null, "ports": [{"port": 1}]},
            {"addresses": [{"ip": "10.1.0.3"}], "ports": null},
        ],
    });
    let Ok(Object::Endpoints(object)) = Object::from_value(Shape::Endpoints, &object) else {
        unreachable!()
    };
    let converted = convert::endpoints(&object, &Interner::default());
    assert_eq!(
        reasons(&converted),
        [
            r#"Endpoints ns/svc: subsets[0].notReadyAddresses[1].ip: "bad" is not an IP address that can be reached"#
        ]
    );
    let slices: Vec<_> = converted
        .fact
        .iter()
        .map(|slice| {
            (
                slice.name.as_str(),
                slice.family,
                slice.ports.len(),
                slice.endpoints.len(),
            )
        })
        .collect();
    assert_eq!(
        slices,
        [
            ("ns/svc#0", Family::V4, 2, 2),
            ("ns/svc#1", Family::V6, 2, 1),
            ("ns/svc#2", Family::V4, 0, 1)
        ]
    );
    let first = &converted.fact[0];
    assert_eq!(
        (&*first.ports[0].name, first.ports[0].protocol),
        ("", Protocol::Tcp)
    );
    let flags: Vec<_> = first
        .endpoints
        .iter()
        .map(|e| (e.ready, e.serving, e.terminating))
        .collect();
    assert_eq!(flags, [(true, true, false), (false, false, false)]);
    assert_eq!(first.endpoints[0].node.as_deref(), Some("n"));
}

#[test]
fn trigger_times() {
    for (text, expected) in [
        ("2026-11-15T17:00:00Z", Some(Duration::from_secs(1_794_762_000))),
        (
            "2026-11-15T18:00:00.5+01:00",
            Some(Duration::from_millis(1_794_762_000_500)),
        ),
        ("yesterday", None),
        ("", None),
    ] {
        let object =
            json!({"metadata": {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": text}}});
        let object = Object::from_value(Shape::EndpointSlice, &object).unwrap();
        let time = convert::trigger_time(object.meta());
        assert_eq!(
            time,
            expected.map(|after| SystemTime::UNIX_EPOCH + after),
            "{text}"
        );
    }
}

fn node(object: Value) -> Converted<Node> {
    match Object::from_value(Shape::Node, &object).expect("readable") {
        Object::Node(object) => convert::node(&object, &Interner::default()),
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn nodes() {
    let address = |kind: &str, address: &str| json!({"type": kind, "address": address});
    for (addresses, expected) in [
        (json!([]), vec![]),
        (json!([address("Hostname", "n")]), vec![]),
        (
            json!([
                address("ExternalIP", "192.0.2.1"),
                address("InternalIP", "10.0.0.1")
            ]),
            vec!["10.0.0.1"],
        ),
        (
            json!([
                address("InternalIP", "10.0.0.1"),
                address("InternalIP", "10.0.0.2"),
                address("InternalIP", "fd00::1")
            ]),
            vec!["10.0.0.1", "fd00::1"],
        ),
        (
            json!([
                address("InternalIP", "fd00::1"),
                address("ExternalIP", "192.0.2.1")
            ]),
            vec!["fd00::1", "192.0.2.1"],
        ),
    ] {
        let converted = node(json!({"status": {"addresses": addresses}}));
        assert_eq!(texts(&converted.fact.addresses), expected, "{addresses}");
    }
    let converted =
        node(json!({"metadata": {"name": "n"}, "status": {"addresses": [address("InternalIP", "x")]}}));
    assert_eq!(
        reasons(&converted),
        [r#"Node n: status.addresses[0].address: "x" is not an IP address"#]
    );

    let both =
        node(json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24", "fd00:2::/64"]}})).fact;
    assert_eq!(texts(&both.pod_cidrs), ["10.2.0.0/24", "fd00:2::/64"]);
    assert_eq!(
        texts(&node(json!({"spec": {"podCIDR": "10.2.0.0/24"}})).fact.pod_cidrs),
        ["10.2.0.0/24"]
    );

    let zone = |labels: Value| {
        node(json!({"metadata": {"labels": labels}}))
            .fact
            .zone
            .map(|zone| zone.to_string())
    };
    assert_eq!(
        zone(json!({"topology.kubernetes.io/zone": "a", "x": "y"})),
        Some("a".into())
    );
    assert_eq!(
        zone(json!({"topology.kubernetes.io/zone": ""})),
        Some(String::new())
    );
    assert_eq!(zone(json!({})), None);

    let eligible = |object: Value| node(object).fact.eligible;
    assert!(eligible(
        json!({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}})
    ));
    assert!(!eligible(
        json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}})
    ));
    assert!(!eligible(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    ));
}

#[test]
fn service_cidrs() {
    let object =
        json!({"metadata": {"name": "k"}, "spec": {"cidrs": ["10.96.0.1/12", "fd00:10:96::/112", "bad"]}});
    let Ok(Object::ServiceCidr(object)) = Object::from_value(Shape::ServiceCidr, &object) else {
        unreachable!()
    };
    let converted = convert::service_cidr(&object);
    assert_eq!(texts(&converted.fact), ["10.96.0.0/12", "fd00:10:96::/112"]);
    assert_eq!(
        reasons(&converted),
        [r#"ServiceCIDR k: spec.cidrs[2]: "bad" is not a network"#]
    );
}

#[test]
fn objects_that_cannot_be_read_still_tell_whose_they_are() {
    let read = |json: &str| Object::from_json(Shape::Service, json.as_bytes()).unwrap_err();
    let unreadable =
        read(r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"spec":{"ports":{"a":1}}}"#);
    let identity = unreadable.identity.expect("known");
    assert_eq!(
        (
            identity.namespace.as_str(),
            identity.name.as_str(),
            identity.resource_version.as_str()
        ),
        ("n", "a", "7")
    );
    assert!(
        unreadable.reason.starts_with("spec.ports: invalid type: map"),
        "{}",
        unreadable.reason
    );
    assert_eq!(read("{").identity, None);
    assert_eq!(read("[]x").identity, None);
    assert_eq!(read("null").identity, None);
}
