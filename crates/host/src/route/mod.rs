//! Links and addresses of this node, over rtnetlink.
//! May touch the interfaces of the network namespace that the calling thread is in; adds and removes only what it is told.
//! Always holds: "already so" is success, whichever way: an address that is there, a link that is gone.

mod lookup;
mod marked;
mod monitor;
mod wiring;

pub use lookup::{Neighbour, Way};
pub use monitor::{Change, LinkMonitor, Monitor};

use std::net::IpAddr;

use crate::netlink::{self, Attrs, Bus, Message, Socket, Writer, attrs};

const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DEL_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_INFO_KIND: u16 = 1;
const ADDRESS_PEER: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const CREATE_NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// What was attempted and failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No rtnetlink socket.
    #[error("opening rtnetlink: {0}")]
    Open(#[source] netlink::Error),
    /// A list could not be read.
    #[error("listing the node's {what}: {source}")]
    List {
        /// Links or addresses.
        what: &'static str,
        /// Why.
        source: netlink::Error,
    },
    /// A link could not be made or removed.
    #[error("{verb} the {kind} interface {name}: {source}")]
    Link {
        /// What was to happen to it.
        verb: &'static str,
        /// Its kind, such as dummy.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Why.
        source: netlink::Error,
    },
    /// An interface of the wanted name exists and is something else.
    #[error("interface {name} exists and is not of kind {kind}")]
    OtherKind {
        /// Its name.
        name: String,
        /// The kind it should have.
        kind: &'static str,
    },
    /// An address could not be added or removed.
    #[error("{verb} {address} (interface {index}): {source}")]
    Address {
        /// What was to happen to it.
        verb: &'static str,
        /// The address.
        address: IpAddr,
        /// Index of the interface.
        index: u32,
        /// Why.
        source: netlink::Error,
    },
    /// A route could not be added.
    #[error("adding a route to {to}: {source}")]
    Route {
        /// Where it leads.
        to: ipnet::IpNet,
        /// Why.
        source: netlink::Error,
    },
    /// Notifications could not be subscribed to or read.
    #[error("watching the node's interfaces and addresses: {0}")]
    Watch(#[source] netlink::Error),
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind (`dummy`, `veth`); none for hardware and loopback.
    pub kind: Option<String>,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Whether it is up (administratively).
    pub up: bool,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's number.
    pub index: u32,
    /// The interface's name.
    pub interface: String,
    /// The node's own address.
    pub address: IpAddr,
    /// Length of the prefix.
    pub prefix: u8,
}

/// The door: a socket for the life of its user.
#[derive(Debug)]
pub struct Route {
    socket: Socket,
}

impl Route {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            socket: Socket::open(Bus::Route).map_err(Error::Open)?,
        })
    }

    /// All interfaces.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.socket
            .collect(GET_LINK, |w| link_header(w, 0), |message| parse_link(&message))
            .map_err(|source| Error::List {
                what: "interfaces",
                source,
            })
    }

    /// The interface of this name.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        Ok(self.links()?.into_iter().find(|link| link.name == name))
    }

    /// All addresses of both families, with the interfaces that hold them.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let links = self.links()?;
        let found = self
            .socket
            .collect(
                GET_ADDRESS,
                |w| w.raw(&[0; ADDRESS_HEADER]),
                |message| parse_address(&message),
            )
            .map_err(|source| Error::List {
                what: "addresses",
                source,
            })?;
        let name = |index| {
            links
                .iter()
                .find(|link| link.index == index)
                .map(|link| link.name.clone())
        };
        Ok(found
            .into_iter()
            .filter_map(|(index, address, prefix)| {
                Some(Address {
                    index,
                    interface: name(index)?,
                    address,
                    prefix,
                })
            })
            .collect())
    }

    /// Makes sure that a dummy interface of this name exists, and tells its number.
    pub fn ensure_dummy(&mut self, name: &str) -> Result<u32, Error> {
        const KIND: &str = "dummy";
        let create = |w: &mut Writer| {
            link_header(w, 0);
            w.str(LINK_NAME, name);
            w.nest(LINK_INFO, |w| w.str(LINK_INFO_KIND, KIND));
        };
        if let Err(source) = self.socket.request(NEW_LINK, CREATE_NEW, create)
            && !source.is_exists()
        {
            return Err(Error::Link {
                verb: "creating",
                kind: KIND,
                name: name.to_owned(),
                source,
            });
        }
        match self.link(name)? {
            Some(link) if link.kind.as_deref() == Some(KIND) => Ok(link.index),
            _ => Err(Error::OtherKind {
                name: name.to_owned(),
                kind: KIND,
            }),
        }
    }

    /// Removes a dummy interface with all its addresses. Tells whether there was one.
    pub fn remove_dummy(&mut self, name: &str) -> Result<bool, Error> {
        const KIND: &str = "dummy";
        let Some(link) = self.link(name)? else {
            return Ok(false);
        };
        if link.kind.as_deref() != Some(KIND) {
            return Err(Error::OtherKind {
                name: name.to_owned(),
                kind: KIND,
            });
        }
        match self.socket.request(DEL_LINK, 0, |w| link_header(w, link.index)) {
            Err(source) if source.errno() != Some(libc::ENODEV) => Err(Error::Link {
                verb: "removing",
                kind: KIND,
                name: name.to_owned(),
                source,
            }),
            _ => Ok(true),
        }
    }

    /// Gives an interface an address as the only one of its network (/32, /128). Tells whether it was new.
    pub fn add_address(&mut self, index: u32, address: IpAddr) -> Result<bool, Error> {
        self.add_address_with(index, address, |_| {})
    }

    fn add_address_with(
        &mut self,
        index: u32,
        address: IpAddr,
        more: impl FnOnce(&mut Writer),
    ) -> Result<bool, Error> {
        let added = self.socket.request(NEW_ADDRESS, CREATE_NEW, |w| {
            address_body(w, index, address);
            more(w);
        });
        match added {
            Ok(()) => Ok(true),
            Err(source) if source.is_exists() => Ok(false),
            Err(source) => Err(Error::Address {
                verb: "adding the address",
                address,
                index,
                source,
            }),
        }
    }

    /// Takes a /32 or /128 address from an interface. Tells whether it was there.
    pub fn remove_address(&mut self, index: u32, address: IpAddr) -> Result<bool, Error> {
        match self
            .socket
            .request(DEL_ADDRESS, 0, |w| address_body(w, index, address))
        {
            Ok(()) => Ok(true),
            Err(source) if matches!(source.errno(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Ok(false),
            Err(source) => Err(Error::Address {
                verb: "removing the address",
                address,
                index,
                source,
            }),
        }
    }
}

/// Family, type, index, flags, change mask.
fn link_header(writer: &mut Writer, index: u32) {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    writer.raw(&header);
}

/// Family, prefix, flags, scope, index; then the address.
fn address_body(writer: &mut Writer, index: u32, address: IpAddr) {
    /// No duplicate address detection: the dummy interface is down, and the address would stay tentative.
    const NO_DAD: u8 = 0x02;
    let (family, prefix, flags) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32, 0),
        IpAddr::V6(_) => (libc::AF_INET6, 128, NO_DAD),
    };
    let mut header = [0; ADDRESS_HEADER];
    header[0] = family as u8;
    header[1] = prefix;
    header[2] = flags;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    writer.raw(&header);
    match address {
        IpAddr::V4(v4) => {
            writer.attr(ADDRESS_LOCAL, &v4.octets());
            writer.attr(ADDRESS_PEER, &v4.octets());
        }
        IpAddr::V6(v6) => writer.attr(ADDRESS_LOCAL, &v6.octets()),
    }
}

fn parse_link(message: &Message<'_>) -> Option<Link> {
    if message.kind != NEW_LINK {
        return None;
    }
    let all: Attrs<'_> = attrs(message.after(LINK_HEADER));
    let flags = u32::from_ne_bytes(message.payload.get(8..12)?.try_into().ok()?);
    let kind = all
        .get(LINK_INFO)
        .and_then(|info| info.nested().get(LINK_INFO_KIND)?.str().map(str::to_owned));
    Some(Link {
        index: u32::from_ne_bytes(message.payload.get(4..8)?.try_into().ok()?),
        name: all.get(LINK_NAME)?.str()?.to_owned(),
        kind,
        loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        up: flags & libc::IFF_UP as u32 != 0,
    })
}

/// The interface's number, the node's own address (not a peer's), the length of the prefix.
fn parse_address(message: &Message<'_>) -> Option<(u32, IpAddr, u8)> {
    if message.kind != NEW_ADDRESS && message.kind != DEL_ADDRESS {
        return None;
    }
    let all = attrs(message.after(ADDRESS_HEADER));
    let address = all
        .get(ADDRESS_LOCAL)
        .or_else(|| all.get(ADDRESS_PEER))?
        .address()?;
    let index = u32::from_ne_bytes(message.payload.get(4..8)?.try_into().ok()?);
    Some((index, address, *message.payload.get(1)?))
}

/// Reads it as everything that the kernel may send here.
pub(crate) fn read_any(message: &crate::netlink::Message<'_>) {
    let _ = (parse_link(message), parse_address(message));
    lookup::read_any(message);
}
