//! Objects as the real server writes them in protobuf: by the field numbers of Kubernetes' `generated.proto` files,
//! and with its habit of writing a plain field even when it is empty.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::{Map, Value};

use super::kinds::Kind;

pub(super) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Did the client ask for protobuf before all else?
pub(super) fn wanted(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    first
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim() == CONTENT_TYPE)
}

/// The message of an object, without what says its kind. Fails for a kind, a field or a value that there is no number
/// for: the real server could not hold it either.
pub fn encode(object: &Value) -> Result<Vec<u8>> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let fields = match (text("apiVersion"), text("kind")) {
        ("v1", "Service") => SERVICE,
        ("v1", "Endpoints") => ENDPOINTS,
        ("v1", "Node") => NODE,
        ("v1", "Status") => STATUS,
        ("discovery.k8s.io/v1", "EndpointSlice") => SLICE,
        ("networking.k8s.io/v1", "ServiceCIDR") => SERVICE_CIDR,
        (version, kind) => bail!("no protobuf for {version} {kind}"),
    };
    let Some(object) = object.as_object() else {
        bail!("not an object")
    };
    let mut object = object.clone();
    object.remove("apiVersion");
    object.remove("kind");
    message(fields, &object)
}

/// Whether there is a form of objects of this kind.
pub(super) fn knows(kind: &Kind) -> bool {
    let empty = serde_json::json!({"apiVersion": kind.api_version(), "kind": kind.kind});
    encode(&empty).is_ok()
}

/// An object by itself: with its kind, and what the real server puts before it.
pub fn wrap(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let mut kind_of = Vec::new();
    bytes(&mut kind_of, 1, api_version.as_bytes());
    bytes(&mut kind_of, 2, kind.as_bytes());
    let mut wrapped = b"k8s\0".to_vec();
    bytes(&mut wrapped, 1, &kind_of);
    bytes(&mut wrapped, 2, object);
    bytes(&mut wrapped, 3, b"");
    bytes(&mut wrapped, 4, b"");
    wrapped
}

/// One event of a watch, with its length before it.
pub fn event(what: &str, wrapped: &[u8]) -> Bytes {
    let mut raw = Vec::with_capacity(wrapped.len() + 8);
    bytes(&mut raw, 1, wrapped);
    let mut event = Vec::with_capacity(raw.len() + 32);
    bytes(&mut event, 1, what.as_bytes());
    bytes(&mut event, 2, &raw);
    let mut frame = (event.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&event);
    frame.into()
}

/// A list of these items, without what says its kind.
pub fn list(metadata: &Value, items: &[&[u8]]) -> Result<Vec<u8>> {
    let metadata = metadata.as_object().context("no metadata")?;
    let mut list = Vec::with_capacity(items.iter().map(|item| item.len() + 6).sum::<usize>() + 64);
    bytes(&mut list, 1, &message(LIST_META, metadata)?);
    for item in items {
        bytes(&mut list, 2, item);
    }
    Ok(list)
}

type Field = (&'static str, u32, Type);

/// What a field is; a plain one is written even when it is not given.
#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Flag,
    Plain(&'static [Field]),
    Time,
    GivenText,
    GivenNumber,
    GivenFlag,
    Given(&'static [Field]),
    GivenTime,
    Texts,
    Many(&'static [Field]),
    Map,
    /// A number or a text.
    Either,
    /// Accepted and left out: nothing that a proxy could look at.
    LeftOut,
}

use Type::{
    Either, Flag, Given, GivenFlag, GivenNumber, GivenText, GivenTime, LeftOut, Many, Number, Plain, Text,
    Texts, Time,
};

const OBJECT_META: &[Field] = &[
    ("name", 1, Text),
    ("generateName", 2, Text),
    ("namespace", 3, Text),
    ("selfLink", 4, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Number),
    ("creationTimestamp", 8, Time),
    ("deletionTimestamp", 9, GivenTime),
    ("deletionGracePeriodSeconds", 10, GivenNumber),
    ("labels", 11, Type::Map),
    ("annotations", 12, Type::Map),
    ("ownerReferences", 13, Many(OWNER)),
    ("finalizers", 14, Texts),
    ("managedFields", 17, LeftOut),
];
const OWNER: &[Field] = &[
    ("kind", 1, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("controller", 6, GivenFlag),
    ("blockOwnerDeletion", 7, GivenFlag),
];
const LIST_META: &[Field] = &[
    ("selfLink", 1, Text),
    ("resourceVersion", 2, Text),
    ("continue", 3, Text),
    ("remainingItemCount", 4, GivenNumber),
];
const STATUS: &[Field] = &[
    ("metadata", 1, Plain(LIST_META)),
    ("status", 2, Text),
    ("message", 3, Text),
    ("reason", 4, Text),
    ("details", 5, LeftOut),
    ("code", 6, Number),
];
const REFERENCE: &[Field] = &[
    ("kind", 1, Text),
    ("namespace", 2, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("resourceVersion", 6, Text),
    ("fieldPath", 7, Text),
];
const SERVICE: &[Field] = &[
    ("metadata", 1, Plain(OBJECT_META)),
    ("spec", 2, Plain(SERVICE_SPEC)),
    ("status", 3, Plain(SERVICE_STATUS)),
];
const SERVICE_SPEC: &[Field] = &[
    ("ports", 1, Many(SERVICE_PORT)),
    ("selector", 2, Type::Map),
    ("clusterIP", 3, Text),
    ("type", 4, Text),
    ("externalIPs", 5, Texts),
    ("sessionAffinity", 7, Text),
    ("loadBalancerIP", 8, Text),
    ("loadBalancerSourceRanges", 9, Texts),
    ("externalName", 10, Text),
    ("externalTrafficPolicy", 11, Text),
    ("healthCheckNodePort", 12, Number),
    ("publishNotReadyAddresses", 13, Flag),
    ("sessionAffinityConfig", 14, Given(AFFINITY)),
    ("ipFamilyPolicy", 17, GivenText),
    ("clusterIPs", 18, Texts),
    ("ipFamilies", 19, Texts),
    ("allocateLoadBalancerNodePorts", 20, GivenFlag),
    ("loadBalancerClass", 21, GivenText),
    ("internalTrafficPolicy", 22, GivenText),
    ("trafficDistribution", 23, GivenText),
];
const SERVICE_PORT: &[Field] = &[
    ("name", 1, Text),
    ("protocol", 2, Text),
    ("port", 3, Number),
    ("targetPort", 4, Either),
    ("nodePort", 5, Number),
    ("appProtocol", 6, GivenText),
];
const AFFINITY: &[Field] = &[("clientIP", 1, Given(&[("timeoutSeconds", 1, GivenNumber)]))];
const SERVICE_STATUS: &[Field] = &[
    ("loadBalancer", 1, Plain(&[("ingress", 1, Many(INGRESS))])),
    ("conditions", 2, LeftOut),
];
const INGRESS: &[Field] = &[
    ("ip", 1, Text),
    ("hostname", 2, Text),
    ("ipMode", 3, GivenText),
    ("ports", 4, LeftOut),
];
const SLICE: &[Field] = &[
    ("metadata", 1, Plain(OBJECT_META)),
    ("endpoints", 2, Many(SLICE_ENDPOINT)),
    ("ports", 3, Many(SLICE_PORT)),
    ("addressType", 4, Text),
];
const SLICE_ENDPOINT: &[Field] = &[
    ("addresses", 1, Texts),
    ("conditions", 2, Plain(CONDITIONS)),
    ("hostname", 3, GivenText),
    ("targetRef", 4, Given(REFERENCE)),
    ("deprecatedTopology", 5, Type::Map),
    ("nodeName", 6, GivenText),
    ("zone", 7, GivenText),
    ("hints", 8, Given(HINTS)),
];
const CONDITIONS: &[Field] = &[
    ("ready", 1, GivenFlag),
    ("serving", 2, GivenFlag),
    ("terminating", 3, GivenFlag),
];
const HINTS: &[Field] = &[
    ("forZones", 1, Many(&[("name", 1, Text)])),
    ("forNodes", 2, Many(&[("name", 1, Text)])),
];
const SLICE_PORT: &[Field] = &[
    ("name", 1, GivenText),
    ("protocol", 2, GivenText),
    ("port", 3, GivenNumber),
    ("appProtocol", 4, GivenText),
];
const ENDPOINTS: &[Field] = &[("metadata", 1, Plain(OBJECT_META)), ("subsets", 2, Many(SUBSET))];
const SUBSET: &[Field] = &[
    ("addresses", 1, Many(ENDPOINT_ADDRESS)),
    ("notReadyAddresses", 2, Many(ENDPOINT_ADDRESS)),
    ("ports", 3, Many(ENDPOINT_PORT)),
];
const ENDPOINT_ADDRESS: &[Field] = &[
    ("ip", 1, Text),
    ("targetRef", 2, Given(REFERENCE)),
    ("hostname", 3, Text),
    ("nodeName", 4, GivenText),
];
const ENDPOINT_PORT: &[Field] = &[
    ("name", 1, Text),
    ("port", 2, Number),
    ("protocol", 3, Text),
    ("appProtocol", 4, GivenText),
];
const NODE: &[Field] = &[
    ("metadata", 1, Plain(OBJECT_META)),
    ("spec", 2, Plain(NODE_SPEC)),
    ("status", 3, Plain(NODE_STATUS)),
];
const NODE_SPEC: &[Field] = &[
    ("podCIDR", 1, Text),
    ("externalID", 2, Text),
    ("providerID", 3, Text),
    ("unschedulable", 4, Flag),
    ("taints", 5, Many(TAINT)),
    ("podCIDRs", 7, Texts),
];
const TAINT: &[Field] = &[
    ("key", 1, Text),
    ("value", 2, Text),
    ("effect", 3, Text),
    ("timeAdded", 4, GivenTime),
];
const NODE_STATUS: &[Field] = &[
    ("capacity", 1, LeftOut),
    ("allocatable", 2, LeftOut),
    ("phase", 3, Text),
    ("conditions", 4, LeftOut),
    ("addresses", 5, Many(&[("type", 1, Text), ("address", 2, Text)])),
    ("nodeInfo", 7, LeftOut),
];
const SERVICE_CIDR: &[Field] = &[
    ("metadata", 1, Plain(OBJECT_META)),
    ("spec", 2, Plain(&[("cidrs", 1, Texts)])),
    ("status", 3, LeftOut),
];

fn message(fields: &[Field], object: &Map<String, Value>) -> Result<Vec<u8>> {
    if let Some(unknown) = object
        .keys()
        .find(|key| fields.iter().all(|(name, ..)| name != key))
    {
        bail!("no number for the field {unknown}");
    }
    let mut out = Vec::new();
    for (name, number, kind) in fields {
        let value = object.get(*name).filter(|value| !value.is_null());
        field(&mut out, *number, *kind, value).with_context(|| (*name).to_owned())?;
    }
    Ok(out)
}

fn field(out: &mut Vec<u8>, number: u32, kind: Type, value: Option<&Value>) -> Result<()> {
    let Some(value) = value else {
        match kind {
            Text | Time => bytes(out, number, b""),
            Number | Flag => varint_field(out, number, 0),
            Plain(fields) => bytes(out, number, &message(fields, &Map::new())?),
            Either => bytes(out, number, &either(&Value::from(0))?),
            _ => {}
        }
        return Ok(());
    };
    match kind {
        Text | GivenText => bytes(out, number, text(value)?.as_bytes()),
        Number | GivenNumber => {
            let value = value.as_i64().context("not a number")?;
            varint_field(
                out,
                number,
                i64::from(i32::try_from(value).context("not 32 bits")?) as u64,
            );
        }
        Flag | GivenFlag => varint_field(out, number, value.as_bool().context("not a bool")?.into()),
        Plain(fields) | Given(fields) => {
            let value = value.as_object().context("not an object")?;
            bytes(out, number, &message(fields, value)?);
        }
        Time | GivenTime => bytes(out, number, &time(text(value)?)?),
        Texts => {
            for value in value.as_array().context("not a list")? {
                bytes(out, number, text(value)?.as_bytes());
            }
        }
        Many(fields) => {
            for value in value.as_array().context("not a list")? {
                let value = value.as_object().context("not an object")?;
                bytes(out, number, &message(fields, value)?);
            }
        }
        Type::Map => {
            for (key, value) in value.as_object().context("not a map")? {
                let mut entry = Vec::new();
                bytes(&mut entry, 1, key.as_bytes());
                bytes(&mut entry, 2, text(value)?.as_bytes());
                bytes(out, number, &entry);
            }
        }
        Either => bytes(out, number, &either(value)?),
        LeftOut => {}
    }
    Ok(())
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("not a text")
}

fn time(text: &str) -> Result<Vec<u8>> {
    let time: jiff::Timestamp = text.parse()?;
    let mut out = Vec::new();
    varint_field(&mut out, 1, time.as_second() as u64);
    varint_field(&mut out, 2, 0);
    Ok(out)
}

fn either(value: &Value) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    varint_field(&mut out, 1, u64::from(value.is_string()));
    varint_field(&mut out, 2, value.as_u64().unwrap_or_default());
    bytes(&mut out, 3, value.as_str().unwrap_or_default().as_bytes());
    Ok(out)
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
