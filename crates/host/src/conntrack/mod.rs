//! Connection tracking: which flows the kernel remembers, and making it forget some.
//! May touch the conntrack table over netlink and nothing else; which flows must go is decided elsewhere.
//! Always holds: memory is bounded however many flows there are, and only flows that were looked at are deleted.

mod account;
mod wire;

use std::net::{IpAddr, SocketAddr};

pub use crate::nftables::Family;
pub use account::{Counted, FlowEvent, FlowMonitor};

use crate::netlink::{self, Bus, Socket, Writer};

/// Flows deleted with one datagram.
const CHUNK: usize = 1000;

/// Why the table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading the connection tracking table: {0}")]
    Read(#[source] netlink::Error),
    #[error("deleting tracked flows: {0}")]
    Delete(#[source] netlink::Error),
    #[error("listening to what happens to tracked flows: {0}")]
    Watch(#[source] netlink::Error),
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IP protocol number.
    pub protocol: u8,
    pub client: SocketAddr,
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// Who answers: the destination itself unless it was translated.
    pub responder: SocketAddr,
    /// To whom: the client itself unless it was masqueraded.
    pub answered_to: SocketAddr,
    id: u32,
    zone: Option<u16>,
}

impl Flow {
    /// A flow as it would be seen: answered by whom it was translated to, and not masqueraded.
    pub fn observed(
        protocol: u8,
        client: SocketAddr,
        destination: SocketAddr,
        responder: SocketAddr,
    ) -> Self {
        Self {
            protocol,
            client,
            destination,
            responder,
            answered_to: client,
            id: 0,
            zone: None,
        }
    }
}

/// Which flows to look at. The kernel applies it where it can, and we apply it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    pub family: Family,
    /// IP protocol number.
    pub protocol: u8,
    pub destination: Option<IpAddr>,
    pub destination_port: Option<u16>,
    pub responder: Option<SocketAddr>,
}

impl Filter {
    /// Every flow of a protocol.
    pub fn all(family: Family, protocol: u8) -> Self {
        Self {
            family,
            protocol,
            destination: None,
            destination_port: None,
            responder: None,
        }
    }

    /// The flows to an address and port.
    pub fn to(protocol: u8, destination: SocketAddr) -> Self {
        Self {
            destination: Some(destination.ip()),
            destination_port: Some(destination.port()),
            ..Self::all(family_of(destination.ip()), protocol)
        }
    }

    /// The flows to a port of whatever address.
    pub fn to_port(family: Family, protocol: u8, port: u16) -> Self {
        Self {
            destination_port: Some(port),
            ..Self::all(family, protocol)
        }
    }

    /// Of those, the ones that this endpoint answers.
    pub fn answered_by(self, responder: SocketAddr) -> Self {
        Self {
            responder: Some(responder),
            ..self
        }
    }

    fn matches(&self, flow: &Flow) -> bool {
        flow.protocol == self.protocol
            && self
                .destination
                .is_none_or(|address| flow.destination.ip() == address)
            && self
                .destination_port
                .is_none_or(|port| flow.destination.port() == port)
            && self.responder.is_none_or(|responder| flow.responder == responder)
    }
}

fn family_of(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::Ip,
        IpAddr::V6(_) => Family::Ip6,
    }
}

/// What a sweep came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows that matched the filter.
    pub seen: u64,
    pub deleted: u64,
}

/// The way to the conntrack table of one network namespace.
#[derive(Debug)]
pub struct Conntrack {
    reader: Socket,
    deleter: Socket,
    kernel_filters: bool,
}

impl Conntrack {
    /// Opens its sockets in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            reader: Socket::open(Bus::Netfilter).map_err(Error::Read)?,
            deleter: Socket::open(Bus::Netfilter).map_err(Error::Delete)?,
            kernel_filters: true,
        })
    }

    /// Deletes every flow that matches; tells how many.
    pub fn delete(&mut self, filter: &Filter) -> Result<u64, Error> {
        self.sweep(filter, |_| true).map(|swept| swept.deleted)
    }

    /// Looks at every flow that matches and deletes the doomed ones, a chunk at a time while reading goes on.
    pub fn sweep(&mut self, filter: &Filter, mut doomed: impl FnMut(&Flow) -> bool) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let mut chunk = Chunk {
            flows: Vec::new(),
            deleter: &mut self.deleter,
            family: filter.family,
            deleted: 0,
        };
        let mut failed = None;
        let kernel_filter = self.kernel_filters;
        let dumped = self.reader.dump(
            wire::GET,
            |w| wire::request(w, filter, kernel_filter),
            |message| {
                let Some(flow) = wire::flow(&message).filter(|flow| filter.matches(flow)) else {
                    return;
                };
                swept.seen += 1;
                if failed.is_none() && doomed(&flow) {
                    failed = chunk.push(flow).err();
                }
            },
        );
        match dumped {
            // A dump that others disturb may show a flow twice or miss a new one; neither is stale.
            Ok(_) => {}
            Err(error) if kernel_filter && refuses_filters(&error) => {
                self.kernel_filters = false;
                return self.sweep(filter, doomed);
            }
            Err(error) => return Err(Error::Read(error)),
        }
        match failed {
            Some(error) => Err(error),
            None => {
                chunk.flush()?;
                swept.deleted = chunk.deleted;
                Ok(swept)
            }
        }
    }

    /// How many flows match.
    pub fn count(&mut self, filter: &Filter) -> Result<u64, Error> {
        self.sweep(filter, |_| false).map(|swept| swept.seen)
    }
}

/// Kernels before 5.8 do not know the attribute; most ignore it, some refuse it.
fn refuses_filters(error: &netlink::Error) -> bool {
    matches!(error.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Flows about to be deleted.
struct Chunk<'a> {
    flows: Vec<Flow>,
    deleter: &'a mut Socket,
    family: Family,
    deleted: u64,
}

impl Chunk<'_> {
    fn push(&mut self, flow: Flow) -> Result<(), Error> {
        self.flows.push(flow);
        if self.flows.len() < CHUNK {
            Ok(())
        } else {
            self.flush()
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.flows.is_empty() {
            return Ok(());
        }
        let mut writer = Writer::with_capacity(self.flows.len() * 96);
        for flow in &self.flows {
            let seq = self.deleter.next_seq();
            writer.message(wire::DELETE, libc::NLM_F_REQUEST as u16, seq, |w| {
                wire::delete(w, self.family, flow)
            });
        }
        let refused = self.deleter.transact(&writer).map_err(Error::Delete)?;
        // A flow that ended by itself meanwhile is not there any more, and not of our doing.
        if let Some(refusal) = refused.iter().find(|refusal| refusal.errno != libc::ENOENT) {
            return Err(Error::Delete(netlink::Error::Refused(refusal.clone())));
        }
        self.deleted += (self.flows.len() - refused.len()) as u64;
        self.flows.clear();
        Ok(())
    }
}

/// Reads it as everything that the kernel may send here.
pub(crate) fn read_any(message: &crate::netlink::Message<'_>) {
    let _ = wire::flow(message);
}
