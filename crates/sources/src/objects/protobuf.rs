//! The same objects in protobuf. The numbers are those of Kubernetes' `generated.proto` files.

use super::annotations::{Annotations, Key};
use super::wire::{Malformed, Message, Value};
use super::{
    Address, AffinityConfig, ClientIp, Conditions, EndpointAddress, EndpointPort, EndpointSlice, Endpoints,
    HeaderMeta, Hint, Hints, Ingress, Labels, LoadBalancer, Meta, Node, NodeSpec, NodeStatus, Service,
    ServiceCidr, ServiceCidrSpec, ServicePort, ServiceSpec, ServiceStatus, SliceEndpoint, Subset, Taint,
};

/// Reads an object that consists of its metadata, and what else a function knows about its fields.
macro_rules! message {
    ($name:ident, $self:ident, $value:ident, { $($number:literal => $read:expr,)* }) => {
        impl<'a> Message<'a> for $name {
            fn field(&mut self, number: u32, $value: Value<'a>) -> Result<(), Malformed> {
                let $self = self;
                match number {
                    $($number => $read,)*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

message!(Service, it, value, {
    1 => it.metadata.merge(value.bytes()?)?,
    2 => it.spec.merge(value.bytes()?)?,
    3 => it.status.merge(value.bytes()?)?,
});

message!(ServiceSpec, it, value, {
    1 => ServicePort::read_onto(&mut it.ports, value)?,
    3 => it.cluster_ip = value.text()?,
    4 => it.kind = value.text()?,
    5 => it.external_ips.push(value.text()?),
    7 => it.session_affinity = value.text()?,
    9 => it.load_balancer_source_ranges.push(value.text()?),
    11 => it.external_traffic_policy = value.text()?,
    12 => it.health_check_node_port = value.int32()?,
    14 => it.session_affinity_config.merge(value.bytes()?)?,
    18 => it.cluster_ips.push(value.text()?),
    19 => it.ip_families.push(value.text()?),
    22 => it.internal_traffic_policy = value.text()?,
});

message!(ServicePort, it, value, {
    1 => it.name = value.text()?,
    2 => it.protocol = value.text()?,
    3 => it.port = value.int32()?,
    5 => it.node_port = value.int32()?,
});

message!(AffinityConfig, it, value, {
    1 => it.client_ip.merge(value.bytes()?)?,
});

message!(ClientIp, it, value, {
    1 => it.timeout_seconds = Some(value.int32()?),
});

message!(ServiceStatus, it, value, {
    1 => it.load_balancer.merge(value.bytes()?)?,
});

message!(LoadBalancer, it, value, {
    1 => Ingress::read_onto(&mut it.ingress, value)?,
});

message!(Ingress, it, value, {
    1 => it.ip = value.text()?,
    3 => it.ip_mode = Some(value.text()?),
});

message!(EndpointSlice, it, value, {
    1 => it.metadata.merge(value.bytes()?)?,
    2 => SliceEndpoint::read_onto(&mut it.endpoints, value)?,
    3 => it.ports.push(SlicePort::read(value.bytes()?)?.0),
    4 => it.address_type = value.text()?,
});

message!(SliceEndpoint, it, value, {
    1 => it.addresses.push(value.text()?),
    2 => it.conditions.merge(value.bytes()?)?,
    6 => it.node_name = Some(value.text()?),
    8 => it.hints.merge(value.bytes()?)?,
});

message!(Conditions, it, value, {
    1 => it.ready = Some(value.flag()?),
    2 => it.serving = Some(value.flag()?),
    3 => it.terminating = Some(value.flag()?),
});

message!(Hints, it, value, {
    1 => Hint::read_onto(&mut it.for_zones, value)?,
    2 => Hint::read_onto(&mut it.for_nodes, value)?,
});

message!(Hint, it, value, {
    1 => it.name = value.text()?,
});

/// A port of a slice, whose fields have other numbers than those of a port in a subset.
#[derive(Default)]
struct SlicePort(EndpointPort);

message!(SlicePort, it, value, {
    1 => it.0.name = Some(value.text()?),
    2 => it.0.protocol = Some(value.text()?),
    3 => it.0.port = Some(value.int32()?),
});

message!(Endpoints, it, value, {
    1 => it.metadata.merge(value.bytes()?)?,
    2 => Subset::read_onto(&mut it.subsets, value)?,
});

message!(Subset, it, value, {
    1 => EndpointAddress::read_onto(&mut it.addresses, value)?,
    2 => EndpointAddress::read_onto(&mut it.not_ready_addresses, value)?,
    3 => EndpointPort::read_onto(&mut it.ports, value)?,
});

message!(EndpointAddress, it, value, {
    1 => it.ip = value.text()?,
    4 => it.node_name = Some(value.text()?),
});

message!(EndpointPort, it, value, {
    1 => it.name = Some(value.text()?),
    2 => it.port = Some(value.int32()?),
    3 => it.protocol = Some(value.text()?),
});

message!(Node, it, value, {
    1 => it.metadata.merge(value.bytes()?)?,
    2 => it.spec.merge(value.bytes()?)?,
    3 => it.status.merge(value.bytes()?)?,
});

message!(NodeSpec, it, value, {
    1 => it.pod_cidr = value.text()?,
    5 => Taint::read_onto(&mut it.taints, value)?,
    7 => it.pod_cidrs.push(value.text()?),
});

message!(Taint, it, value, {
    1 => it.key = value.text()?,
});

message!(NodeStatus, it, value, {
    5 => Address::read_onto(&mut it.addresses, value)?,
});

message!(Address, it, value, {
    1 => it.kind = value.text()?,
    2 => it.address = value.text()?,
});

message!(ServiceCidr, it, value, {
    1 => it.metadata.merge(value.bytes()?)?,
    2 => it.spec.merge(value.bytes()?)?,
});

message!(ServiceCidrSpec, it, value, {
    1 => it.cidrs.push(value.text()?),
});

message!(Meta, it, value, {
    1 => it.name = value.text()?,
    3 => it.namespace = value.text()?,
    6 => it.resource_version = value.text()?,
    8 => it.created = Time::read(value.bytes()?)?.0,
    9 => it.deleted = Time::read(value.bytes()?)?.0.is_some(),
    11 => it.labels.add(Entry::read(value.bytes()?)?)?,
    12 => it.annotations.add(Entry::read(value.bytes()?)?)?,
});

/// Seconds since the epoch; the zero time of Go has no fields.
#[derive(Default)]
struct Time(Option<i64>);

message!(Time, it, value, {
    1 => it.0 = Some(value.int64()?),
});

/// An entry of a map from text to text.
#[derive(Default)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: Option<Value<'a>>,
}

impl<'a> Message<'a> for Entry<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.key = value.bytes()?,
            2 => self.value = Some(value),
            _ => {}
        }
        Ok(())
    }
}

impl Entry<'_> {
    pub(crate) fn text(&self) -> Result<String, Malformed> {
        self.value.map_or(Ok(String::new()), Value::text)
    }
}

impl Labels {
    fn add(&mut self, entry: Entry<'_>) -> Result<(), Malformed> {
        let kept = match entry.key {
            b"kubernetes.io/service-name" => &mut self.service_name,
            b"service.kubernetes.io/headless" => &mut self.headless,
            b"service.kubernetes.io/service-proxy-name" => &mut self.service_proxy_name,
            b"endpointslice.kubernetes.io/managed-by" => &mut self.managed_by,
            b"topology.kubernetes.io/zone" => &mut self.zone,
            _ => return Ok(()),
        };
        *kept = Some(entry.text()?);
        Ok(())
    }
}

impl Annotations {
    fn add(&mut self, entry: Entry<'_>) -> Result<(), Malformed> {
        match Key::of(&String::from_utf8_lossy(entry.key)) {
            Key::TriggerTime => self.trigger_time = Some(entry.text()?),
            Key::Ours(key) => self.ours.push((key, entry.text()?)),
            Key::Other => {}
        }
        Ok(())
    }
}

/// Whose object it is: every kind has its metadata first.
#[derive(Default)]
pub(crate) struct Identity(pub(crate) HeaderMeta);

impl<'a> Message<'a> for Identity {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        if number == 1 {
            self.0.merge_beginning(value.bytes()?);
        }
        Ok(())
    }
}

message!(HeaderMeta, it, value, {
    1 => it.name = value.text()?,
    3 => it.namespace = value.text()?,
    6 => it.resource_version = value.text()?,
});
