//! What the kernel tells about changes, decoded: for everybody who watches, whether they speak nf_tables or iptables.

use super::client::Generation;
use super::{Family, SUBSYSTEM, attr, msg};
use crate::netlink::Message;

/// The multicast group that nf_tables tells its changes to.
pub(crate) const GROUP: u32 = libc::NFNLGRP_NFTABLES as u32;
/// What stands before the attributes of every message.
const FAMILY_HEADER: usize = 4;

/// One notification.
#[derive(Debug)]
pub(crate) enum Notification<'a> {
    Changed(Changed<'a>),
    /// All changes of a transaction have been told.
    Commit(Generation),
}

/// An object that came or went.
#[derive(Debug)]
pub(crate) struct Changed<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    pub(crate) object: Object<'a>,
    pub(crate) gone: bool,
}

/// What kind of object, as far as somebody asks.
#[derive(Debug)]
pub(crate) enum Object<'a> {
    Table,
    Chain(&'a str),
    Rule {
        chain: &'a str,
        /// The whole rule: names of chains that it jumps to stand in it as they are.
        bytes: &'a [u8],
    },
    /// A set, a map, or one of their elements.
    Set,
}

impl<'a> Notification<'a> {
    /// `None` for what is of another subsystem or family, and for kinds of objects that nobody here writes.
    pub(crate) fn read(message: &Message<'a>) -> Option<Self> {
        let kind = message.kind & 0xff;
        if message.kind & !0xff != SUBSYSTEM {
            return None;
        }
        if kind == msg::NEW_GENERATION {
            return Generation::read(message).map(Notification::Commit);
        }
        let all = message.netfilter_attrs();
        let text = |kind| all.get(kind).and_then(|attr| attr.str());
        let object = match kind {
            msg::NEW_TABLE | msg::DEL_TABLE => Object::Table,
            msg::NEW_CHAIN | msg::DEL_CHAIN => Object::Chain(text(attr::CHAIN_NAME)?),
            msg::NEW_RULE | msg::DEL_RULE => Object::Rule {
                chain: text(attr::RULE_CHAIN)?,
                bytes: message.after(FAMILY_HEADER),
            },
            msg::NEW_SET | msg::DEL_SET | msg::NEW_ELEMENT | msg::DEL_ELEMENT => Object::Set,
            _ => return None,
        };
        Some(Notification::Changed(Changed {
            family: [Family::Ip, Family::Ip6]
                .into_iter()
                .find(|family| family.number() == message.netfilter_family())?,
            // The same number for every kind of object.
            table: text(attr::TABLE_NAME)?,
            object,
            gone: matches!(
                kind,
                msg::DEL_TABLE | msg::DEL_CHAIN | msg::DEL_RULE | msg::DEL_SET | msg::DEL_ELEMENT
            ),
        }))
    }
}
