//! Addresses that carry a mark of ours, so that a later process can tell them from everybody else's.

use std::net::IpAddr;

use super::{ADDRESS_HEADER, Error, GET_ADDRESS, Route, parse_address};
use crate::netlink::attrs;

/// IFA_PROTO, known to kernels since 5.18; others ignore it, and the address goes unmarked.
const ADDRESS_PROTOCOL: u16 = 11;

impl Route {
    /// As `add_address`, with a mark.
    pub fn add_marked_address(&mut self, index: u32, address: IpAddr, mark: u8) -> Result<bool, Error> {
        self.add_address_with(index, address, |w| w.u8(ADDRESS_PROTOCOL, mark))
    }

    /// The addresses of an interface that carry a mark.
    pub fn marked_addresses(&mut self, interface: u32, mark: u8) -> Result<Vec<IpAddr>, Error> {
        self.socket
            .collect(
                GET_ADDRESS,
                |w| w.raw(&[0; ADDRESS_HEADER]),
                |message| {
                    let (index, address, _) = parse_address(&message)?;
                    let found = attrs(message.after(ADDRESS_HEADER)).get(ADDRESS_PROTOCOL)?.u8()?;
                    (index == interface && found == mark).then_some(address)
                },
            )
            .map_err(|source| Error::List {
                what: "addresses",
                source,
            })
    }
}
