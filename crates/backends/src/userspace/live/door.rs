//! One door: its socket, and what the socket does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferry_model::{Action, Family, Protocol};
use socket2::{SockRef, Type};

use crate::relay::{
    Access, Door, Listening, Port, Relay, Serving, SessionRecord, adopt, hold, listen, set_filter,
};
use crate::userspace::filter;
use crate::userspace::ruleset::{DoorName, DoorRule};

/// What a door does with those who come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Serve,
    /// Says nothing, as a firewall that drops.
    Ignore,
    /// Lets the kernel say that there is nobody.
    Refuse,
}

impl Manner {
    fn of(access: &Access) -> Manner {
        match access.uniform() {
            Some(Action::Reject | Action::NotOurs) => Manner::Refuse,
            Some(Action::Drop) => Manner::Ignore,
            Some(Action::Forward { .. }) | None => Manner::Serve,
        }
    }
}

#[derive(Debug)]
enum Socket {
    Serving { listening: Listening, serving: Serving },
    Ignoring(Listening),
    Refusing(OwnedFd),
}

#[derive(Debug)]
pub(super) struct LiveDoor {
    pub(super) name: DoorName,
    pub(super) rule: DoorRule,
    /// Where it is, once it has been opened.
    pub(super) local: SocketAddr,
    door: Arc<Door>,
    /// None while opening it does not work.
    socket: Option<Socket>,
}

impl LiveDoor {
    /// A door that is still closed, to be opened at `local`.
    pub(super) fn new(name: DoorName, rule: DoorRule, local: SocketAddr, port: Arc<Port>) -> Self {
        let door = Door::new(port, rule.access.clone());
        LiveDoor {
            name,
            rule,
            local,
            door,
            socket: None,
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.name.port.protocol
    }

    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Gives a closed door the socket of another one, or of a predecessor, if it is of use.
    pub(super) fn receive(&mut self, socket: OwnedFd) {
        let received = match Manner::of(&self.rule.access) {
            Manner::Refuse => refusing(socket).map(Socket::Refusing),
            Manner::Serve | Manner::Ignore => adopt(socket, self.local).map(Socket::Ignoring),
        };
        let Some(received) = received else { return };
        let port = match &received {
            Socket::Serving { listening, .. } | Socket::Ignoring(listening) => port_of(listening.as_fd()),
            Socket::Refusing(held) => port_of(held.as_fd()),
        };
        if let Some(port) = port {
            self.local.set_port(port);
            self.socket = Some(received);
        }
    }

    /// Takes over a rule, and makes the socket do what it says.
    pub(super) fn update(
        &mut self,
        rule: &DoorRule,
        relay: &Relay,
        sessions: Vec<SessionRecord>,
    ) -> io::Result<()> {
        let access_changed = self.rule.access != rule.access;
        if access_changed {
            self.door.set_access(rule.access.clone());
        }
        self.rule.clone_from(rule);
        if access_changed && let Some(Socket::Serving { listening, .. }) = &self.socket {
            self.guard(listening)?;
        }
        match (Manner::of(&self.rule.access), &self.socket) {
            (Manner::Serve, Some(Socket::Serving { .. }))
            | (Manner::Ignore, Some(Socket::Ignoring(_)))
            | (Manner::Refuse, Some(Socket::Refusing(_))) => Ok(()),
            (Manner::Serve, _) => {
                let listening = self.listening(relay)?;
                self.guard(&listening)?;
                let serving = relay.serve(listening.try_clone()?, self.door.clone(), sessions)?;
                self.socket = Some(Socket::Serving { listening, serving });
                Ok(())
            }
            (Manner::Ignore, _) => {
                let listening = self.listening(relay)?;
                self.guard(&listening)?;
                self.socket = Some(Socket::Ignoring(listening));
                Ok(())
            }
            (Manner::Refuse, _) => {
                self.close(relay);
                let held = hold(self.protocol(), self.local)?;
                if let Some(port) = port_of(held.as_fd()) {
                    self.local.set_port(port);
                }
                self.socket = Some(Socket::Refusing(held));
                Ok(())
            }
        }
    }

    /// Puts the rule's filter on the socket.
    fn guard(&self, listening: &Listening) -> io::Result<()> {
        let filter = filter::program(&self.rule.access, Family::of(self.local.ip()));
        set_filter(listening.as_fd(), filter.as_deref())
    }

    /// A listening socket that nobody serves: the one there is, or a new one.
    fn listening(&mut self, relay: &Relay) -> io::Result<Listening> {
        let present = match self.socket.take() {
            Some(Socket::Serving { listening, serving }) => {
                relay.stop(serving);
                Some(listening)
            }
            Some(Socket::Ignoring(listening)) => Some(listening),
            Some(Socket::Refusing(held)) => adopt(held, self.local),
            None => None,
        };
        let listening = present.map_or_else(|| listen(self.protocol(), self.local), Ok)?;
        self.local = listening.local_addr()?;
        Ok(listening)
    }

    /// Closes the door and frees its address before it returns.
    pub(super) fn close(&mut self, relay: &Relay) {
        if let Some(Socket::Serving { serving, .. }) = self.socket.take() {
            relay.stop(serving);
        }
    }

    /// Leaves the door to a successor that has its socket.
    pub(super) fn leave(&mut self, relay: &Relay) {
        if let Some(Socket::Serving { serving, .. }) = self.socket.take() {
            relay.leave(serving);
        }
    }

    /// The socket, if it is open, for another process or another door.
    pub(super) fn share(&self) -> io::Result<Option<OwnedFd>> {
        let socket = self.socket.as_ref().map(|socket| match socket {
            Socket::Serving { listening, .. } | Socket::Ignoring(listening) => listening.as_fd(),
            Socket::Refusing(held) => held.as_fd(),
        });
        socket.map(|socket| socket.try_clone_to_owned()).transpose()
    }

    pub(super) fn sessions(&self) -> Vec<SessionRecord> {
        match &self.socket {
            Some(Socket::Serving { serving, .. }) => serving.sessions(),
            Some(Socket::Ignoring(_) | Socket::Refusing(_)) | None => Vec::new(),
        }
    }
}

/// The socket, if it is one that refuses: bound, but neither listening nor open to datagrams of anybody.
fn refusing(socket: OwnedFd) -> Option<OwnedFd> {
    let refuses = {
        let socket = SockRef::from(&socket);
        match socket.r#type().ok()? {
            Type::STREAM => !socket.is_listener().ok()?,
            _ => socket.peer_addr().is_ok(),
        }
    };
    refuses.then_some(socket)
}

fn port_of(socket: BorrowedFd<'_>) -> Option<u16> {
    Some(SockRef::from(&socket).local_addr().ok()?.as_socket()?.port())
}
