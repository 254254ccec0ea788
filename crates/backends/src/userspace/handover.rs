//! A restart without a gap: the successor gets the sockets themselves.
//!
//! The running process offers every socket over a unix socket. The successor goes on with them and says so; only then
//! does the predecessor stop accepting. A listening socket and its queue of waiting clients are one object of the
//! kernel, which both processes hold in between, so no client can arrive at a moment when nobody listens, and none
//! that waits in the queue is lost. (With SO_REUSEPORT each process has a queue of its own, and closing the old one
//! resets those who wait in it.) Connections that were accepted stay with the predecessor until they end; UDP
//! associations and affinity go over too.

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

use super::relay::SessionRecord;

const GREETING: &str = "ferry userspace sockets 1";
const TAKEN: &[u8] = b"taken\n";
/// How long either side waits for the other to say the next thing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before the next try when files are short.
const PAUSE: Duration = Duration::from_secs(1);
/// No record is longer than this.
const MAX_RECORD: usize = 4096;

/// Everything that goes from one process to the next.
#[derive(Debug, Default)]
pub(super) struct Estate {
    /// Sockets by the name of their door or claim.
    pub(super) sockets: HashMap<String, OwnedFd>,
    /// UDP associations by the name of their door.
    pub(super) sessions: HashMap<String, Vec<SessionRecord>>,
    /// Who sticks to which endpoint and for how long since, by the name of the service port.
    pub(super) sticky: HashMap<String, Vec<(IpAddr, SocketAddr, Duration)>>,
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
pub(super) fn inherit(path: &Path) -> io::Result<Option<(Predecessor, Estate)>> {
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
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (greeting, _) = receive(&stream)?;
    if greeting != GREETING {
        return Err(io::Error::other(format!(
            "the process at {} speaks another language",
            path.display()
        )));
    }
    let mut estate = Estate::default();
    loop {
        let (record, socket) = receive(&stream)?;
        if record == "end" {
            return Ok(Some((Predecessor(stream), estate)));
        }
        // A record that makes no sense concerns one socket; the others are as good as they were.
        if estate.add(&record, socket).is_none() {
            tracing::warn!(record, "a socket was offered in a way that makes no sense");
        }
    }
}

impl Estate {
    fn add(&mut self, record: &str, socket: Option<OwnedFd>) -> Option<()> {
        let mut fields = record.split('\t');
        match (fields.next()?, socket) {
            ("socket", Some(socket)) => {
                self.sockets.insert(fields.next()?.to_owned(), socket);
            }
            ("session", Some(socket)) => {
                let name = fields.next()?.to_owned();
                let client = fields.next()?.parse().ok()?;
                let local = fields.next()?.parse().ok();
                let endpoint = fields.next()?.parse().ok()?;
                let record = SessionRecord {
                    client,
                    local,
                    endpoint,
                    socket,
                };
                self.sessions.entry(name).or_default().push(record);
            }
            ("sticky", None) => {
                let name = fields.next()?.to_owned();
                let client = fields.next()?.parse().ok()?;
                let endpoint = fields.next()?.parse().ok()?;
                let age = Duration::from_millis(fields.next()?.parse().ok()?);
                self.sticky.entry(name).or_default().push((client, endpoint, age));
            }
            _ => return None,
        }
        Some(())
    }

    fn send(&self, stream: &UnixStream) -> io::Result<()> {
        send(stream, GREETING, None)?;
        for (name, socket) in &self.sockets {
            send(stream, &format!("socket\t{name}"), Some(socket.as_fd()))?;
        }
        for (name, records) in &self.sessions {
            for SessionRecord {
                client,
                local,
                endpoint,
                socket,
            } in records
            {
                let local = local.map_or_else(|| "-".to_owned(), |local| local.to_string());
                let record = format!("session\t{name}\t{client}\t{local}\t{endpoint}");
                send(stream, &record, Some(socket.as_fd()))?;
            }
        }
        for (name, records) in &self.sticky {
            for (client, endpoint, age) in records {
                send(
                    stream,
                    &format!("sticky\t{name}\t{client}\t{endpoint}\t{}", age.as_millis()),
                    None,
                )?;
            }
        }
        send(stream, "end", None)
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
    /// Offers what `estate` returns to whoever comes, and calls `retire` when it was taken. Whoever comes has to run
    /// as the same user, or as root.
    pub(super) fn start(
        path: &Path,
        estate: impl Fn() -> io::Result<Estate> + Send + 'static,
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
                    match offer(stream, &estate) {
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
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn offer(mut stream: UnixStream, estate: &impl Fn() -> io::Result<Estate>) -> io::Result<UnixStream> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    whole(estate)?.send(&stream)?;
    let mut answer = [0; TAKEN.len()];
    stream.read_exact(&mut answer)?;
    match answer == TAKEN {
        true => Ok(stream),
        false => Err(io::Error::other("an unknown answer")),
    }
}

/// The estate as soon as it can be had: a successor that got only some of the sockets could not serve where the others
/// listen. Gives up before the successor loses its patience.
fn whole(estate: &impl Fn() -> io::Result<Estate>) -> io::Result<Estate> {
    let deadline = Instant::now() + PATIENCE / 2;
    loop {
        match estate() {
            Err(error) if Instant::now() < deadline => {
                tracing::warn!(%error, "the sockets cannot be handed over yet");
                std::thread::sleep(PAUSE);
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
