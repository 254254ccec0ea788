//! What sets hold: the five types that service proxies use, their entries, and how both are written.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::netlink::{Attrs, Writer};

/// Marks an attribute as being in network byte order; the kernel insists on it.
pub(super) const NET_ORDER: u16 = 0x4000;
const IP: u16 = 1;
pub(super) const PORT: u16 = 4;
pub(super) const PORT_TO: u16 = 5;
const PROTO: u16 = 7;
pub(super) const HASH_SIZE: u16 = 18;
pub(super) const MAX_ELEMENTS: u16 = 19;
const IP2: u16 = 20;
const CIDR2: u16 = 21;
const IPV4: u16 = 1;
const IPV6: u16 = 2;

/// The type of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `hash:ip`
    HashIp,
    /// `hash:ip,port`
    HashIpPort,
    /// `hash:ip,port,ip`
    HashIpPortIp,
    /// `hash:ip,port,net`
    HashIpPortNet,
    /// `bitmap:port`, all ports
    BitmapPort,
}

impl Kind {
    /// The kernel's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    pub(super) const ALL: [Self; 5] = [
        Self::HashIp,
        Self::HashIpPort,
        Self::HashIpPortIp,
        Self::HashIpPortNet,
        Self::BitmapPort,
    ];

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// An element of a set. Protocols are IP protocol numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// Of `hash:ip`.
    Ip(IpAddr),
    /// Of `hash:ip,port`.
    IpPort(IpAddr, u8, u16),
    /// Of `hash:ip,port,ip`.
    IpPortIp(IpAddr, u8, u16, IpAddr),
    /// Of `hash:ip,port,net`.
    IpPortNet(IpAddr, u8, u16, IpNet),
    /// Of `bitmap:port`.
    Port(u16),
}

impl Entry {
    pub(super) fn write(&self, writer: &mut Writer) {
        let ip_port = |writer: &mut Writer, ip: IpAddr, protocol: u8, port: u16| {
            write_ip(writer, IP, ip);
            writer.be16(PORT | NET_ORDER, port);
            writer.u8(PROTO, protocol);
        };
        match *self {
            Self::Ip(ip) => write_ip(writer, IP, ip),
            Self::IpPort(ip, protocol, port) => ip_port(writer, ip, protocol, port),
            Self::IpPortIp(ip, protocol, port, other) => {
                ip_port(writer, ip, protocol, port);
                write_ip(writer, IP2, other);
            }
            Self::IpPortNet(ip, protocol, port, net) => {
                ip_port(writer, ip, protocol, port);
                write_ip(writer, IP2, net.network());
                writer.u8(CIDR2, net.prefix_len());
            }
            Self::Port(port) => writer.be16(PORT | NET_ORDER, port),
        }
    }

    pub(super) fn parse(kind: Kind, all: &Attrs<'_>) -> Option<Self> {
        let ip = |kind| read_ip(all, kind);
        let port = || all.get(PORT)?.be16();
        let protocol = || all.get(PROTO)?.u8();
        Some(match kind {
            Kind::HashIp => Self::Ip(ip(IP)?),
            Kind::HashIpPort => Self::IpPort(ip(IP)?, protocol()?, port()?),
            Kind::HashIpPortIp => Self::IpPortIp(ip(IP)?, protocol()?, port()?, ip(IP2)?),
            Kind::HashIpPortNet => {
                let base = ip(IP2)?;
                let whole = IpNet::from(base).max_prefix_len();
                let prefix = all.get(CIDR2).and_then(|attr| attr.u8()).unwrap_or(whole);
                Self::IpPortNet(ip(IP)?, protocol()?, port()?, IpNet::new(base, prefix).ok()?)
            }
            Kind::BitmapPort => Self::Port(port()?),
        })
    }
}

fn write_ip(writer: &mut Writer, kind: u16, ip: IpAddr) {
    writer.nest(kind, |writer| match ip {
        IpAddr::V4(ip) => writer.attr(IPV4 | NET_ORDER, &ip.octets()),
        IpAddr::V6(ip) => writer.attr(IPV6 | NET_ORDER, &ip.octets()),
    });
}

fn read_ip(all: &Attrs<'_>, kind: u16) -> Option<IpAddr> {
    let inside = all.get(kind)?.nested();
    inside.get(IPV4).or_else(|| inside.get(IPV6))?.address()
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::IpPort(ip, protocol, port) => write!(f, "{ip},{}:{port}", Name(*protocol)),
            Self::IpPortIp(ip, protocol, port, other) => write!(f, "{ip},{}:{port},{other}", Name(*protocol)),
            Self::IpPortNet(ip, protocol, port, net) if net.prefix_len() == net.max_prefix_len() => {
                write!(f, "{ip},{}:{port},{}", Name(*protocol), net.addr())
            }
            Self::IpPortNet(ip, protocol, port, net) => write!(f, "{ip},{}:{port},{net}", Name(*protocol)),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

struct Name(u8);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::from(self.0) {
            libc::IPPROTO_TCP => f.write_str("tcp"),
            libc::IPPROTO_UDP => f.write_str("udp"),
            libc::IPPROTO_SCTP => f.write_str("sctp"),
            other => write!(f, "{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attrs;

    #[test]
    fn entries_read_back_and_print_as_ipset_prints_them() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let cases = [
            (Kind::HashIp, Entry::Ip(v6), "fd00::1"),
            (Kind::HashIpPort, Entry::IpPort(v4, 6, 80), "10.0.0.1,tcp:80"),
            (Kind::HashIpPort, Entry::IpPort(v6, 17, 53), "fd00::1,udp:53"),
            (
                Kind::HashIpPortIp,
                Entry::IpPortIp(v4, 132, 1, v4),
                "10.0.0.1,sctp:1,10.0.0.1",
            ),
            (
                Kind::HashIpPortNet,
                Entry::IpPortNet(v4, 6, 1, net("10.0.0.0/8")),
                "10.0.0.1,tcp:1,10.0.0.0/8",
            ),
            (
                Kind::HashIpPortNet,
                Entry::IpPortNet(v4, 6, 1, net("1.2.3.4/32")),
                "10.0.0.1,tcp:1,1.2.3.4",
            ),
            (Kind::BitmapPort, Entry::Port(30080), "30080"),
        ];
        for (kind, entry, text) in cases {
            let mut writer = Writer::new();
            entry.write(&mut writer);
            assert_eq!(Entry::parse(kind, &attrs(writer.bytes())), Some(entry));
            assert_eq!(entry.to_string(), text);
        }
    }
}
