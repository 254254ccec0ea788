//! Flows with what was counted of them: as they are now, and as they begin and end.

use std::time::{Duration, Instant};

use super::{Conntrack, Error, Family, Filter, Flow, wire};
use crate::netlink::{Bus, Socket, Wait, messages};

const GROUP_NEW: u32 = 1;
const GROUP_DESTROY: u32 = 3;

/// What a flow carried, where the kernel counts it (`net.netfilter.nf_conntrack_acct`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub packets_to: u64,
    pub bytes_to: u64,
    pub packets_back: u64,
    pub bytes_back: u64,
}

/// Something that happened to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    Began(Flow),
    /// With all that it carried.
    Ended(Flow, Option<Counted>),
    /// More happened than the kernel could tell.
    Missed,
}

impl Conntrack {
    /// Looks at every flow of a family, whatever its protocol.
    pub fn each(&mut self, family: Family, mut each: impl FnMut(Flow, Option<Counted>)) -> Result<(), Error> {
        let everything = Filter::all(family, 0);
        let dumped = self.reader.dump(
            wire::GET,
            |w| wire::request(w, &everything, false),
            |message| {
                if let Some(flow) = wire::flow(&message) {
                    each(flow, wire::counted(&message));
                }
            },
        );
        // A table that changes meanwhile may show a flow twice or miss a new one: it is a picture of a moment anyway.
        dumped.map(|_| ()).map_err(Error::Read)
    }
}

/// Tells when flows of this network namespace begin and end.
#[derive(Debug)]
pub struct FlowMonitor {
    socket: Socket,
}

impl FlowMonitor {
    /// Starts listening: every flow that begins or ends after this call is reported.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Bus::Netfilter).map_err(Error::Watch)?;
        for group in [GROUP_NEW, GROUP_DESTROY] {
            socket.subscribe(group).map_err(Error::Watch)?;
        }
        Ok(Self { socket })
    }

    /// Gives all that happens until a moment to `each`.
    pub fn listen(&mut self, until: Instant, mut each: impl FnMut(FlowEvent)) -> Result<(), Error> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Zero would mean for ever.
            let timeout = left.max(Duration::from_millis(1));
            self.socket.set_timeout(Some(timeout)).map_err(Error::Watch)?;
            let wait = if left.is_zero() {
                Wait::No
            } else {
                Wait::ForTimeout
            };
            match self.socket.receive(wait) {
                Ok(None) if left.is_zero() => return Ok(()),
                Ok(None) => {}
                Ok(Some(datagram)) => messages(datagram)
                    .filter_map(|message| wire::event(&message))
                    .for_each(&mut each),
                Err(error) if error.errno() == Some(libc::ENOBUFS) => each(FlowEvent::Missed),
                Err(error) => return Err(Error::Watch(error)),
            }
        }
    }
}
