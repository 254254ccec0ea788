//! What is no service and no slice.

use ferry_model::Node;
use ferry_sources::convert::{self, Converted, Interner};
use ferry_sources::objects::{Object, Shape};
use serde_json::{Value, json};

use crate::{reasons, texts};

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

/// Traffic to a service network that no Service answers is refused, so it had better not be the whole world.
#[test]
fn service_cidrs_that_are_too_large_are_left_out() {
    let cidrs = [
        "0.0.0.0/0",
        "::/0",
        "128.0.0.0/1",
        "2000::/3",
        "10.0.0.0/8",
        "fd00::/8",
    ];
    let object = json!({"metadata": {"name": "k"}, "spec": {"cidrs": cidrs}});
    let Ok(Object::ServiceCidr(object)) = Object::from_value(Shape::ServiceCidr, &object) else {
        unreachable!()
    };
    let converted = convert::service_cidr(&object);
    assert_eq!(texts(&converted.fact), ["10.0.0.0/8", "fd00::/8"]);
    assert_eq!(converted.skipped.len(), 4);
    assert_eq!(
        reasons(&converted)[0],
        "ServiceCIDR k: spec.cidrs: 0.0.0.0/0 is too large: more than services live there"
    );
}

/// An object may repeat itself in what is wrong with it, but not at any length.
#[test]
fn reasons_are_short_whatever_the_object_says() {
    let long = "x".repeat(3 << 20);
    let object = json!({"metadata": {"name": "a", "annotations": {"ferry.dev/".to_owned() + &long: long}},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": long}]}});
    let unreadable = Object::from_value(Shape::Service, &object).unwrap_err();
    assert!(unreadable.reason.len() < 400, "{} bytes", unreadable.reason.len());
    let object = json!({"metadata": {"name": "a", "annotations": {"ferry.dev/".to_owned() + &long: long}},
        "spec": {"clusterIP": long, "type": long, "ports": [{"port": 1, "name": long}]}});
    let Ok(Object::Service(object)) = Object::from_value(Shape::Service, &object) else {
        unreachable!()
    };
    for line in reasons(&convert::service(&object, &Interner::default())) {
        assert!(line.len() < 700, "{} bytes", line.len());
    }
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
