//! The door for fuzzing what the kernel, or whoever answers in its place, sends.

use crate::netlink::messages;
use crate::{conntrack, ipset, ipvs, nftables, route};

/// Any bytes as a datagram of every netlink protocol that is spoken here: reading ends and does not panic.
pub fn fuzz_netlink(data: &[u8]) {
    for message in messages(data) {
        conntrack::read_any(&message);
        ipset::read_any(&message);
        ipvs::read_any(&message);
        nftables::read_any(&message);
        route::read_any(&message);
    }
}
