//! The client: commits transactions and lists what is there.

use std::sync::Arc;

use super::batch::{Batch, Object};
use super::bytes::Key;
use super::set::{Element, SetDecl};
use super::{ChainDecl, Family, Rule, SUBSYSTEM, attr, decode, msg};
use crate::netlink::{self, Bus, Completion, Refusal, Socket};

const DUMP_ATTEMPTS: u32 = 5;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to nf_tables: {0}")]
    Netlink(#[from] netlink::Error),
    /// The kernel refused an object, and with it the whole transaction.
    #[error("{object}: {refusal}")]
    Refused { object: Object, refusal: Refusal },
    /// Someone else changed nf_tables since the generation that the transaction was made for; nothing was done.
    #[error("nf_tables was changed by someone else meanwhile")]
    Outdated,
}

impl Error {
    /// Whether the kernel has no nf_tables, or not for us.
    pub fn is_unsupported(&self) -> bool {
        let errno = match self {
            Self::Netlink(error) => error.errno(),
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::Outdated => None,
        };
        matches!(
            errno,
            Some(libc::EPERM | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT)
        )
    }
}

/// The running kernel's version, as far as rules depend on it: `(6, 1)` for `6.1.0-25-amd64`.
pub fn kernel_version() -> Option<(u32, u32)> {
    parse_version(rustix::system::uname().release().to_str().ok()?)
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The number of the last transaction and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    pub id: u32,
    pub pid: u32,
    pub process: String,
}

impl Generation {
    pub(super) fn read(message: &netlink::Message<'_>) -> Option<Self> {
        let all = message.netfilter_attrs();
        Some(Self {
            id: all.get(attr::GENERATION_ID)?.be32()?,
            pid: all
                .get(attr::GENERATION_PID)
                .and_then(|pid| pid.be32())
                .unwrap_or(0),
            process: all
                .get(attr::GENERATION_PROCESS)
                .and_then(|name| name.str())
                .unwrap_or_default()
                .to_owned(),
        })
    }

    /// The generation that a commit on top of this one makes.
    pub fn next(id: u32) -> u32 {
        id.checked_add(1).unwrap_or(1)
    }
}

/// What the packets that found an element came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// Everything of a table but its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableInfo {
    pub chains: Vec<ChainDecl>,
    /// Rules by chain, in order.
    pub rules: Vec<(Arc<str>, Rule)>,
    pub sets: Vec<SetDecl>,
    /// Sets and chains of kinds that this crate does not write.
    pub foreign: Vec<Arc<str>>,
}

/// A netlink socket for nf_tables.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
}

impl Client {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            socket: Socket::open(Bus::Netfilter)?,
        })
    }

    /// The socket's port: notifications about our own transactions carry it.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes the batch true, all of it or nothing.
    pub fn commit(&mut self, mut batch: Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let refused = self.socket.transact(batch.finish())?;
        match refused.into_iter().next() {
            None => Ok(()),
            Some(refusal) if refusal.errno == libc::ERESTART => Err(Error::Outdated),
            Some(refusal) => Err(Error::Refused {
                object: batch.blame(&refusal),
                refusal,
            }),
        }
    }

    pub fn generation(&mut self) -> Result<Generation, Error> {
        let mut found = None;
        self.socket.get(
            SUBSYSTEM | msg::GET_GENERATION,
            0,
            |w| w.netfilter_header(0, 0),
            |message| found = Generation::read(&message),
        )?;
        Ok(found.ok_or(netlink::Error::Malformed)?)
    }

    /// Whether a table exists.
    pub fn has_table(&mut self, family: Family, table: &str) -> Result<bool, Error> {
        let answer = self.socket.request(SUBSYSTEM | msg::GET_TABLE, 0, |w| {
            w.netfilter_header(family.number(), 0);
            w.str(attr::TABLE_NAME, table);
        });
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a table with everything in it; false if there was none.
    pub fn delete_table(&mut self, family: Family, table: &str) -> Result<bool, Error> {
        if !self.has_table(family, table)? {
            return Ok(false);
        }
        let mut batch = Batch::new(family, table, None);
        batch.delete_table();
        self.commit(batch).map(|()| true)
    }

    /// The chains, rules and sets of a table.
    pub fn table(&mut self, family: Family, table: &str) -> Result<TableInfo, Error> {
        let mut info = TableInfo::default();
        let number = family.number();
        let ours = |message: &netlink::Message<'_>| {
            message
                .netfilter_attrs()
                .get(attr::TABLE_NAME)
                .and_then(|name| name.str())
                == Some(table)
        };
        let chains = self.socket.collect(
            SUBSYSTEM | msg::GET_CHAIN,
            |w| {
                w.netfilter_header(number, 0);
                w.str(attr::CHAIN_TABLE, table);
            },
            |message| decode::chain(&message).filter(|_| ours(&message)),
        )?;
        for (chain, known) in chains {
            if !known {
                info.foreign.push(Arc::clone(&chain.name));
            }
            info.chains.push(chain);
        }
        info.rules = self.socket.collect(
            SUBSYSTEM | msg::GET_RULE,
            |w| {
                w.netfilter_header(number, 0);
                w.str(attr::RULE_TABLE, table);
            },
            |message| {
                decode::rule(&message)
                    .filter(|_| ours(&message))
                    .map(|(chain, rule)| (chain.into(), rule))
            },
        )?;
        let sets = self.socket.collect(
            SUBSYSTEM | msg::GET_SET,
            |w| {
                w.netfilter_header(number, 0);
                w.str(attr::SET_TABLE, table);
            },
            |message| decode::set(&message).filter(|_| ours(&message)),
        )?;
        for (name, set) in sets {
            match set {
                Some(set) => info.sets.push(set),
                None => info.foreign.push(name),
            }
        }
        Ok(info)
    }

    /// A base chain's place in the packets' path, or that of none; `None` if there is no such chain of a kind that we
    /// write.
    pub fn chain(&mut self, family: Family, table: &str, chain: &str) -> Result<Option<ChainDecl>, Error> {
        let mut found = None;
        let asked = self.socket.get(
            SUBSYSTEM | msg::GET_CHAIN,
            0,
            |w| {
                w.netfilter_header(family.number(), 0);
                w.str(attr::CHAIN_TABLE, table);
                w.str(attr::CHAIN_NAME, chain);
            },
            |message| found = decode::chain(&message),
        );
        absent_if_not_found(asked)?;
        Ok(found.and_then(|(chain, known)| known.then_some(chain)))
    }

    /// The rules of one chain, in order, each with the number that the kernel knows it by.
    pub fn rules(&mut self, number: u8, table: &str, chain: &str) -> Result<Vec<(u64, Rule)>, Error> {
        let listed = self.socket.collect(
            SUBSYSTEM | msg::GET_RULE,
            |w| {
                w.netfilter_header(number, 0);
                w.str(attr::RULE_TABLE, table);
                w.str(attr::RULE_CHAIN, chain);
            },
            |message| {
                let all = message.netfilter_attrs();
                let in_table = all.get(attr::RULE_TABLE).and_then(|name| name.str()) == Some(table);
                let handle = all.get(attr::RULE_HANDLE)?.be64()?;
                let (of, rule) = decode::rule(&message)?;
                (in_table && of == chain).then_some((handle, rule))
            },
        );
        match listed {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            listed => Ok(listed?),
        }
    }

    /// One element of a set, by its key; `None` if it, or the set, is not there. Not for sets of ranges.
    pub fn element(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: &Key,
    ) -> Result<Option<(Element, Option<Counter>)>, Error> {
        let mut found = None;
        let asked = self.socket.get(
            SUBSYSTEM | msg::GET_ELEMENT,
            0,
            |w| {
                w.netfilter_header(family.number(), 0);
                w.str(attr::ELEMENTS_TABLE, table);
                w.str(attr::ELEMENTS_SET, set);
                w.nest(attr::ELEMENTS_LIST, |w| {
                    w.nest(attr::LIST_ITEM, |w| {
                        w.nest(attr::ELEMENT_KEY, |w| w.attr(attr::DATA_VALUE, key.as_slice()));
                    });
                });
            },
            |message| {
                let list = message.netfilter_attrs().get(attr::ELEMENTS_LIST);
                let mut items = list.into_iter().flat_map(|list| list.nested());
                found = items.next().and_then(|item| decode::element(&item));
            },
        );
        absent_if_not_found(asked)?;
        Ok(found)
    }

    /// Gives every element of a set to `each`; one that is not of a kind we write as `None`. Streams: nothing is kept
    /// here. What `start` returned is thrown away and begun anew when the set changed while it was read.
    pub fn elements<T>(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        start: impl Fn() -> T,
        mut each: impl FnMut(&mut T, Option<(Element, Option<Counter>)>),
    ) -> Result<T, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut all = start();
            let completion = self.socket.dump(
                SUBSYSTEM | msg::GET_ELEMENT,
                |w| {
                    w.netfilter_header(family.number(), 0);
                    w.str(attr::ELEMENTS_TABLE, table);
                    w.str(attr::ELEMENTS_SET, set);
                },
                |message| {
                    let list = message.netfilter_attrs().get(attr::ELEMENTS_LIST);
                    for item in list.into_iter().flat_map(|list| list.nested()) {
                        each(&mut all, decode::element(&item));
                    }
                },
            )?;
            if completion == Completion::Whole {
                return Ok(all);
            }
        }
        Err(netlink::Error::Interrupted.into())
    }
}

fn absent_if_not_found(asked: Result<(), netlink::Error>) -> Result<(), Error> {
    match asked {
        Err(error) if error.is_not_found() => Ok(()),
        asked => Ok(asked?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_release_names() {
        assert_eq!(parse_version("6.1.0-25-amd64"), Some((6, 1)));
        assert_eq!(parse_version("5.15"), Some((5, 15)));
        assert_eq!(parse_version("5.15-rc1+"), Some((5, 15)));
        assert_eq!(parse_version("strange"), None);
        assert!(kernel_version().is_some());
    }
}
