//! The monitor: what others do to a table, as the kernel tells it.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Error, Generation};
use super::{Family, SUBSYSTEM, attr, msg};
use crate::netlink::{self, Bus, Message, Socket, messages};

const GROUP: u32 = 7;
/// Objects of a family that are named in a report; a flushed table could name a hundred thousand.
const NAMED: usize = 8;

/// One changed object of a watched table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub family: Family,
    /// `chain services deleted`, for people.
    pub what: Arc<str>,
}

/// A finished transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub generation: Generation,
    /// Netlink port of whoever made it.
    pub port: u32,
    /// What it did to the watched table; the first few objects only.
    pub changes: Vec<Change>,
}

/// Receives the kernel's notifications about one table name, in both families.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    table: Box<str>,
    changes: Vec<Change>,
}

impl Monitor {
    /// Opens a socket in the calling thread's network namespace. Nothing is heard before [`Self::subscribe`].
    pub fn open(table: &str) -> Result<Self, Error> {
        let socket = Socket::open(Bus::Netfilter)?;
        Ok(Self {
            socket,
            table: table.into(),
            changes: Vec::new(),
        })
    }

    /// Asks for notifications from now on.
    pub fn subscribe(&mut self) -> Result<(), Error> {
        Ok(self.socket.subscribe(GROUP)?)
    }

    /// Waits for finished transactions and gives each to `each`. Returns after `wait` at the latest if nothing comes,
    /// and at once when notifications were lost: then anything may have changed.
    pub fn receive(&mut self, wait: Duration, mut each: impl FnMut(Transaction)) -> Result<Received, Error> {
        self.socket.set_timeout(Some(wait))?;
        let datagram = match self.socket.receive(true) {
            Ok(Some(datagram)) => datagram,
            Ok(None) => return Ok(Received::Nothing),
            Err(netlink::Error::Receive(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.changes.clear();
                return Ok(Received::Lost);
            }
            Err(error) => return Err(error.into()),
        };
        for message in messages(datagram) {
            if message.kind == SUBSYSTEM | msg::NEW_GENERATION {
                let changes = std::mem::take(&mut self.changes);
                if let Some(generation) = Generation::read(&message) {
                    each(Transaction {
                        generation,
                        port: message.port,
                        changes,
                    });
                }
            } else if let Some(change) = change(&message, &self.table) {
                let of_family = self.changes.iter().filter(|known| known.family == change.family);
                if of_family.count() < NAMED {
                    self.changes.push(change);
                }
            }
        }
        Ok(Received::Some)
    }
}

/// What [`Monitor::receive`] came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Nothing,
    Some,
    /// The queue ran over.
    Lost,
}

fn change(message: &Message<'_>, table: &str) -> Option<Change> {
    let all = message.netfilter_attrs();
    if all.get(attr::TABLE_NAME)?.str()? != table {
        return None;
    }
    let family = [Family::Ip, Family::Ip6]
        .into_iter()
        .find(|family| family.number() == message.netfilter_family())?;
    let name = |kind: u16| all.get(kind).and_then(|name| name.str()).unwrap_or("?");
    let what = match message.kind & 0xff {
        msg::NEW_TABLE => "table added".to_owned(),
        msg::DEL_TABLE => "table deleted".to_owned(),
        msg::NEW_CHAIN => format!("chain {} added", name(attr::CHAIN_NAME)),
        msg::DEL_CHAIN => format!("chain {} deleted", name(attr::CHAIN_NAME)),
        msg::NEW_RULE => format!("rule added to chain {}", name(attr::RULE_CHAIN)),
        msg::DEL_RULE => format!("rule deleted from chain {}", name(attr::RULE_CHAIN)),
        msg::NEW_SET => format!("set {} added", name(attr::SET_NAME)),
        msg::DEL_SET => format!("set {} deleted", name(attr::SET_NAME)),
        msg::NEW_ELEMENT => format!("element added to set {}", name(attr::ELEMENTS_SET)),
        msg::DEL_ELEMENT => format!("element deleted from set {}", name(attr::ELEMENTS_SET)),
        _ => return None,
    };
    Some(Change {
        family,
        what: what.into(),
    })
}
