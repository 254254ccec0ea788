//! nf_tables over netlink: objects as values, transactions, listing, notifications. Runs no `nft`.
//! May touch the kernel's nf_tables and nothing else; it has never heard of a Service.
//! Always holds: what is written here can be listed and loaded again by `nft` 1.0.6 and later, and a refused
//! transaction names the object that caused it.

mod attr;
mod batch;
mod bytes;
mod client;
mod decode;
mod expr;
mod monitor;
mod notification;
mod set;
mod tracing;
mod userdata;
mod words;

pub use batch::{Batch, Object};
pub use bytes::{Bytes, Data, Key};
pub use client::{Client, Counter, Error, Generation, TableInfo, kernel_version};
pub use expr::{CtKey, Expr, FibFlags, MetaKey, Op, PayloadBase, Register, Verdict};
pub use monitor::{Monitor, Received, Transaction};
pub(crate) use notification::{Changed, GROUP, Notification, Object as ChangedObject};
pub use set::{DataType, Element, Field, SetDecl, Value};
pub use tracing::{Followed, Sent, TraceEvent, TraceVerdict, Traced, Tracing};
pub use userdata::MAX_COMMENT;

use std::sync::Arc;

/// The address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `ip`
    Ip,
    /// `ip6`
    Ip6,
}

impl Family {
    /// The number that the kernel knows it by.
    pub fn number(self) -> u8 {
        match self {
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }

    /// The word that `nft` knows it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }
}

/// A chain, without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainDecl {
    pub name: Arc<str>,
    /// Where packets enter it by themselves; `None` for chains that rules lead to.
    pub base: Option<BaseChain>,
    pub comment: Option<Arc<str>>,
}

/// Where connections go that rules have seen enough of: packets that come in by one of its devices are carried on as the
/// connection's were before, and meet no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    pub name: Arc<str>,
    pub priority: i32,
    /// Names of interfaces. Those that it has already stay, those that are gone have left it by themselves.
    pub devices: Vec<Arc<str>>,
}

/// How a base chain hangs in the packets' path. The policy is always to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    pub kind: ChainKind,
    pub hook: Hook,
    pub priority: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
}

impl ChainKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl Hook {
    const ALL: [Self; 5] = [
        Self::Prerouting,
        Self::Input,
        Self::Forward,
        Self::Output,
        Self::Postrouting,
    ];

    fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

/// A rule as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub expressions: Vec<Expr>,
    pub comment: Option<Arc<str>>,
}

/// Subsystem of nf_tables messages within netfilter's netlink.
const SUBSYSTEM: u16 = 10 << 8;

/// Message types.
mod msg {
    pub(super) const NEW_TABLE: u16 = 0;
    pub(super) const GET_TABLE: u16 = 1;
    pub(super) const DEL_TABLE: u16 = 2;
    pub(super) const NEW_CHAIN: u16 = 3;
    pub(super) const GET_CHAIN: u16 = 4;
    pub(super) const DEL_CHAIN: u16 = 5;
    pub(super) const NEW_RULE: u16 = 6;
    pub(super) const GET_RULE: u16 = 7;
    pub(super) const DEL_RULE: u16 = 8;
    pub(super) const NEW_SET: u16 = 9;
    pub(super) const GET_SET: u16 = 10;
    pub(super) const DEL_SET: u16 = 11;
    pub(super) const NEW_ELEMENT: u16 = 12;
    pub(super) const GET_ELEMENT: u16 = 13;
    pub(super) const DEL_ELEMENT: u16 = 14;
    pub(super) const NEW_GENERATION: u16 = 15;
    pub(super) const GET_GENERATION: u16 = 16;
    pub(super) const NEW_FLOWTABLE: u16 = 22;
}

/// Reads it as everything that the kernel may send here.
pub(crate) fn read_any(message: &crate::netlink::Message<'_>) {
    let _ = notification::Notification::read(message);
    let _ = (
        decode::chain(message),
        decode::rule(message),
        decode::set(message),
    );
    for item in message.netfilter_attrs() {
        let _ = decode::element(&item);
    }
}
