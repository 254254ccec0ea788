//! IPVS messages: numbers of commands and attributes, and how values are laid out in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{PERSISTENT, SCHEDULER_FLAGS, Server, ServerState, Service, Stats, Timeouts, Virtual};
use crate::netlink::{Attrs, Error, Message, Socket, Writer, attrs};

const VERSION: u8 = 1;
pub(super) const NEW_SERVICE: u8 = 1;
pub(super) const SET_SERVICE: u8 = 2;
pub(super) const DEL_SERVICE: u8 = 3;
pub(super) const GET_SERVICE: u8 = 4;
pub(super) const NEW_SERVER: u8 = 5;
pub(super) const SET_SERVER: u8 = 6;
pub(super) const DEL_SERVER: u8 = 7;
pub(super) const GET_SERVER: u8 = 8;
const SET_CONFIG: u8 = 12;
pub(super) const GET_CONFIG: u8 = 13;
pub(super) const FLUSH: u8 = 17;

const SERVICE: u16 = 1;
pub(super) const SERVER: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

mod service {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const FIREWALL_MARK: u16 = 5;
    pub(super) const SCHEDULER: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
    pub(super) const STATS: u16 = 10;
    pub(super) const STATS64: u16 = 12;
}

mod server {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const METHOD: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const UPPER: u16 = 5;
    pub(super) const LOWER: u16 = 6;
    pub(super) const ACTIVE: u16 = 7;
    pub(super) const INACTIVE: u16 = 8;
    pub(super) const PERSISTENT: u16 = 9;
    pub(super) const STATS: u16 = 10;
    pub(super) const FAMILY: u16 = 11;
    pub(super) const STATS64: u16 = 12;
}

mod stats {
    pub(super) const CONNECTIONS: u16 = 1;
    pub(super) const BYTES_IN: u16 = 4;
    pub(super) const BYTES_OUT: u16 = 5;
}

/// Forward by translating addresses ("masquerading").
const METHOD_NAT: u32 = 0;

/// The number that generic netlink gave the family `IPVS`.
pub(super) fn resolve(socket: &mut Socket) -> Result<u16, Error> {
    const CONTROL: u16 = 16;
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let mut id = None;
    let body = |w: &mut Writer| {
        w.raw(&[GET_FAMILY, 1, 0, 0]);
        w.str(FAMILY_NAME, "IPVS");
    };
    let each = |message: Message<'_>| id = attrs(message.after(4)).get(FAMILY_ID).and_then(|attr| attr.u16());
    socket.get(CONTROL, 0, body, each)?;
    id.ok_or(Error::Malformed)
}

pub(super) fn command(w: &mut Writer, number: u8) {
    w.raw(&[number, VERSION, 0, 0]);
}

/// A command about a virtual server that its identity is enough for.
pub(super) fn get_service(w: &mut Writer, number: u8, at: Virtual) {
    command(w, number);
    w.nest(SERVICE, |w| put_identity(w, at));
}

pub(super) fn put_service(w: &mut Writer, number: u8, wanted: &Service) {
    command(w, number);
    w.nest(SERVICE, |w| {
        put_identity(w, wanted.at);
        w.str(service::SCHEDULER, &wanted.scheduler);
        let persistent = if wanted.persistence.is_some() {
            PERSISTENT
        } else {
            0
        };
        let flags = (wanted.flags & SCHEDULER_FLAGS) | persistent;
        w.attr_of(service::FLAGS, &[&flags.to_ne_bytes(), &u32::MAX.to_ne_bytes()]);
        w.u32(service::TIMEOUT, wanted.persistence.map_or(0, seconds));
        // How much of a client's address decides its persistence: all of it.
        w.u32(
            service::NETMASK,
            if wanted.at.address.is_ipv4() {
                u32::MAX
            } else {
                128
            },
        );
    });
}

pub(super) fn put_server(w: &mut Writer, number: u8, at: Virtual, wanted: &Server) {
    command(w, number);
    w.nest(SERVICE, |w| put_identity(w, at));
    w.nest(SERVER, |w| {
        put_address(w, server::ADDRESS, wanted.at.ip());
        w.be16(server::PORT, wanted.at.port());
        w.u16(server::FAMILY, family(wanted.at.ip()));
        if number != DEL_SERVER {
            w.u32(server::METHOD, METHOD_NAT);
            w.u32(server::WEIGHT, wanted.weight);
            w.u32(server::UPPER, 0);
            w.u32(server::LOWER, 0);
        }
    });
}

fn put_identity(w: &mut Writer, at: Virtual) {
    w.u16(service::FAMILY, family(at.address));
    w.u16(service::PROTOCOL, u16::from(at.protocol));
    put_address(w, service::ADDRESS, at.address);
    w.be16(service::PORT, at.port);
}

/// Addresses have room for the longer family, whichever they are of.
fn put_address(w: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => w.attr_of(kind, &[&address.octets(), &[0; 12]]),
        IpAddr::V6(address) => w.attr(kind, &address.octets()),
    }
}

fn family(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u16,
        IpAddr::V6(_) => libc::AF_INET6 as u16,
    }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

pub(super) fn parse_service(message: &Message<'_>) -> Option<Service> {
    let all = attrs(message.after(4)).get(SERVICE)?.nested();
    if all
        .get(service::FIREWALL_MARK)
        .and_then(|attr| attr.u32())
        .is_some_and(|mark| mark != 0)
    {
        return None;
    }
    let ipv6 = all.get(service::FAMILY)?.u16()? == libc::AF_INET6 as u16;
    let flags = all.get(service::FLAGS)?.u32()?;
    let timeout = all
        .get(service::TIMEOUT)
        .and_then(|attr| attr.u32())
        .unwrap_or_default();
    Some(Service {
        at: Virtual {
            address: parse_address(&all, service::ADDRESS, ipv6)?,
            port: all.get(service::PORT)?.be16()?,
            protocol: u8::try_from(all.get(service::PROTOCOL)?.u16()?).ok()?,
        },
        scheduler: all.get(service::SCHEDULER)?.str()?.to_owned(),
        flags: flags & SCHEDULER_FLAGS,
        persistence: (flags & PERSISTENT != 0).then(|| Duration::from_secs(timeout.into())),
    })
}

pub(super) fn parse_service_stats(message: &Message<'_>) -> Option<Stats> {
    let all = attrs(message.after(4)).get(SERVICE)?.nested();
    Some(parse_stats(&all, service::STATS64, service::STATS))
}

/// A kernel too old to tell the family of a real server has real servers of the virtual server's family only.
pub(super) fn parse_server(all: &Attrs<'_>, service_is_ipv6: bool) -> Option<ServerState> {
    let told = all.get(server::FAMILY).and_then(|attr| attr.u16());
    let ipv6 = told.map_or(service_is_ipv6, |family| family == libc::AF_INET6 as u16);
    let number = |kind| all.get(kind).and_then(|attr| attr.u32()).unwrap_or_default();
    let address = parse_address(all, server::ADDRESS, ipv6)?;
    Some(ServerState {
        server: Server {
            at: SocketAddr::new(address, all.get(server::PORT)?.be16()?),
            weight: all.get(server::WEIGHT)?.u32()?,
        },
        active: number(server::ACTIVE),
        inactive: number(server::INACTIVE),
        persistent: number(server::PERSISTENT),
        stats: parse_stats(all, server::STATS64, server::STATS),
    })
}

/// Counters have 64 bits in one attribute and, for old readers and from old kernels, fewer in another.
fn parse_stats(all: &Attrs<'_>, wide: u16, narrow: u16) -> Stats {
    let inside = all
        .get(wide)
        .or_else(|| all.get(narrow))
        .map(|attr| attr.nested());
    let number = |kind| {
        let attr = inside.as_ref()?.get(kind)?;
        attr.u64().or_else(|| attr.u32().map(u64::from))
    };
    Stats {
        connections: number(stats::CONNECTIONS).unwrap_or_default(),
        bytes_in: number(stats::BYTES_IN).unwrap_or_default(),
        bytes_out: number(stats::BYTES_OUT).unwrap_or_default(),
    }
}

fn parse_address(all: &Attrs<'_>, kind: u16, ipv6: bool) -> Option<IpAddr> {
    let bytes = all.get(kind)?.data;
    if ipv6 {
        Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?).into())
    } else {
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into())
    }
}

pub(super) fn parse_timeouts(message: &Message<'_>) -> Timeouts {
    let all = attrs(message.after(4));
    let value = |kind| {
        Duration::from_secs(
            all.get(kind)
                .and_then(|attr| attr.u32())
                .unwrap_or_default()
                .into(),
        )
    };
    Timeouts {
        tcp: value(TIMEOUT_TCP),
        tcp_fin: value(TIMEOUT_TCP_FIN),
        udp: value(TIMEOUT_UDP),
    }
}

pub(super) fn put_timeouts(w: &mut Writer, timeouts: &Timeouts) {
    command(w, SET_CONFIG);
    w.u32(TIMEOUT_TCP, seconds(timeouts.tcp));
    w.u32(TIMEOUT_TCP_FIN, seconds(timeouts.tcp_fin));
    w.u32(TIMEOUT_UDP, seconds(timeouts.udp));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn read_back(build: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.message(30, 1, 1, build);
        writer.bytes().to_vec()
    }

    #[test]
    fn a_service_reads_back() {
        for address in ["10.96.0.1", "fd00::1"] {
            let wanted = Service {
                at: Virtual {
                    address: address.parse().unwrap(),
                    port: 443,
                    protocol: 6,
                },
                scheduler: "mh".to_owned(),
                flags: super::super::SCHED2,
                persistence: Some(Duration::from_secs(10800)),
            };
            let bytes = read_back(|w| put_service(w, NEW_SERVICE, &wanted));
            let message = messages(&bytes).next().unwrap();
            assert_eq!(parse_service(&message), Some(wanted));
        }
    }

    #[test]
    fn a_server_reads_back_and_may_lack_its_family() {
        let at = Virtual {
            address: "fd00::1".parse().unwrap(),
            port: 80,
            protocol: 17,
        };
        let wanted = Server {
            at: "[fd00::2]:8080".parse().unwrap(),
            weight: 1,
        };
        let bytes = read_back(|w| put_server(w, NEW_SERVER, at, &wanted));
        let message = messages(&bytes).next().unwrap();
        let all = attrs(message.after(4)).get(SERVER).unwrap().nested();
        for service_is_ipv6 in [true, false] {
            assert_eq!(parse_server(&all, service_is_ipv6).unwrap().server, wanted);
        }
        let mut old = Writer::new();
        put_address(&mut old, server::ADDRESS, "10.0.0.1".parse().unwrap());
        old.be16(server::PORT, 80);
        old.u32(server::WEIGHT, 0);
        let state = parse_server(&attrs(old.bytes()), false).unwrap();
        assert_eq!(
            state.server,
            Server {
                at: "10.0.0.1:80".parse().unwrap(),
                weight: 0
            }
        );
    }
}
