//! Services.

use std::time::Duration;

use ferry_model::{Protocol, Service, ServiceType, TrafficPolicy};
use ferry_sources::convert::{self, Converted, Interner};
use ferry_sources::objects::{Object, Shape};
use serde_json::{Value, json};

use crate::{good, reasons, texts};

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
        .map(|skipped| {
            format!(
                "{}: {}",
                skipped.object,
                skipped.part.as_deref().unwrap_or_default()
            )
        })
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
    // To take these over would take ports of the node itself, or what nobody may have.
    let special = [
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "0.0.0.0",
        "::1",
        "fe80::1",
        "ff02::1",
    ];
    let converted = ingress(special.iter().map(|ip| json!({"ip": ip})).collect());
    assert_eq!(converted.skipped.len(), special.len());
    assert!(converted.fact.unwrap().load_balancer_ips.is_empty());
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
