//! Noticing what others do to the rules: nf_tables says it, x_tables has to be asked.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Error, Ip};
use crate::netlink::{self, Bus, PortFilter, Socket, Wait, messages};
use crate::nftables::{Changed, ChangedObject, Family, GROUP, Generation, Notification};

/// How often a watching thread looks whether it is still wanted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How many of our own last writers are remembered. Notifications are queued while their writer runs, so this only
/// has to outlast the watching thread's backlog.
const WRITERS: usize = 64;

/// The processes that wrote rules for us: their netlink ports are their process ids.
#[derive(Debug, Default)]
pub struct Writers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    ports: VecDeque<u32>,
    /// Of the sockets that watch for others.
    filters: Vec<PortFilter>,
}

impl Writers {
    pub(super) fn add(&self, pid: u32) {
        let mut known = self.known();
        if known.ports.len() == WRITERS {
            known.ports.pop_front();
        }
        known.ports.push_back(pid);
        known.filters.retain(|filter| filter.ignore(pid));
    }

    fn watch_with(&self, filter: PortFilter) {
        self.known().filters.push(filter);
    }

    fn contains(&self, port: u32) -> bool {
        self.known().ports.contains(&port)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change that was not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A table came or went.
    Table { ip: Ip, table: &'a str, gone: bool },
    /// A chain came or went.
    Chain {
        ip: Ip,
        table: &'a str,
        chain: &'a str,
        gone: bool,
    },
    /// A rule came or went. `bytes` holds the names of the chains that it jumps to.
    Rule {
        ip: Ip,
        table: &'a str,
        chain: &'a str,
        bytes: &'a [u8],
        gone: bool,
    },
    /// All changes of one transaction have been told; this process made them.
    Commit { process: String },
    /// More happened than the kernel could tell us.
    Overrun,
}

/// A watch; it ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Tells `each` about every change of a table, chain or rule in the families `ip` and `ip6` that none of `writers`
/// made, from now on, from a thread of its own.
pub fn watch_nft(writers: Arc<Writers>, each: impl Fn(Change<'_>) + Send + 'static) -> Result<Watch, Error> {
    let mut socket = Socket::open(Bus::Netfilter).map_err(Error::Watch)?;
    socket.subscribe(GROUP).map_err(Error::Watch)?;
    socket.set_timeout(Some(POLL_INTERVAL)).map_err(Error::Watch)?;
    writers.watch_with(socket.port_filter());
    run("iptables-watch", move || match socket.receive(Wait::ForTimeout) {
        Ok(Some(datagram)) => messages(datagram)
            .filter(|message| !writers.contains(message.port))
            .filter_map(|message| change(Notification::read(&message)?))
            .for_each(&each),
        Ok(None) => {}
        Err(error) if error.errno() == Some(libc::ENOBUFS) => each(Change::Overrun),
        Err(netlink::Error::Malformed) => each(Change::Overrun),
        Err(_) => thread::sleep(POLL_INTERVAL),
    })
}

/// What concerns iptables: sets are not its business.
fn change(notification: Notification<'_>) -> Option<Change<'_>> {
    let Changed {
        family,
        table,
        object,
        gone,
    } = match notification {
        Notification::Changed(changed) => changed,
        Notification::Commit(Generation { process, .. }) => return Some(Change::Commit { process }),
    };
    let ip = match family {
        Family::Ip => Ip::V4,
        Family::Ip6 => Ip::V6,
    };
    match object {
        ChangedObject::Table => Some(Change::Table { ip, table, gone }),
        ChangedObject::Chain(chain) => Some(Change::Chain {
            ip,
            table,
            chain,
            gone,
        }),
        ChangedObject::Rule { chain, bytes } => Some(Change::Rule {
            ip,
            table,
            chain,
            bytes,
            gone,
        }),
        ChangedObject::Set => None,
    }
}

/// Calls `look` every `period`, from a thread of its own.
pub fn poll_legacy(period: Duration, mut look: impl FnMut() + Send + 'static) -> Result<Watch, Error> {
    run("iptables-poll", move || {
        thread::sleep(period);
        look();
    })
}

fn run(name: &str, mut turn: impl FnMut() + Send + 'static) -> Result<Watch, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                turn();
            }
        })
        .map_err(|source| Error::Run {
            program: name.to_owned(),
            source,
        })?;
    Ok(Watch { stop })
}

/// What the kernel tells about an x_tables table for little: `struct ipt_getinfo`, the same for both families.
#[repr(C)]
#[derive(Clone, Copy)]
struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

const GET_INFO: libc::c_int = 64;

/// A value that changes when rules of a legacy table come or go: where its base chains begin and end, how many rules
/// it has and how large they are. A rule replaced by one of the same size goes unseen.
pub fn legacy_fingerprint(ip: Ip, table: &'static str) -> Result<[u32; 12], Error> {
    let failed = |source: io::Error| Error::TableInfo { table, source };
    let (family, level) = match ip {
        Ip::V4 => (rustix::net::AddressFamily::INET, libc::IPPROTO_IP),
        Ip::V6 => (rustix::net::AddressFamily::INET6, libc::IPPROTO_IPV6),
    };
    let socket: OwnedFd = rustix::net::socket_with(
        family,
        rustix::net::SocketType::RAW,
        rustix::net::SocketFlags::CLOEXEC,
        Some(rustix::net::ipproto::RAW),
    )
    .map_err(|error| failed(error.into()))?;
    let mut info = TableInfo {
        name: [0; 32],
        valid_hooks: 0,
        hook_entry: [0; 5],
        underflow: [0; 5],
        num_entries: 0,
        size: 0,
    };
    info.name[..table.len()].copy_from_slice(table.as_bytes());
    let mut length = size_of::<TableInfo>() as libc::socklen_t;
    // SAFETY: `info` is a plain structure of the layout that this option fills, and `length` is its size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            GET_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let mut print = [0; 12];
    print[..5].copy_from_slice(&info.hook_entry);
    print[5..10].copy_from_slice(&info.underflow);
    print[10] = info.num_entries;
    print[11] = info.size;
    Ok(print)
}
