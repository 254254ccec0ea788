//! The monitor: what others do to a table, as the kernel tells it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Family;
use super::client::{Error, Generation};
use super::notification::{GROUP, Notification};
use crate::netlink::{self, Bus, Socket, Wait, messages};

/// A finished transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub generation: Generation,
    /// Netlink port of whoever made it.
    pub port: u32,
    /// The families whose table of the watched name it changed.
    pub changed: BTreeSet<Family>,
}

/// Receives the kernel's notifications about one table name, in both families.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    table: Box<str>,
    changed: BTreeSet<Family>,
}

impl Monitor {
    /// Opens a socket in the calling thread's network namespace. Nothing is heard before [`Self::subscribe`].
    pub fn open(table: &str) -> Result<Self, Error> {
        let socket = Socket::open(Bus::Netfilter)?;
        Ok(Self {
            socket,
            table: table.into(),
            changed: BTreeSet::new(),
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
        let datagram = match self.socket.receive(Wait::ForTimeout) {
            Ok(Some(datagram)) => datagram,
            Ok(None) => return Ok(Received::Nothing),
            Err(netlink::Error::Receive(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.changed.clear();
                return Ok(Received::Lost);
            }
            Err(error) => return Err(error.into()),
        };
        for message in messages(datagram) {
            match Notification::read(&message) {
                Some(Notification::Commit(generation)) => each(Transaction {
                    generation,
                    port: message.port,
                    changed: std::mem::take(&mut self.changed),
                }),
                Some(Notification::Changed(changed)) if *changed.table == *self.table => {
                    self.changed.insert(changed.family);
                }
                Some(Notification::Changed(_)) | None => {}
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
