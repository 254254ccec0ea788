//! Protobuf says the same as JSON.

use ferry_lab::api::protobuf::encode;
use ferry_lab::{api, oracle};
use ferry_sources::Change;
use ferry_sources::convert::Interner;
use ferry_sources::objects::{Header, Object, Shape};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What an object means, from either form.
fn both(object: &Value) -> (Change, Change) {
    let header: Header = serde_json::from_value(object.clone()).unwrap();
    let shape = Shape::of(&header.api_version, &header.kind).unwrap();
    let from_json = Object::from_json(shape, object.to_string().as_bytes()).unwrap();
    let bytes = encode(object).unwrap_or_else(|error| panic!("{error:#}: {object:#}"));
    let from_protobuf = Object::from_protobuf(shape, &bytes).unwrap();
    let (a, b) = (from_json.meta(), from_protobuf.meta());
    assert_eq!((&a.resource_version, a), (&b.resource_version, b));
    let interner = Interner::default();
    (
        Change::of(&from_json, &interner),
        Change::of(&from_protobuf, &interner),
    )
}

fn check(object: &Value) {
    let (json, protobuf) = both(object);
    assert_eq!(json, protobuf, "{object:#}");
}

#[test]
fn the_recorded_scenarios_mean_the_same() {
    let mut count = 0;
    for scenario in oracle::scenarios().unwrap() {
        for object in scenario
            .objects
            .iter()
            .chain(scenario.steps.iter().flat_map(|step| &step.apply))
        {
            check(object);
            count += 1;
        }
    }
    assert!(count > 80, "{count} objects");
    api::default_objects().iter().for_each(check);
}

/// Byte by byte: the numbers are not ours to choose, and the lab could have made the same mistake.
#[test]
fn an_object_is_read_from_a_servers_bytes() {
    let bytes = [
        &b"\x0a*\x0a\x03web\x12\x00\x1a\x04shop2\x0178\x00B\x08\x08\x80\xf2\xd6\xca\x06\x10\x00"[..],
        b"Z\x0c\x0a\x03app\x12\x05front",
        b"\x12;\x0a\x1a\x0a\x04http\x12\x03TCP\x18P\x22\x07\x08\x00\x10\x90?\x1a\x00(\xb0\xea\x01",
        b"\x1a\x0910.96.0.1\x22\x08NodePort:\x04None`\x00h\x00",
        b"\x1a\x02\x0a\x00",
    ]
    .concat();
    let object = Object::from_protobuf(Shape::Service, &bytes).unwrap();
    let expected = json!({
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7", "labels": {"app": "front"},
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"clusterIP": "10.96.0.1", "type": "NodePort", "sessionAffinity": "None",
                 "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30000}]},
    });
    assert_eq!(object, Object::from_value(Shape::Service, &expected).unwrap());
}

#[test]
fn a_damaged_object_is_named() {
    let object = api::objects::service("web", "10.96.0.1");
    let mut bytes = encode(&object).unwrap();
    bytes.extend([0x12, 0x7f]);
    let unreadable = Object::from_protobuf(Shape::Service, &bytes).unwrap_err();
    let identity = unreadable.identity.unwrap();
    assert_eq!((&*identity.namespace, &*identity.name), ("shop", "web"));
    assert_eq!(unreadable.reason, "field 2 ends in the middle");
}

#[test]
fn long_texts_are_left_out_of_both() {
    let mut object = api::objects::service("web", "10.96.0.1");
    object["metadata"]["annotations"] = json!({"ferry.dev/scheduler": "rr", "other": "x".repeat(1 << 20)});
    object["spec"]["externalIPs"] = json!(["192.0.2.1", "y".repeat(1 << 20)]);
    let (_, protobuf) = both(&object);
    assert_eq!(protobuf.skipped.len(), 1, "{:?}", protobuf.skipped);
    assert!(
        protobuf.skipped[0]
            .to_string()
            .contains("(1048576 bytes left out)")
    );
    assert!(protobuf.skipped[0].to_string().len() < 200);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        Just(String::new()),
        Just("10.96.0.7".into()),
        Just("fd00::7".into()),
        Just("10.0.0.0/8".into()),
        Just("Local".into()),
        Just("TCP".into()),
        Just("UDP".into()),
        Just("IPv4".into()),
        Just("IPv6".into()),
        Just("VIP".into()),
        "[ü\"\\\\\u{0}-\u{1f}]{0,3}",
    ]
}

/// An object with each of these fields given or not.
fn fields(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let given: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            prop::option::of(value).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
        })
        .collect();
    given
        .prop_map(|given| Value::Object(given.into_iter().flatten().collect()))
        .boxed()
}

fn one<T: Into<Value> + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Value> {
    value.prop_map(Into::into).boxed()
}

fn many(value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    one(prop::collection::vec(value, 0..4))
}

fn texts() -> BoxedStrategy<Value> {
    many(one(text()))
}

fn number() -> BoxedStrategy<Value> {
    one(prop_oneof![0..70_000_i32, any::<i32>()])
}

fn meta() -> BoxedStrategy<Value> {
    let labels = [
        "kubernetes.io/service-name",
        "service.kubernetes.io/headless",
        "service.kubernetes.io/service-proxy-name",
        "topology.kubernetes.io/zone",
        "app",
    ];
    let annotations = [
        "endpoints.kubernetes.io/last-change-trigger-time",
        "ferry.dev/scheduler",
        "ferry.dev/unknown",
        "other",
    ];
    let map = |keys: &[&'static str]| fields(keys.iter().map(|key| (*key, one(text()))).collect());
    let time = || {
        let seconds = -1_000_000_000..4_000_000_000_i64;
        one(seconds.prop_map(|seconds| jiff::Timestamp::from_second(seconds).unwrap().to_string()))
    };
    fields(vec![
        ("name", one("[a-z]{0,3}")),
        ("namespace", one(text())),
        ("resourceVersion", one("[0-9]{0,3}")),
        ("generation", one(0..9_i32)),
        ("creationTimestamp", time()),
        ("deletionTimestamp", time()),
        ("labels", map(&labels)),
        ("annotations", map(&annotations)),
        ("finalizers", texts()),
    ])
}

fn service() -> BoxedStrategy<Value> {
    let port = fields(vec![
        ("name", one(text())),
        ("protocol", one(text())),
        ("port", number()),
        ("nodePort", number()),
        ("targetPort", one(0..9_i32)),
    ]);
    let affinity = fields(vec![("clientIP", fields(vec![("timeoutSeconds", number())]))]);
    let spec = fields(vec![
        ("clusterIP", one(text())),
        ("clusterIPs", texts()),
        (
            "type",
            one(prop_oneof![
                Just("NodePort".to_owned()),
                Just("LoadBalancer".into()),
                text()
            ]),
        ),
        ("ipFamilies", texts()),
        ("ports", many(port)),
        ("externalIPs", texts()),
        (
            "sessionAffinity",
            one(prop_oneof![Just("ClientIP".to_owned()), text()]),
        ),
        ("sessionAffinityConfig", affinity),
        ("externalTrafficPolicy", one(text())),
        ("internalTrafficPolicy", one(text())),
        ("loadBalancerSourceRanges", texts()),
        ("healthCheckNodePort", number()),
        ("selector", fields(vec![("app", one(text()))])),
    ]);
    let ingress = many(fields(vec![
        ("ip", one(text())),
        ("ipMode", one(text())),
        ("hostname", one(text())),
    ]));
    let status = fields(vec![("loadBalancer", fields(vec![("ingress", ingress)]))]);
    object("v1", "Service", vec![("spec", spec), ("status", status)])
}

fn object(
    api_version: &'static str,
    kind: &'static str,
    parts: Vec<(&'static str, BoxedStrategy<Value>)>,
) -> BoxedStrategy<Value> {
    let parts = parts.into_iter().chain([("metadata", meta())]).collect();
    let named = move |mut object: Value| {
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        object
    };
    fields(parts).prop_map(named).boxed()
}

fn slice() -> BoxedStrategy<Value> {
    let hints = || many(fields(vec![("name", one(text()))]));
    let flags = ["ready", "serving", "terminating"];
    let conditions = fields(flags.map(|name| (name, one(any::<bool>()))).to_vec());
    let endpoint = fields(vec![
        ("addresses", texts()),
        ("conditions", conditions),
        ("nodeName", one(text())),
        ("zone", one(text())),
        (
            "hints",
            fields(vec![("forZones", hints()), ("forNodes", hints())]),
        ),
    ]);
    let port = fields(vec![
        ("name", one(text())),
        ("protocol", one(text())),
        ("port", number()),
    ]);
    object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        vec![
            ("addressType", one(text())),
            ("endpoints", many(endpoint)),
            ("ports", many(port)),
        ],
    )
}

fn endpoints() -> BoxedStrategy<Value> {
    let addresses = || many(fields(vec![("ip", one(text())), ("nodeName", one(text()))]));
    let port = fields(vec![
        ("name", one(text())),
        ("protocol", one(text())),
        ("port", number()),
    ]);
    let subset = fields(vec![
        ("addresses", addresses()),
        ("notReadyAddresses", addresses()),
        ("ports", many(port)),
    ]);
    object("v1", "Endpoints", vec![("subsets", many(subset))])
}

fn node() -> BoxedStrategy<Value> {
    let address = fields(vec![
        ("type", one(prop_oneof![Just("InternalIP"), Just("ExternalIP")])),
        ("address", one(text())),
    ]);
    let taint = fields(vec![(
        "key",
        one(prop_oneof![
            Just("ToBeDeletedByClusterAutoscaler".to_owned()),
            text()
        ]),
    )]);
    let spec = fields(vec![
        ("podCIDR", one(text())),
        ("podCIDRs", texts()),
        ("taints", many(taint)),
    ]);
    let status = fields(vec![("addresses", many(address))]);
    object("v1", "Node", vec![("spec", spec), ("status", status)])
}

fn service_cidr() -> BoxedStrategy<Value> {
    let spec = fields(vec![("cidrs", texts())]);
    object("networking.k8s.io/v1", "ServiceCIDR", vec![("spec", spec)])
}

proptest! {
    #[test]
    fn any_object_means_the_same(
        object in prop_oneof![service(), slice(), endpoints(), node(), service_cidr()]
    ) {
        let (json, protobuf) = both(&object);
        prop_assert_eq!(json, protobuf);
    }
}
