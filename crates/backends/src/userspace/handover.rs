//! A restart without a gap: the successor gets the sockets themselves.
//!
//! The running process offers every socket over a unix socket. The successor goes on with them and says so; only then
//! does the predecessor stop accepting. A listening socket and its queue of waiting clients are one object of the
//! kernel, which both processes hold in between, so no client can arrive at a moment when nobody listens, and none
//! that waits in the queue is lost. (With SO_REUSEPORT each process has a queue of its own, and closing the old one
//! resets those who wait in it.) Connections that were accepted stay with the predecessor until they end; UDP
//! associations and affinity go over too. How all of it is written is said in [`wire`].

use std::collections::HashMap;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::ruleset::DoorName;
use super::wire::{self, FamilyPort, Record, SocketName};
use crate::relay::SessionRecord;

const TAKEN: &[u8] = b"taken\n";
/// How long either side waits for the other to say the next thing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait before the next try when files are short.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// No record is longer than this.
const MAX_RECORD: usize = 4096;

/// Everything that goes from one process to the next.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    pub(super) sockets: HashMap<SocketName, OwnedFd>,
    /// UDP associations.
    pub(super) sessions: HashMap<DoorName, Vec<SessionRecord>>,
    /// Who sticks to which endpoint, and since when.
    pub(super) affinity: HashMap<FamilyPort, Vec<(IpAddr, SocketAddr, Duration)>>,
}

/// A predecessor that has made its offer and waits to hear that it was taken.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Tells it to stop accepting, and waits until it has.
    pub(super) fn taken(mut self) -> io::Result<()> {
        self.0.write_all(TAKEN)?;
        // It hangs up when it has stopped.
        self.0.read_to_end(&mut Vec::new()).map(drop)
    }
}

/// Asks the process that serves at `path` for its sockets; none if there is no such process.
pub(super) fn inherit(path: &Path) -> io::Result<Option<(Predecessor, Transfer)>> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (greeting, _) = receive(&stream)?;
    wire::check_greeting(&greeting).map_err(io::Error::other)?;
    let mut transfer = Transfer::default();
    loop {
        let (text, socket) = receive(&stream)?;
        let record = text.parse().ok();
        if record == Some(Record::End) {
            return Ok(Some((Predecessor(stream), transfer)));
        }
        // A record that makes no sense concerns one socket; the others are as good as they were.
        if record.and_then(|record| transfer.add(record, socket)).is_none() {
            tracing::warn!(record = text, "a socket was offered in a way that makes no sense");
        }
    }
}

impl Transfer {
    /// `None` if a record and what is attached to it do not belong together.
    fn add(&mut self, record: Record, socket: Option<OwnedFd>) -> Option<()> {
        match (record, socket) {
            (Record::Socket(name), Some(socket)) => {
                self.sockets.insert(name, socket);
            }
            (
                Record::Session {
                    door,
                    client,
                    local,
                    endpoint,
                },
                Some(socket),
            ) => {
                let record = SessionRecord {
                    client,
                    local,
                    endpoint,
                    socket,
                };
                self.sessions.entry(door).or_default().push(record);
            }
            (
                Record::Affinity {
                    port,
                    client,
                    endpoint,
                    age,
                },
                None,
            ) => self
                .affinity
                .entry(port)
                .or_default()
                .push((client, endpoint, age)),
            _ => return None,
        }
        Some(())
    }

    fn send(self, stream: &UnixStream) -> io::Result<()> {
        send(stream, &wire::greeting(), None)?;
        for (name, socket) in self.sockets {
            send(stream, &Record::Socket(name).to_string(), Some(socket.as_fd()))?;
        }
        for (door, sessions) in self.sessions {
            for session in sessions {
                let record = Record::Session {
                    door: door.clone(),
                    client: session.client,
                    local: session.local,
                    endpoint: session.endpoint,
                };
                send(stream, &record.to_string(), Some(session.socket.as_fd()))?;
            }
        }
        for (port, clients) in self.affinity {
            for (client, endpoint, age) in clients {
                let record = Record::Affinity {
                    port: port.clone(),
                    client,
                    endpoint,
                    age,
                };
                send(stream, &record.to_string(), None)?;
            }
        }
        send(stream, &Record::End.to_string(), None)
    }
}

/// The side that offers: a thread that waits for a successor.
#[derive(Debug)]
pub(super) struct Offering {
    listener: UnixListener,
    path: PathBuf,
    /// Which file at the path is ours: the successor puts its own there.
    file: (u64, u64),
    taken: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Offering {
    /// Offers what `transfer` returns to whoever comes, and calls `retire` when it was taken. Whoever comes has to run
    /// as the same user, or as root.
    pub(super) fn start(
        path: &Path,
        transfer: impl Fn() -> io::Result<Transfer> + Send + 'static,
        retire: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        // A predecessor that is still there was asked before, so what is in the way is a leftover.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let file = identity(path)?;
        let taken = Arc::new(AtomicBool::new(false));
        let (waiting, tell) = (listener.try_clone()?, taken.clone());
        let thread = std::thread::Builder::new()
            .name("ferry-handover".into())
            .spawn(move || {
                while let Some(stream) = next_asking(&waiting) {
                    match offer(stream, &transfer) {
                        Ok(stream) => {
                            // Before anybody hears of it: from here on the path is the successor's.
                            tell.store(true, Ordering::Release);
                            retire();
                            drop(stream);
                            return;
                        }
                        Err(error) => tracing::warn!(%error, "the sockets were asked for and not taken"),
                    }
                }
            })?;
        Ok(Offering {
            listener,
            path: path.to_owned(),
            file,
            taken,
            thread: Some(thread),
        })
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // While the listener is open nobody else's file can have the identity of ours.
        if !self.taken.load(Ordering::Acquire) && identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// The next process that asks for the sockets; none once the listener was shut down.
fn next_asking(listener: &UnixListener) -> Option<UnixStream> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return None,
            // No file is free, for instance: that passes, and a successor may come after it.
            Err(error) => {
                tracing::warn!(%error, "a process that asks for the sockets cannot be heard");
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

fn offer(mut stream: UnixStream, transfer: &impl Fn() -> io::Result<Transfer>) -> io::Result<UnixStream> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    whole(transfer)?.send(&stream)?;
    let mut answer = [0; TAKEN.len()];
    stream.read_exact(&mut answer)?;
    if answer != TAKEN {
        return Err(io::Error::other("an unknown answer"));
    }
    Ok(stream)
}

/// All of it as soon as it can be had: a successor that got only some of the sockets could not serve where the others
/// listen. Gives up before the successor does.
fn whole(transfer: &impl Fn() -> io::Result<Transfer>) -> io::Result<Transfer> {
    let deadline = Instant::now() + TIMEOUT / 2;
    loop {
        match transfer() {
            Err(error) if Instant::now() < deadline => {
                tracing::warn!(%error, "the sockets cannot be handed over yet");
                std::thread::sleep(RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

/// Sends a record: its length, to which the socket is attached, and its text.
fn send(mut stream: &UnixStream, record: &str, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let length = (record.len() as u32).to_be_bytes();
    let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    let sent = rustix::net::sendmsg(
        stream,
        &[IoSlice::new(&length)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    stream.write_all(&length[sent..])?;
    stream.write_all(record.as_bytes())
}

fn receive(mut stream: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut length)];
    let got = rustix::net::recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let socket = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut length[got..])?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::other(format!("a record of {length} bytes")));
    }
    let mut record = vec![0; length];
    stream.read_exact(&mut record)?;
    let record = String::from_utf8(record).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((record, socket))
}
