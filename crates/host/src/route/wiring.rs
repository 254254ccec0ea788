//! Cables between namespaces, and the routes over them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    CREATE_NEW, Error, LINK_HEADER, LINK_INFO, LINK_INFO_KIND, LINK_NAME, NEW_LINK, Route, link_header,
};
use crate::netlink::Writer;
use crate::netns::Namespace;

const NEW_ROUTE: u16 = 24;
const LINK_INFO_DATA: u16 = 2;
const LINK_NAMESPACE: u16 = 28;
const VETH_PEER: u16 = 1;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;

impl Route {
    /// Makes a cable from here into another namespace.
    pub fn add_veth(&mut self, name: &str, peer: &str, there: &Namespace) -> Result<(), Error> {
        let body = |w: &mut Writer| {
            link_header(w, 0);
            w.str(LINK_NAME, name);
            w.nest(LINK_INFO, |w| {
                w.str(LINK_INFO_KIND, "veth");
                w.nest(LINK_INFO_DATA, |w| {
                    w.nest(VETH_PEER, |w| {
                        link_header(w, 0);
                        w.str(LINK_NAME, peer);
                        w.u32(LINK_NAMESPACE, there.number().cast_unsigned());
                    });
                });
            });
        };
        self.socket
            .request(NEW_LINK, CREATE_NEW, body)
            .map_err(|source| Error::Link {
                verb: "creating",
                kind: "veth",
                name: name.to_owned(),
                source,
            })
    }

    /// Sets an interface up, and tells its number.
    pub fn set_up(&mut self, name: &str) -> Result<u32, Error> {
        let failed = |source| Error::Link {
            verb: "setting up",
            kind: "network",
            name: name.to_owned(),
            source,
        };
        let missing = || Error::OtherKind {
            name: name.to_owned(),
            kind: "network",
        };
        let index = self.link(name)?.ok_or_else(missing)?.index;
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let up = libc::IFF_UP.cast_unsigned().to_ne_bytes();
        header[8..12].copy_from_slice(&up);
        header[12..16].copy_from_slice(&up);
        self.socket
            .request(NEW_LINK, 0, |w| w.raw(&header))
            .map_err(failed)?;
        Ok(index)
    }

    /// Adds a route over an interface, through a gateway if one is given.
    pub fn add_route(&mut self, to: IpNet, index: u32, gateway: Option<IpAddr>) -> Result<(), Error> {
        let family = match to {
            IpNet::V4(_) => libc::AF_INET,
            IpNet::V6(_) => libc::AF_INET6,
        };
        let scope = match gateway {
            Some(_) => libc::RT_SCOPE_UNIVERSE,
            None => libc::RT_SCOPE_LINK,
        };
        let body = |w: &mut Writer| {
            let header = [
                family as u8,
                to.prefix_len(),
                0,
                0,
                libc::RT_TABLE_MAIN,
                libc::RTPROT_STATIC,
                scope,
                libc::RTN_UNICAST,
            ];
            w.raw(&header);
            w.raw(&[0; 4]);
            address_attr(w, ROUTE_DESTINATION, to.addr());
            w.u32(ROUTE_INTERFACE, index);
            if let Some(gateway) = gateway {
                address_attr(w, ROUTE_GATEWAY, gateway);
            }
        };
        self.socket
            .request(NEW_ROUTE, CREATE_NEW, body)
            .map_err(|source| Error::Route { to, source })
    }
}

fn address_attr(writer: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => writer.attr(kind, &v4.octets()),
        IpAddr::V6(v6) => writer.attr(kind, &v6.octets()),
    }
}
