//! The messages of ctnetlink.

use std::net::{IpAddr, SocketAddr};

use super::{Counted, Family, Filter, Flow, FlowEvent};
use crate::netlink::{Attrs, Message, Writer};

const SUBSYSTEM: u16 = 1 << 8;
pub(super) const GET: u16 = SUBSYSTEM | 1;
pub(super) const DELETE: u16 = SUBSYSTEM | 2;
const NEW: u16 = SUBSYSTEM;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const COUNTERS_ORIGINAL: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
const COUNTER_PACKETS: u16 = 1;
const COUNTER_BYTES: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const FILTER_SOURCE: u32 = 1 << 0;
const FILTER_DESTINATION: u32 = 1 << 1;
const FILTER_PROTOCOL: u32 = 1 << 3;
const FILTER_SOURCE_PORT: u32 = 1 << 4;
const FILTER_DESTINATION_PORT: u32 = 1 << 5;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUMBER: u16 = 1;
const PROTO_SOURCE_PORT: u16 = 2;
const PROTO_DESTINATION_PORT: u16 = 3;

/// What is known of one direction of a flow.
#[derive(Clone, Copy, Default)]
struct Tuple {
    protocol: u8,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
}

impl Tuple {
    fn between(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            protocol,
            source: Some(source.ip()),
            destination: Some(destination.ip()),
            source_port: Some(source.port()),
            destination_port: Some(destination.port()),
        }
    }

    fn write(&self, w: &mut Writer, kind: u16) {
        w.nest(kind, |w| {
            w.nest(TUPLE_IP, |w| {
                write_address(w, 0, self.source);
                write_address(w, 1, self.destination);
            });
            w.nest(TUPLE_PROTO, |w| {
                w.u8(PROTO_NUMBER, self.protocol);
                if let Some(port) = self.source_port {
                    w.be16(PROTO_SOURCE_PORT, port);
                }
                if let Some(port) = self.destination_port {
                    w.be16(PROTO_DESTINATION_PORT, port);
                }
            });
        });
    }

    fn read(attrs: Attrs<'_>) -> Option<Self> {
        let ip = attrs.get(TUPLE_IP)?.nested();
        let proto = attrs.get(TUPLE_PROTO)?.nested();
        let address = |which: u16| ip.get(1 + which).or_else(|| ip.get(3 + which))?.address();
        Some(Self {
            protocol: proto.get(PROTO_NUMBER)?.u8()?,
            source: address(0),
            destination: address(1),
            source_port: proto.get(PROTO_SOURCE_PORT).and_then(|port| port.be16()),
            destination_port: proto.get(PROTO_DESTINATION_PORT).and_then(|port| port.be16()),
        })
    }

    fn source(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.source?, self.source_port?))
    }

    fn destination(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.destination?, self.destination_port?))
    }

    /// The filter bits of the fields that are known.
    fn filter_bits(&self) -> u32 {
        let bit = |known: bool, bit: u32| if known { bit } else { 0 };
        FILTER_PROTOCOL
            | bit(self.source.is_some(), FILTER_SOURCE)
            | bit(self.destination.is_some(), FILTER_DESTINATION)
            | bit(self.source_port.is_some(), FILTER_SOURCE_PORT)
            | bit(self.destination_port.is_some(), FILTER_DESTINATION_PORT)
    }
}

/// Attributes of addresses: source and destination for IPv4, then for IPv6.
fn write_address(w: &mut Writer, which: u16, address: Option<IpAddr>) {
    match address {
        Some(IpAddr::V4(address)) => w.attr(1 + which, &address.octets()),
        Some(IpAddr::V6(address)) => w.attr(3 + which, &address.octets()),
        None => {}
    }
}

/// IPv6 addresses are left to us: Linux (seen in 6.18) lets through exactly the flows whose address differs.
fn filterable(address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(IpAddr::is_ipv4)
}

/// The body of a dump request.
pub(super) fn request(w: &mut Writer, filter: &Filter, kernel_filter: bool) {
    w.netfilter_header(filter.family.number(), 0);
    if !kernel_filter {
        return;
    }
    let original = Tuple {
        protocol: filter.protocol,
        destination: filterable(filter.destination),
        destination_port: filter.destination_port,
        ..Tuple::default()
    };
    original.write(w, TUPLE_ORIGINAL);
    let reply = filter.responder.map(|responder| Tuple {
        protocol: filter.protocol,
        source: filterable(Some(responder.ip())),
        source_port: Some(responder.port()),
        ..Tuple::default()
    });
    if let Some(reply) = &reply {
        reply.write(w, TUPLE_REPLY);
    }
    w.nest(FILTER, |w| {
        w.u32(FILTER_ORIGINAL, original.filter_bits());
        w.u32(FILTER_REPLY, reply.map_or(0, |reply| reply.filter_bits()));
    });
}

/// The body of a request to delete one flow: its identity too, lest a successor with the same addresses goes.
pub(super) fn delete(w: &mut Writer, family: Family, flow: &Flow) {
    w.netfilter_header(family.number(), 0);
    Tuple::between(flow.protocol, flow.client, flow.destination).write(w, TUPLE_ORIGINAL);
    w.be32(ID, flow.id);
    if let Some(zone) = flow.zone {
        w.be16(ZONE, zone);
    }
}

/// A flow of a protocol that has ports; others are none of our business.
pub(super) fn flow(message: &Message<'_>) -> Option<Flow> {
    let all = message.netfilter_attrs();
    let original = Tuple::read(all.get(TUPLE_ORIGINAL)?.nested())?;
    let reply = Tuple::read(all.get(TUPLE_REPLY)?.nested())?;
    Some(Flow {
        protocol: original.protocol,
        client: original.source()?,
        destination: original.destination()?,
        responder: reply.source()?,
        answered_to: reply.destination()?,
        id: all.get(ID)?.be32()?,
        zone: all.get(ZONE).and_then(|zone| zone.be16()),
    })
}

/// What was counted of a flow; none where the kernel does not count.
pub(super) fn counted(message: &Message<'_>) -> Option<Counted> {
    let all = message.netfilter_attrs();
    let of = |direction: u16| {
        let counters = all.get(direction)?.nested();
        let packets = counters.get(COUNTER_PACKETS)?.be64()?;
        Some((packets, counters.get(COUNTER_BYTES)?.be64()?))
    };
    let (packets_to, bytes_to) = of(COUNTERS_ORIGINAL)?;
    let (packets_back, bytes_back) = of(COUNTERS_REPLY)?;
    Some(Counted {
        packets_to,
        bytes_to,
        packets_back,
        bytes_back,
    })
}

/// A flow that began or ended.
pub(super) fn event(message: &Message<'_>) -> Option<FlowEvent> {
    let flow = flow(message)?;
    match message.kind {
        NEW => Some(FlowEvent::Began(flow)),
        DELETE => Some(FlowEvent::Ended(flow, counted(message))),
        _ => None,
    }
}
