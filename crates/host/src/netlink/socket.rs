//! The socket: one for the life of its user, in the network namespace of the thread that opened it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::parse::u32_at;
use super::write::HEADER;
use super::{Error, Message, Refusal, Writer, attrs, messages};

const MSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const MSG_DONE: u16 = libc::NLMSG_DONE as u16;
const MSG_NOOP: u16 = libc::NLMSG_NOOP as u16;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;
const FLAG_CAPPED: u16 = 0x100;
const FLAG_ACK_TLVS: u16 = 0x200;
const ACK_TEXT: u16 = 1;
const ACK_OFFSET: u16 = 2;
/// Larger than any datagram the kernel builds for a dump.
const RECEIVE_BYTES: usize = 256 * 1024;
/// How much the kernel may queue for us: a large table being flushed notifies about every element.
const RECEIVE_QUEUE: usize = 16 * 1024 * 1024;
/// The kernel answers at once; a missing answer is a bug, and must not hang the sync loop.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Space that the kernel wants in the send queue beyond the message.
const SEND_OVERHEAD: usize = 4096;
const DUMP_ATTEMPTS: u32 = 5;

/// Which of the kernel's netlink families a socket speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// Links, addresses, routes.
    Route,
    /// nf_tables, conntrack, ipset, accounting.
    Netfilter,
    /// Generic netlink: IPVS among others.
    Generic,
}

/// Filters what a socket is told at all. Does not keep it open.
#[derive(Debug)]
pub struct PortFilter(Weak<OwnedFd>);

impl PortFilter {
    /// From now on the kernel drops every notification of changes that this port made, and no others, before they are
    /// queued: hearing of a large change takes longer than making it ready. Says whether the socket is still there.
    pub fn ignore(&self, port: u32) -> bool {
        const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        const PORT_AT: u32 = 12;
        let Some(fd) = self.0.upgrade() else {
            return false;
        };
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(LOAD_WORD, 0, 0, PORT_AT),
            // The filter reads words in network order; the port is in the machine's.
            step(EQUAL, 0, 1, port.to_be()),
            step(RETURN, 0, 0, 0),
            step(RETURN, 0, 0, u32::MAX),
        ];
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        // SAFETY: `program` points to as many steps as it says, and the kernel copies them before this returns.
        // Without the filter its user has to leave out the port itself, so a failure needs no answer.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            );
        }
        true
    }
}

/// Whether to wait for a datagram that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    /// As long as [`Socket::set_timeout`] said.
    ForTimeout,
}

/// How a dump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Completion {
    /// Everything was read while nothing changed.
    Whole,
    /// The tables changed meanwhile: entries may be missing or doubled.
    Interrupted,
}

/// A netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: Arc<OwnedFd>,
    port: u32,
    seq: u32,
    send_limit: usize,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens and binds a socket in the calling thread's network namespace.
    pub fn open(bus: Bus) -> Result<Self, Error> {
        let protocol = match bus {
            Bus::Route => None, // NETLINK_ROUTE is protocol zero
            Bus::Netfilter => Some(netlink::NETFILTER),
            Bus::Generic => Some(netlink::GENERIC),
        };
        let setup = |step| {
            move |error: rustix::io::Errno| Error::Setup {
                step,
                source: error.into(),
            }
        };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(setup("socket"))?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(setup("bind"))?;
        let address = rustix::net::getsockname(&fd).map_err(setup("getsockname"))?;
        let port = SocketAddrNetlink::try_from(address)
            .map_err(setup("getsockname"))?
            .pid();
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(setup("receive timeout"))?;
        let mut socket = Self {
            fd: Arc::new(fd),
            port,
            seq: 0,
            send_limit: 0,
            buffer: vec![0; RECEIVE_BYTES],
        };
        socket.option(libc::NETLINK_EXT_ACK, 1)?;
        socket.option(libc::NETLINK_CAP_ACK, 1)?;
        sockopt::set_socket_recv_buffer_size_force(&socket.fd, RECEIVE_QUEUE)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket.fd, RECEIVE_QUEUE))
            .map_err(setup("receive queue"))?;
        socket.make_room(256 * 1024)?;
        Ok(socket)
    }

    /// The socket's netlink port: notifications about our own changes carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// A handle by which another thread can make this socket ignore somebody.
    pub fn port_filter(&self) -> PortFilter {
        PortFilter(Arc::downgrade(&self.fd))
    }

    /// The next sequence number: never zero, never used twice in a row.
    pub fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.checked_add(1).unwrap_or(1);
        self.seq
    }

    /// Asks for notifications of a multicast group (its number, not a bit mask).
    pub fn subscribe(&mut self, group: u32) -> Result<(), Error> {
        self.option(libc::NETLINK_ADD_MEMBERSHIP, group as libc::c_int)
    }

    /// How long [`Self::receive`] waits; `None` for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        sockopt::set_socket_timeout(&self.fd, Timeout::Recv, timeout).map_err(|error| Error::Setup {
            step: "receive timeout",
            source: error.into(),
        })
    }

    /// Sends what the writer holds in one datagram.
    pub fn send(&mut self, writer: &Writer) -> Result<(), Error> {
        if writer.is_too_long() {
            return Err(Error::TooLong);
        }
        let bytes = writer.len();
        self.make_room(bytes)?;
        let failed = |source| Error::Send { bytes, source };
        let sent =
            retry(|| rustix::net::send(&self.fd, writer.bytes(), SendFlags::empty())).map_err(failed)?;
        if sent == bytes {
            Ok(())
        } else {
            Err(failed(io::ErrorKind::WriteZero.into()))
        }
    }

    /// The next datagram; `None` when none came in time.
    pub fn receive(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        let mut flags = RecvFlags::TRUNC;
        flags.set(RecvFlags::DONTWAIT, wait == Wait::No);
        match retry(|| rustix::net::recv(&self.fd, &mut self.buffer[..], flags).map(|(_, length)| length)) {
            Ok(length) => self.buffer.get(..length).map(Some).ok_or(Error::Malformed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::Receive(error)),
        }
    }

    /// A request that the kernel acknowledges.
    pub fn request(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> Result<(), Error> {
        self.get(kind, flags, body, |_| ())
    }

    /// A request whose answers (usually one) are given to `each`, until the kernel acknowledges.
    pub fn get(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
        each: impl FnMut(Message<'_>),
    ) -> Result<(), Error> {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        self.exchange(kind, flags, body, each).map(|_| ())
    }

    /// A dump, streamed: `each` sees every message as it arrives. Says at the end whether the tables changed meanwhile.
    pub fn dump(
        &mut self,
        kind: u16,
        body: impl FnOnce(&mut Writer),
        each: impl FnMut(Message<'_>),
    ) -> Result<Completion, Error> {
        self.exchange(kind, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, body, each)
    }

    /// A dump, collected: starts again when the tables changed meanwhile, a few times at most.
    pub fn collect<T>(
        &mut self,
        kind: u16,
        body: impl Fn(&mut Writer),
        mut each: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            if self.dump(kind, &body, |message| found.extend(each(message)))? == Completion::Whole {
                return Ok(found);
            }
        }
        Err(Error::Interrupted)
    }

    /// Sends a batch whose messages ask for no acknowledgement, and collects what the kernel refused.
    /// The kernel works through a batch before `send` returns, so nothing is waited for.
    pub fn transact(&mut self, writer: &Writer) -> Result<Vec<Refusal>, Error> {
        while self.receive(Wait::No)?.is_some() {}
        self.send(writer)?;
        let mut refused = Vec::new();
        while let Some(datagram) = self.receive(Wait::No)? {
            for message in messages(datagram).filter(|message| message.kind == MSG_ERROR) {
                if let Err(Error::Refused(refusal)) = acknowledgement(&message) {
                    refused.push(refusal);
                }
            }
        }
        Ok(refused)
    }

    fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
        mut each: impl FnMut(Message<'_>),
    ) -> Result<Completion, Error> {
        while self.receive(Wait::No)?.is_some() {} // leftovers of an exchange that failed half-way
        let seq = self.next_seq();
        let mut writer = Writer::with_capacity(256);
        writer.message(kind, flags, seq, body);
        self.send(&writer)?;
        let mut completion = Completion::Whole;
        loop {
            let datagram = self
                .receive(Wait::ForTimeout)?
                .ok_or_else(|| Error::Receive(io::ErrorKind::TimedOut.into()))?;
            for message in messages(datagram).filter(|message| message.seq == seq) {
                if message.flags & FLAG_DUMP_INTERRUPTED != 0 {
                    completion = Completion::Interrupted;
                }
                match message.kind {
                    MSG_ERROR => return acknowledgement(&message).map(|()| completion),
                    MSG_DONE => return done(&message).map(|()| completion),
                    MSG_NOOP => {}
                    _ => each(message),
                }
            }
        }
    }

    /// The kernel refuses datagrams longer than the send queue.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        let wanted = bytes + SEND_OVERHEAD;
        if wanted > self.send_limit {
            sockopt::set_socket_send_buffer_size_force(&self.fd, wanted)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&self.fd, wanted))
                .map_err(|error| Error::Setup {
                    step: "send queue",
                    source: error.into(),
                })?;
            self.send_limit = wanted;
        }
        Ok(())
    }

    fn option(&mut self, name: libc::c_int, value: libc::c_int) -> Result<(), Error> {
        // SAFETY: the pointer and the length describe `value`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                name,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(Error::Setup {
                step: "netlink option",
                source: io::Error::last_os_error(),
            })
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, rustix::io::Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

/// A dump can end in an error, carried by the closing message.
fn done(message: &Message<'_>) -> Result<(), Error> {
    match u32_at(message.payload, 0).map(|code| code as i32) {
        Some(code) if code < 0 => Err(Error::Refused(Refusal {
            seq: message.seq,
            kind: 0,
            errno: -code,
            text: None,
            offset: None,
        })),
        _ => Ok(()),
    }
}

fn acknowledgement(message: &Message<'_>) -> Result<(), Error> {
    let code = u32_at(message.payload, 0).ok_or(Error::Malformed)? as i32;
    if code == 0 {
        return Ok(());
    }
    let request = message.payload.get(4..4 + HEADER).ok_or(Error::Malformed)?;
    let mut refusal = Refusal {
        seq: u32_at(request, 8).ok_or(Error::Malformed)?,
        kind: u16::from_ne_bytes([request[4], request[5]]),
        errno: code.saturating_neg(),
        text: None,
        offset: None,
    };
    if message.flags & FLAG_ACK_TLVS != 0 {
        let echoed = if message.flags & FLAG_CAPPED != 0 {
            HEADER
        } else {
            u32_at(request, 0).unwrap_or(0) as usize
        };
        for attr in attrs(message.after(4 + echoed)) {
            match attr.kind {
                ACK_TEXT => refusal.text = attr.str().map(str::to_owned),
                ACK_OFFSET => refusal.offset = attr.u32(),
                _ => {}
            }
        }
    }
    Err(Error::Refused(refusal))
}
