//! Notifications about addresses: what came and went since the last look.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{Error, NEW_ADDRESS, parse_address};
use crate::netlink::{Bus, Socket, Wait, messages};

const GROUP_LINK: u32 = 1;
const GROUP_IPV4_ADDRESS: u32 = 5;
const GROUP_IPV6_ADDRESS: u32 = 9;

/// Something that happened to the node's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface got an address.
    Added {
        /// The interface's number.
        index: u32,
        /// The address.
        address: IpAddr,
    },
    /// An interface lost an address.
    Removed {
        /// The interface's number.
        index: u32,
        /// The address.
        address: IpAddr,
    },
    /// More happened than the kernel could tell: list the addresses again.
    Missed,
}

/// Tells when addresses of this network namespace change.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Starts listening: every change after this call is reported.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Bus::Route).map_err(Error::Open)?;
        for group in [GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS] {
            socket.subscribe(group).map_err(Error::Watch)?;
        }
        Ok(Self { socket })
    }

    /// What changed, waiting for it at most this long; empty when nothing did.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<Change>, Error> {
        // Zero would mean for ever.
        let timeout = timeout.max(Duration::from_millis(1));
        self.socket.set_timeout(Some(timeout)).map_err(Error::Watch)?;
        let mut changes = Vec::new();
        let mut wait = Wait::ForTimeout;
        loop {
            match self.socket.receive(wait) {
                Ok(None) => return Ok(changes),
                Ok(Some(datagram)) => changes.extend(messages(datagram).filter_map(|message| {
                    let (index, address, _) = parse_address(&message)?;
                    Some(if message.kind == NEW_ADDRESS {
                        Change::Added { index, address }
                    } else {
                        Change::Removed { index, address }
                    })
                })),
                Err(error) if error.errno() == Some(libc::ENOBUFS) => changes.push(Change::Missed),
                Err(error) => return Err(Error::Watch(error)),
            }
            if !changes.is_empty() {
                wait = Wait::No;
            }
        }
    }
}

/// Tells when interfaces of this network namespace come, go or change.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
}

impl LinkMonitor {
    /// Starts listening: every change after this call is reported.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Bus::Route).map_err(Error::Open)?;
        socket.subscribe(GROUP_LINK).map_err(Error::Watch)?;
        Ok(Self { socket })
    }

    /// Whether something happened, waiting for it at most this long; what happens in a row is one thing.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.socket.set_timeout(Some(timeout)).map_err(Error::Watch)?;
        let mut heard = false;
        loop {
            let wait = if heard { Wait::No } else { Wait::ForTimeout };
            match self.socket.receive(wait) {
                Ok(None) => return Ok(heard),
                Ok(Some(_)) => heard = true,
                Err(error) if error.errno() == Some(libc::ENOBUFS) => heard = true,
                Err(error) => return Err(Error::Watch(error)),
            }
        }
    }
}

/// For callers that wait for several things at once.
impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
