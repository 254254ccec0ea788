//! IP sets, over netlink: create, fill, list, destroy.
//! May touch the sets of the network namespace that the calling thread is in, by name, and nothing else.
//! Always holds: adding what is there and deleting what is not there is success; an [`Entry`] prints as `ipset` prints it.
//!
//! Netlink and not the `ipset` program, because one message carries some thousand entries where the program is started
//! once for each, because answers are numbers instead of text that must match letter by letter, and because an image
//! without the program will do.

mod entry;

pub use entry::{Entry, Kind};

use crate::netlink::{self, Bus, Completion, Message, Socket, Writer};
use entry::{HASH_SIZE, MAX_ELEMENTS, NET_ORDER, PORT, PORT_TO};

const SUBSYSTEM: u16 = 6 << 8;
const CREATE: u16 = SUBSYSTEM | 2;
const DESTROY: u16 = SUBSYSTEM | 3;
const LIST: u16 = SUBSYSTEM | 7;
const ADD: u16 = SUBSYSTEM | 9;
const DELETE: u16 = SUBSYSTEM | 10;
const TYPE: u16 = SUBSYSTEM | 13;

const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const LINE: u16 = 9;
const REVISION_MIN: u16 = 10;

/// The oldest protocol version that every kernel still takes.
const VERSION: u8 = 6;
const FLAG_HEADERS_ONLY: u32 = 1 << 2;
/// How much of a message entries may fill: the length of a nest has 16 bits.
const CHUNK_BYTES: usize = 48 * 1024;

/// The first revision that knows SCTP: old enough that every version of the `ipset` program can list the sets, whatever
/// newer revision the kernel has to offer.
const WANTED_REVISION: u8 = 1;

/// A set is used by a rule (its private error number).
const BUSY: i32 = 4100;
const NO_SUCH_TYPE: i32 = 4098;
const OTHER_TYPE: i32 = 4102;
const FULL: i32 = 4352;

/// What was attempted and failed.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {}", reason(source))]
pub struct Error {
    /// What was tried, with the set's name.
    pub attempt: String,
    /// Why it failed.
    pub source: netlink::Error,
}

impl Error {
    /// There is no set of that name.
    pub fn is_not_found(&self) -> bool {
        self.source.is_not_found()
    }

    /// A rule still refers to the set.
    pub fn is_busy(&self) -> bool {
        self.source.errno() == Some(BUSY)
    }

    /// The kernel has no sets of this type, or no sets at all.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self.source.errno(),
            Some(NO_SUCH_TYPE | libc::EOPNOTSUPP | libc::EINVAL)
        )
    }
}

/// The kernel answers with numbers of its own, which the C library has no words for.
fn reason(error: &netlink::Error) -> String {
    match error.errno() {
        Some(BUSY) => "the set is used by a rule".to_owned(),
        Some(NO_SUCH_TYPE) => "the kernel has no sets of this type".to_owned(),
        Some(OTHER_TYPE) => "a set of this name and another type exists".to_owned(),
        Some(FULL) => "the set is full".to_owned(),
        _ => error.to_string(),
    }
}

/// Which addresses a set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    V4,
    V6,
}

/// What a set is, apart from its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name, 31 bytes at most.
    pub name: String,
    /// The name of its type, such as `hash:ip,port`.
    pub kind: String,
    /// Whether it holds IPv6 addresses.
    pub ipv6: bool,
}

/// The door: a socket for the life of its user.
#[derive(Debug)]
pub struct Ipset {
    socket: Socket,
}

impl Ipset {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Bus::Netfilter).map_err(|source| Error {
            attempt: "opening netlink for ipset".to_owned(),
            source,
        })?;
        Ok(Self { socket })
    }

    /// Makes sure that a set exists. One of the same name that is something else is an error.
    pub fn ensure(&mut self, name: &str, kind: Kind, of: Addresses) -> Result<(), Error> {
        let family = family(of, kind);
        let failed = |source| Error {
            attempt: format!("creating set {name} of type {}", kind.as_str()),
            source,
        };
        let revision = self.revision(kind, family).map_err(failed)?;
        let body = |w: &mut Writer| {
            start(w, Some(name));
            w.str(TYPE_NAME, kind.as_str());
            w.u8(REVISION, revision);
            w.u8(FAMILY, family);
            w.nest(DATA, |w| match kind {
                Kind::BitmapPort => {
                    w.be16(PORT | NET_ORDER, 0);
                    w.be16(PORT_TO | NET_ORDER, u16::MAX);
                }
                Kind::HashIp | Kind::HashIpPort | Kind::HashIpPortIp | Kind::HashIpPortNet => {
                    w.be32(HASH_SIZE | NET_ORDER, 1024);
                    w.be32(MAX_ELEMENTS | NET_ORDER, 65536);
                }
            });
        };
        self.socket
            .request(CREATE, libc::NLM_F_CREATE as u16, body)
            .map_err(failed)
    }

    /// Adds entries; those that are there already count as added.
    pub fn add<'a>(&mut self, name: &str, entries: impl IntoIterator<Item = &'a Entry>) -> Result<(), Error> {
        self.change(ADD, "adding to", name, entries)
    }

    /// Deletes entries; those that are not there count as deleted.
    pub fn delete<'a>(
        &mut self,
        name: &str,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Result<(), Error> {
        self.change(DELETE, "deleting from", name, entries)
    }

    /// Removes a set. Tells whether there was one.
    pub fn destroy(&mut self, name: &str) -> Result<bool, Error> {
        // "Exclusive" makes the kernel tell when there is no such set.
        match self
            .socket
            .request(DESTROY, libc::NLM_F_EXCL as u16, |w| start(w, Some(name)))
        {
            Ok(()) => Ok(true),
            Err(source) if source.is_not_found() => Ok(false),
            Err(source) => Err(Error {
                attempt: format!("destroying set {name}"),
                source,
            }),
        }
    }

    /// The entries of a set; `None` if there is no such set.
    pub fn entries(&mut self, name: &str) -> Result<Option<Vec<Entry>>, Error> {
        let mut kind = None;
        let mut found = Vec::new();
        let each = |message: Message<'_>| {
            let all = message.netfilter_attrs();
            if let Some(text) = all.get(TYPE_NAME).and_then(|attr| attr.str()) {
                kind = Kind::parse(text);
            }
            if let (Some(kind), Some(list)) = (kind, all.get(ENTRIES)) {
                found.extend(
                    list.nested()
                        .filter_map(|data| Entry::parse(kind, &data.nested())),
                );
            }
        };
        match self.socket.dump(LIST, |w| start(w, Some(name)), each) {
            Ok(Completion::Whole | Completion::Interrupted) => Ok(Some(found)),
            Err(source) if source.is_not_found() => Ok(None),
            Err(source) => Err(Error {
                attempt: format!("listing set {name}"),
                source,
            }),
        }
    }

    /// All sets of this network namespace, without their entries.
    pub fn sets(&mut self) -> Result<Vec<Header>, Error> {
        let body = |w: &mut Writer| {
            start(w, None);
            w.be32(FLAGS | NET_ORDER, FLAG_HEADERS_ONLY);
        };
        self.socket
            .collect(LIST, body, |message| {
                let all = message.netfilter_attrs();
                Some(Header {
                    name: all.get(NAME)?.str()?.to_owned(),
                    kind: all.get(TYPE_NAME)?.str()?.to_owned(),
                    ipv6: all.get(FAMILY)?.u8()? == libc::AF_INET6 as u8,
                })
            })
            .map_err(|source| Error {
                attempt: "listing all sets".to_owned(),
                source,
            })
    }

    /// The revision to make a set in. Asking loads the type's module.
    fn revision(&mut self, kind: Kind, family: u8) -> Result<u8, netlink::Error> {
        let mut offered = None;
        let body = |w: &mut Writer| {
            start(w, None);
            w.str(TYPE_NAME, kind.as_str());
            w.u8(FAMILY, family);
        };
        self.socket.get(TYPE, 0, body, |message| {
            let all = message.netfilter_attrs();
            let number = |kind| all.get(kind).and_then(|attr| attr.u8());
            offered = number(REVISION).map(|newest| (number(REVISION_MIN).unwrap_or(newest), newest));
        })?;
        let (oldest, newest) = offered.ok_or(netlink::Error::Malformed)?;
        Ok(WANTED_REVISION.clamp(oldest, newest.max(oldest)))
    }

    fn change<'a>(
        &mut self,
        command: u16,
        verb: &str,
        name: &str,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Result<(), Error> {
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let body = |w: &mut Writer| {
                start(w, Some(name));
                w.be32(LINE | NET_ORDER, 0);
                w.nest(ENTRIES, |w| {
                    while w.len() < CHUNK_BYTES
                        && let Some(entry) = entries.next()
                    {
                        w.nest(DATA, |w| entry.write(w));
                    }
                });
            };
            self.socket.request(command, 0, body).map_err(|source| Error {
                attempt: format!("{verb} set {name}"),
                source,
            })?;
        }
        Ok(())
    }
}

fn start(writer: &mut Writer, name: Option<&str>) {
    writer.netfilter_header(libc::AF_INET as u8, 0);
    writer.u8(PROTOCOL, VERSION);
    if let Some(name) = name {
        writer.str(NAME, name);
    }
}

fn family(of: Addresses, kind: Kind) -> u8 {
    match (kind, of) {
        (Kind::BitmapPort, _) => libc::AF_UNSPEC as u8,
        (_, Addresses::V4) => libc::AF_INET as u8,
        (_, Addresses::V6) => libc::AF_INET6 as u8,
    }
}

/// Reads it as everything that the kernel may send here.
pub(crate) fn read_any(message: &crate::netlink::Message<'_>) {
    for kind in Kind::ALL {
        let _ = Entry::parse(kind, &message.netfilter_attrs());
    }
}
