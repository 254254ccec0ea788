//! How the kernel would send to an address: the route that it takes, and the neighbour that it hands packets to.

use std::net::IpAddr;

use super::{Error, Route};
use crate::netlink::{self, Message, Writer, attrs};

const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
/// Of routes and of neighbours.
const HEADER: usize = 12;
const DESTINATION: u16 = 1;
const OUTPUT_INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const TYPE_AT: usize = 7;
const TYPE_LOCAL: u8 = 2;

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Number of the interface that packets leave by.
    pub interface: u32,
    /// Who forwards them, if the address is not on that interface's own network.
    pub gateway: Option<IpAddr>,
    /// The address is this node's own.
    pub local: bool,
}

/// What is known of a neighbour's link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Nothing was sent there lately, so nothing is known.
    Unknown,
    /// It answered, or needs no asking.
    Resolved,
    /// It was asked and has not answered yet.
    Asked,
    /// It does not answer.
    Failed,
}

impl Route {
    /// The way to an address; the kernel's reason where there is none.
    pub fn way(&mut self, to: IpAddr) -> Result<Result<Way, std::io::Error>, Error> {
        let mut found = None;
        let asked = self.socket.get(
            GET_ROUTE,
            0,
            |w| {
                let mut header = [0; HEADER];
                header[0] = family(to);
                header[1] = if to.is_ipv4() { 32 } else { 128 };
                w.raw(&header);
                address(w, to);
            },
            |message| found = found.take().or_else(|| parse_way(&message)),
        );
        let refused = |errno| Ok(Err(std::io::Error::from_raw_os_error(errno)));
        match (asked, found) {
            (Ok(()), Some(way)) => Ok(Ok(way)),
            (Ok(()), None) => refused(libc::ENETUNREACH),
            // A route that says so, or none at all.
            (Err(netlink::Error::Refused(refusal)), _) => refused(refusal.errno),
            (Err(source), _) => Err(Error::List {
                what: "routes",
                source,
            }),
        }
    }

    /// What is known of a neighbour on an interface.
    pub fn neighbour(&mut self, interface: u32, of: IpAddr) -> Result<Neighbour, Error> {
        let mut found = Neighbour::Unknown;
        let asked = self.socket.get(
            GET_NEIGHBOUR,
            0,
            |w| {
                let mut header = [0; HEADER];
                header[0] = family(of);
                header[4..8].copy_from_slice(&interface.to_ne_bytes());
                w.raw(&header);
                address(w, of);
            },
            |message| found = parse_neighbour(&message).unwrap_or(found),
        );
        match asked {
            // Kernels before 5.0 do not answer for one neighbour alone.
            Ok(()) | Err(netlink::Error::Refused(_)) => Ok(found),
            Err(source) => Err(Error::List {
                what: "neighbours",
                source,
            }),
        }
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn address(w: &mut Writer, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => w.attr(DESTINATION, &v4.octets()),
        IpAddr::V6(v6) => w.attr(DESTINATION, &v6.octets()),
    }
}

fn parse_way(message: &Message<'_>) -> Option<Way> {
    if message.kind != NEW_ROUTE {
        return None;
    }
    let all = attrs(message.after(HEADER));
    Some(Way {
        interface: all.get(OUTPUT_INTERFACE)?.u32()?,
        gateway: all.get(GATEWAY).and_then(|gateway| gateway.address()),
        local: message.payload.get(TYPE_AT) == Some(&TYPE_LOCAL),
    })
}

fn parse_neighbour(message: &Message<'_>) -> Option<Neighbour> {
    if message.kind != NEW_NEIGHBOUR {
        return None;
    }
    const INCOMPLETE: u16 = 0x01;
    const FAILED: u16 = 0x20;
    let state = u16::from_ne_bytes(message.payload.get(8..10)?.try_into().ok()?);
    Some(match state {
        0 => Neighbour::Unknown,
        _ if state & FAILED != 0 => Neighbour::Failed,
        _ if state & INCOMPLETE != 0 => Neighbour::Asked,
        _ => Neighbour::Resolved,
    })
}

pub(super) fn read_any(message: &Message<'_>) {
    let _ = (parse_way(message), parse_neighbour(message));
}
