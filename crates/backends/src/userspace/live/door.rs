//! One door: its socket, and what the socket does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferry_model::{Protocol, Verdict};

use crate::userspace::access::Access;
use crate::userspace::relay::{
    Door, Listening, Port, Relay, Serving, SessionRecord, adopt, hold, listen, silence,
};
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
            Some(Verdict::Reject) => Manner::Refuse,
            Some(Verdict::Drop) => Manner::Ignore,
            Some(Verdict::Forward(_)) | None => Manner::Serve,
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

    /// Gives a closed door the socket of another one, or of a predecessor.
    pub(super) fn receive(&mut self, socket: OwnedFd) {
        if let Some(listening) = adopt(socket, self.local)
            && let Ok(local) = listening.local_addr()
        {
            self.local = local;
            self.socket = Some(Socket::Ignoring(listening));
        }
    }

    /// Takes over a rule, and makes the socket do what it says.
    pub(super) fn update(
        &mut self,
        rule: &DoorRule,
        relay: &Relay,
        sessions: Vec<SessionRecord>,
    ) -> io::Result<()> {
        if self.rule.access != rule.access {
            self.door.set_access(rule.access.clone());
        }
        self.rule.clone_from(rule);
        match (Manner::of(&self.rule.access), &self.socket) {
            (Manner::Serve, Some(Socket::Serving { .. }))
            | (Manner::Ignore, Some(Socket::Ignoring(_)))
            | (Manner::Refuse, Some(Socket::Refusing(_))) => Ok(()),
            (Manner::Serve, _) => {
                let listening = self.listening(relay)?;
                silence(listening.as_fd(), false)?;
                let serving = relay.serve(listening.try_clone()?, self.door.clone(), sessions)?;
                self.socket = Some(Socket::Serving { listening, serving });
                Ok(())
            }
            (Manner::Ignore, _) => {
                let listening = self.listening(relay)?;
                silence(listening.as_fd(), true)?;
                self.socket = Some(Socket::Ignoring(listening));
                Ok(())
            }
            (Manner::Refuse, _) => {
                self.close(relay);
                let held = hold(self.protocol(), self.local)?;
                self.settle(held.as_fd().try_clone_to_owned()?)?;
                self.socket = Some(Socket::Refusing(held));
                Ok(())
            }
        }
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

    /// Remembers the port that the kernel chose.
    fn settle(&mut self, socket: OwnedFd) -> io::Result<()> {
        let local = socket2::Socket::from(socket).local_addr()?;
        if let Some(local) = local.as_socket() {
            self.local.set_port(local.port());
        }
        Ok(())
    }

    /// Closes the door and frees its address before it returns.
    pub(super) fn close(&mut self, relay: &Relay) {
        if let Some(Socket::Serving { serving, .. }) = self.socket.take() {
            relay.stop(serving);
        }
    }

    /// The socket, for another process or another door.
    pub(super) fn share(&self) -> Option<OwnedFd> {
        let socket = match self.socket.as_ref()? {
            Socket::Serving { listening, .. } | Socket::Ignoring(listening) => listening.as_fd(),
            Socket::Refusing(held) => held.as_fd(),
        };
        socket.try_clone_to_owned().ok()
    }

    pub(super) fn sessions(&self) -> Vec<SessionRecord> {
        match &self.socket {
            Some(Socket::Serving { serving, .. }) => serving.sessions(),
            Some(Socket::Ignoring(_) | Socket::Refusing(_)) | None => Vec::new(),
        }
    }
}
