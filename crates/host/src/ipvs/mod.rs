//! IPVS, the kernel's load balancer, over generic netlink: virtual servers, real servers, timeouts, counters.
//! May touch the IPVS tables of the network namespace that the calling thread is in.
//! Always holds: real servers are reached by address translation; a batch tells for each change whether it was refused.

mod wire;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::netlink::{self, Bus, Message, Socket, Writer, attrs};
use wire::{command, get_service, put_server, put_service};

/// What was attempted and failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no IPVS, or its module is not loaded.
    #[error("the kernel does not offer IPVS: {0}")]
    Unavailable(#[source] netlink::Error),
    /// No generic netlink socket.
    #[error("opening generic netlink: {0}")]
    Open(#[source] netlink::Error),
    /// Servers could not be listed.
    #[error("listing {what}: {source}")]
    List {
        /// Which.
        what: String,
        /// Why.
        source: netlink::Error,
    },
    /// Timeouts, or all servers at once.
    #[error("{attempt}: {source}")]
    Configure {
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        source: netlink::Error,
    },
    /// A batch could not be sent at all.
    #[error("sending {changes} changes to IPVS: {source}")]
    Send {
        /// How many.
        changes: usize,
        /// Why.
        source: netlink::Error,
    },
}

/// What a virtual server answers for: address, port and IP protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Virtual {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The IP protocol number.
    pub protocol: u8,
}

impl fmt::Display for Virtual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match i32::from(self.protocol) {
            libc::IPPROTO_TCP => "TCP",
            libc::IPPROTO_UDP => "UDP",
            libc::IPPROTO_SCTP => "SCTP",
            _ => "?",
        };
        write!(f, "{}/{name}", SocketAddr::new(self.address, self.port))
    }
}

/// A virtual server without its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// What it answers for.
    pub at: Virtual,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Flags for the scheduler, [`SCHED1`] and the like.
    pub flags: u32,
    /// How long a client sticks to its real server; `None` for not at all.
    pub persistence: Option<Duration>,
}

/// The scheduler's flags. For `mh`: fall back to another server, and hash the source port as well.
pub const SCHED1: u32 = 0x0008;
/// See [`SCHED1`].
pub const SCHED2: u32 = 0x0010;
const SCHEDULER_FLAGS: u32 = 0x0038;
const PERSISTENT: u32 = 0x0001;

/// A real server of a virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it is.
    pub at: SocketAddr,
    /// Zero: no new connections, old ones go on.
    pub weight: u32,
}

/// A real server as the kernel tells about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// Where it is, and its weight.
    pub server: Server,
    /// Established connections.
    pub active: u32,
    /// Connections that are opening, closing, or (UDP) recently used.
    pub inactive: u32,
    /// Clients that stick to it.
    pub persistent: u32,
    /// Counters since it was added.
    pub stats: Stats,
}

impl ServerState {
    /// Whether any connection still goes to it.
    pub fn is_idle(&self) -> bool {
        self.active == 0 && self.inactive == 0
    }
}

/// What flowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections scheduled.
    pub connections: u64,
    /// Bytes towards the real server.
    pub bytes_in: u64,
    /// Bytes back.
    pub bytes_out: u64,
}

/// How long idle connections are remembered; zero leaves a value as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP.
    pub tcp: Duration,
    /// TCP after a FIN.
    pub tcp_fin: Duration,
    /// UDP.
    pub udp: Duration,
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new virtual server.
    AddService(Service),
    /// Other attributes for an existing one; it keeps answering.
    EditService(Service),
    /// Away with a virtual server and all its real servers.
    RemoveService(Virtual),
    /// A new real server.
    AddServer(Virtual, Server),
    /// Another weight.
    EditServer(Virtual, Server),
    /// Away with a real server: its connections break.
    RemoveServer(Virtual, SocketAddr),
}

/// A change that the kernel refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its place in the batch.
    pub index: usize,
    /// The positive error number.
    pub errno: i32,
}

/// Datagrams stay small enough for the default send queue.
const BATCH_BYTES: usize = 128 * 1024;

/// The door: a socket for the life of its user.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    family: u16,
}

impl Ipvs {
    /// Opens a socket in the calling thread's network namespace. The kernel loads the module if it can.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Bus::Generic).map_err(Error::Open)?;
        let family = wire::resolve(&mut socket).map_err(Error::Unavailable)?;
        Ok(Self { socket, family })
    }

    /// All virtual servers; those that go by firewall mark are left out, they have no address.
    pub fn services(&mut self) -> Result<Vec<Service>, Error> {
        let body = |w: &mut Writer| command(w, wire::GET_SERVICE);
        self.socket
            .collect(self.family, body, |message| wire::parse_service(&message))
            .map_err(|source| Error::List {
                what: "virtual servers".to_owned(),
                source,
            })
    }

    /// The counters of a virtual server; `None` if there is no such one.
    pub fn stats(&mut self, at: Virtual) -> Result<Option<Stats>, Error> {
        let mut stats = None;
        let body = |w: &mut Writer| get_service(w, wire::GET_SERVICE, at);
        let each = |message: Message<'_>| stats = wire::parse_service_stats(&message);
        match self.socket.get(self.family, 0, body, each) {
            Ok(()) => Ok(stats),
            Err(source) if is_gone(source.errno()) => Ok(None),
            Err(source) => Err(Error::List {
                what: format!("counters of {at}"),
                source,
            }),
        }
    }

    /// The counters of all virtual servers.
    pub fn all_stats(&mut self) -> Result<Vec<(Virtual, Stats)>, Error> {
        let body = |w: &mut Writer| command(w, wire::GET_SERVICE);
        self.socket
            .collect(self.family, body, |message| {
                Some((
                    wire::parse_service(&message)?.at,
                    wire::parse_service_stats(&message)?,
                ))
            })
            .map_err(|source| Error::List {
                what: "counters of virtual servers".to_owned(),
                source,
            })
    }

    /// The real servers of a virtual one; none if there is no such virtual server.
    pub fn servers(&mut self, at: Virtual) -> Result<Vec<ServerState>, Error> {
        let ipv6 = at.address.is_ipv6();
        let mut found = Vec::new();
        let body = |w: &mut Writer| get_service(w, wire::GET_SERVER, at);
        let each = |message: Message<'_>| {
            let server = attrs(message.after(4))
                .get(wire::SERVER)
                .map(|attr| attr.nested());
            found.extend(server.and_then(|all| wire::parse_server(&all, ipv6)));
        };
        match self.socket.dump(self.family, body, each) {
            Ok(_) => Ok(found),
            Err(source) if is_gone(source.errno()) => Ok(Vec::new()),
            Err(source) => Err(Error::List {
                what: format!("real servers of {at}"),
                source,
            }),
        }
    }

    /// Makes changes in order, many to a datagram. Refusals are returned, the changes after one are made all the same.
    pub fn run(&mut self, changes: &[Change]) -> Result<Vec<Refused>, Error> {
        let mut refused = Vec::new();
        let mut next = 0;
        while next < changes.len() {
            let first = next;
            let mut writer = Writer::with_capacity(BATCH_BYTES);
            let mut sequence = Vec::new();
            while next < changes.len() && writer.len() < BATCH_BYTES {
                let seq = self.socket.next_seq();
                let body = |w: &mut Writer| put_change(w, &changes[next]);
                writer.message(self.family, libc::NLM_F_REQUEST as u16, seq, body);
                sequence.push(seq);
                next += 1;
            }
            let refusals = self.socket.transact(&writer).map_err(|source| Error::Send {
                changes: next - first,
                source,
            })?;
            for refusal in refusals {
                if let Some(place) = sequence.iter().position(|seq| *seq == refusal.seq) {
                    refused.push(Refused {
                        index: first + place,
                        errno: refusal.errno,
                    });
                }
            }
        }
        Ok(refused)
    }

    /// Removes every virtual server, whoever made it.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.socket
            .request(self.family, 0, |w| command(w, wire::FLUSH))
            .map_err(|source| Error::Configure {
                attempt: "removing all virtual servers",
                source,
            })
    }

    /// The timeouts in force.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let mut timeouts = Timeouts::default();
        self.socket
            .get(
                self.family,
                0,
                |w| command(w, wire::GET_CONFIG),
                |message| {
                    timeouts = wire::parse_timeouts(&message);
                },
            )
            .map_err(|source| Error::Configure {
                attempt: "reading the timeouts",
                source,
            })?;
        Ok(timeouts)
    }

    /// Sets timeouts, in whole seconds.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        self.socket
            .request(self.family, 0, |w| wire::put_timeouts(w, timeouts))
            .map_err(|source| Error::Configure {
                attempt: "setting the timeouts",
                source,
            })
    }
}

/// Whether an error number says that a virtual or real server does not exist.
pub fn is_gone(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ESRCH | libc::ENOENT))
}

fn put_change(w: &mut Writer, change: &Change) {
    match change {
        Change::AddService(service) => put_service(w, wire::NEW_SERVICE, service),
        Change::EditService(service) => put_service(w, wire::SET_SERVICE, service),
        Change::RemoveService(at) => get_service(w, wire::DEL_SERVICE, *at),
        Change::AddServer(at, server) => put_server(w, wire::NEW_SERVER, *at, server),
        Change::EditServer(at, server) => put_server(w, wire::SET_SERVER, *at, server),
        Change::RemoveServer(at, address) => {
            put_server(
                w,
                wire::DEL_SERVER,
                *at,
                &Server {
                    at: *address,
                    weight: 0,
                },
            );
        }
    }
}

/// Reads it as everything that the kernel may send here.
pub(crate) fn read_any(message: &crate::netlink::Message<'_>) {
    let _ = (wire::parse_service(message), wire::parse_service_stats(message));
    let _ = wire::parse_timeouts(message);
    for family_of_service in [false, true] {
        let _ = wire::parse_server(&attrs(message.after(4)), family_of_service);
    }
}
