//! EndpointSlices and Endpoints.

use std::time::{Duration, SystemTime};

use ferry_model::{EndpointSlice, Family, Protocol};
use ferry_sources::convert::{self, Converted, Interner};
use ferry_sources::objects::{Object, Shape};
use serde_json::{Value, json};

use crate::{good, reasons, texts};

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
        .map(|skipped| {
            assert_eq!(skipped.object.to_string(), "EndpointSlice ns/svc-1");
            skipped.part.clone().unwrap_or_default()
        })
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

/// What the API server refuses for endpoints: traffic that is sent there stays on the node, or harms it.
#[test]
fn special_addresses_are_no_endpoints() {
    let refused = |addresses: &[&str], family: &str| {
        let endpoints: Vec<Value> = addresses.iter().map(|a| json!({"addresses": [a]})).collect();
        let converted = slice(json!({
            "metadata": {"namespace": "ns", "name": "svc-1", "labels": {"kubernetes.io/service-name": "svc"}},
            "addressType": family, "ports": [], "endpoints": endpoints,
        }));
        assert!(converted.fact.as_ref().unwrap().endpoints.is_empty());
        let subsets: Vec<Value> = addresses
            .iter()
            .map(|a| json!({"addresses": [{"ip": a}]}))
            .collect();
        let object = json!({"metadata": {"namespace": "ns", "name": "svc"}, "subsets": subsets});
        let Ok(Object::Endpoints(object)) = Object::from_value(Shape::Endpoints, &object) else {
            unreachable!()
        };
        assert!(convert::endpoints(&object, &Interner::default()).fact.is_empty());
        reasons(&converted)
    };
    let v4 = [
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.1.1.1",
        "0.0.0.0",
    ];
    let v6 = ["::1", "fe80::1", "ff02::1", "::"];
    for (addresses, family) in [(&v4[..], "IPv4"), (&v6[..], "IPv6")] {
        let expected: Vec<String> = addresses
            .iter()
            .enumerate()
            .map(|(n, a)| {
                format!("EndpointSlice ns/svc-1: endpoints[{n}].addresses: {a} cannot be an endpoint")
            })
            .collect();
        assert_eq!(refused(addresses, family), expected);
    }
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
        [r#"Endpoints ns/svc: subsets[0].notReadyAddresses[1].ip: "bad" is not an IP address"#]
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
