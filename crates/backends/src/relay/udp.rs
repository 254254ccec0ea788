//! UDP: an association for each client, with a socket of its own towards one endpoint.
//!
//! Answers leave from the address that the client asked. An association ends when nothing was heard from either side
//! for the idle time, when its endpoint is found not to listen, or when it is the oldest and room is needed.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferry_host::datagram;
use ferry_model::{Action, Scope};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::balancer::{Lease, Target};
use super::recent::{LastUsed, Recent};
use super::{Door, Shared, is_exhaustion, with_scratch};

/// Datagrams taken from a socket before other tasks get their turn.
const BATCH: usize = 64;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A client, and the address of ours that it talks to.
type Key = (SocketAddr, Option<IpAddr>);
type Table = Recent<Key, Arc<Session>>;

#[derive(Debug)]
struct Session {
    socket: UdpSocket,
    lease: Lease,
    /// In microseconds since START.
    used: AtomicU64,
    over: AtomicBool,
    ending: Notify,
    shared: Arc<Shared>,
}

impl Session {
    /// Not by the runtime, which does not know yet that a new socket can be written to.
    fn send(&self, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(
            &self.socket,
            data,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )?)
    }

    fn finish(&self) {
        self.over.store(true, Relaxed);
        self.ending.notify_one();
    }

    fn touch(&self) {
        self.used.store(START.elapsed().as_micros() as u64, Relaxed);
    }
}

impl LastUsed for Session {
    fn last_used(&self) -> Instant {
        *START + Duration::from_micros(self.used.load(Relaxed))
    }
}

impl LastUsed for Arc<Session> {
    fn last_used(&self) -> Instant {
        Session::last_used(self)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.sessions.fetch_sub(1, Relaxed);
    }
}

/// An association on its way to another process.
#[derive(Debug)]
pub(crate) struct SessionRecord {
    pub(crate) client: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) endpoint: SocketAddr,
    pub(crate) socket: OwnedFd,
}

/// The associations of one door.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<Table>>);

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn records(&self) -> Vec<SessionRecord> {
        let record = |((client, local), session): (&Key, &Arc<Session>)| {
            let socket = session.socket.as_fd().try_clone_to_owned().ok()?;
            Some(SessionRecord {
                client: *client,
                local: *local,
                endpoint: session.lease.0.address,
                socket,
            })
        };
        self.table().iter().filter_map(record).collect()
    }

    fn evict_oldest(&self) {
        let oldest = self.table().pop_oldest();
        if let Some((_, session)) = oldest {
            session.finish();
        }
    }

    /// Ends an association, unless the client has another one by now.
    fn end(&self, key: &Key, session: &Arc<Session>) {
        session.finish();
        let mut table = self.table();
        if table
            .get(key)
            .is_some_and(|current| Arc::ptr_eq(current, session))
        {
            table.remove(key);
        }
    }
}

/// Takes datagrams for as long as the returned future runs.
pub(super) fn receive(
    listener: Arc<UdpSocket>,
    door: Arc<Door>,
    shared: Arc<Shared>,
    restored: Vec<SessionRecord>,
) -> (impl Future<Output = ()> + Send + 'static, Sessions) {
    let sessions = Sessions::default();
    let receiver = Receiver {
        listener,
        door,
        shared,
        sessions: sessions.clone(),
    };
    for record in restored {
        receiver.restore(record);
    }
    let task = async move {
        // An error of the poller means that the runtime is going away.
        while receiver.listener.readable().await.is_ok() {
            for _ in 0..BATCH {
                if receiver
                    .listener
                    .try_io(Interest::READABLE, || receiver.take_one())
                    .is_err()
                {
                    break;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    (task, sessions)
}

struct Receiver {
    listener: Arc<UdpSocket>,
    door: Arc<Door>,
    shared: Arc<Shared>,
    sessions: Sessions,
}

impl Receiver {
    /// Takes one datagram to its endpoint; the only error that comes back is that there is none to take.
    fn take_one(&self) -> io::Result<()> {
        with_scratch(|buffer| {
            let arrival = match datagram::receive(self.listener.as_fd(), buffer) {
                Ok(arrival) => arrival,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // An answer of ours did not reach its client: nothing to do with what comes next.
                Err(_) => return Ok(()),
            };
            self.forward((arrival.peer, arrival.local), &buffer[..arrival.len]);
            Ok(())
        })
    }

    fn forward(&self, key: Key, data: &[u8]) {
        let client = key.0.ip().to_canonical();
        let counters = &self.door.port.counters;
        let Action::Forward { scope, .. } = self.door.access().action(client, || key.1) else {
            counters.refused.fetch_add(1, Relaxed);
            return;
        };
        // An endpoint may turn out not to listen: the datagram then has a second try elsewhere.
        for _ in 0..2 {
            let Some(session) = self.session(key, scope) else {
                counters.failed.fetch_add(1, Relaxed);
                return;
            };
            match session.send(data) {
                Ok(_) => {
                    session.touch();
                    counters.received.fetch_add(data.len() as u64, Relaxed);
                    return;
                }
                // The endpoint's queue is full: losing a datagram is what UDP does then.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    give_up(&self.door, &self.sessions, &key, &session);
                }
                // Too large for the way to the endpoint, or no way: the client's business.
                Err(_) => return,
            }
        }
    }

    /// The client's association, a new one if it has none to an endpoint that is still there.
    fn session(&self, key: Key, scope: Scope) -> Option<Arc<Session>> {
        let current = self
            .sessions
            .table()
            .get(&key)
            .filter(|session| !session.over.load(Relaxed))
            .cloned();
        if let Some(session) = &current
            && !session.lease.0.is_gone()
        {
            return current;
        }
        let client = key.0.ip().to_canonical();
        let Some(target) = self.door.port.balancer.pick(scope, client, &[], Instant::now()) else {
            return current;
        };
        self.make_room();
        let socket = match connect(target.address) {
            Err(error) if is_exhaustion(&error) => {
                self.sessions.evict_oldest();
                connect(target.address)
            }
            socket => socket,
        };
        match socket {
            Ok(socket) => Some(self.open(key, target, socket)),
            Err(error) => {
                tracing::debug!(endpoint = %target.address, %error, "an endpoint cannot be reached");
                None
            }
        }
    }

    fn make_room(&self) {
        if self.shared.sessions.load(Relaxed) >= self.shared.max_sessions {
            self.sessions.evict_oldest();
        }
    }

    fn open(&self, key: Key, target: Arc<Target>, socket: UdpSocket) -> Arc<Session> {
        self.shared.sessions.fetch_add(1, Relaxed);
        self.door.port.counters.opened.fetch_add(1, Relaxed);
        let session = Arc::new(Session {
            socket,
            lease: Lease::new(target),
            used: AtomicU64::new(START.elapsed().as_micros() as u64),
            over: AtomicBool::new(false),
            ending: Notify::new(),
            shared: self.shared.clone(),
        });
        self.sessions.table().insert(key, session.clone());
        let answers = Answers {
            key,
            door: self.door.clone(),
            listener: Arc::downgrade(&self.listener),
            sessions: self.sessions.clone(),
            idle: self.shared.settings.udp_idle,
        };
        tokio::spawn(answers.run(session.clone()));
        session
    }

    /// Goes on with an association of a predecessor, if its endpoint is still one of ours.
    fn restore(&self, record: SessionRecord) {
        let Some(target) = self.door.port.balancer.target(record.endpoint) else {
            return;
        };
        let socket = std::net::UdpSocket::from(record.socket);
        if let Ok(socket) = UdpSocket::from_std(socket) {
            self.open((record.client, record.local), target, socket);
        }
    }
}

/// The endpoint does not listen: its clients choose again.
fn give_up(door: &Door, sessions: &Sessions, key: &Key, session: &Arc<Session>) {
    session.lease.0.failed(Instant::now());
    door.port
        .balancer
        .forget(key.0.ip().to_canonical(), session.lease.0.address);
    sessions.end(key, session);
}

fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The way back from an endpoint to one client. It does not keep the door's socket open.
struct Answers {
    key: Key,
    door: Arc<Door>,
    listener: Weak<UdpSocket>,
    sessions: Sessions,
    idle: Duration,
}

impl Answers {
    async fn run(self, session: Arc<Session>) {
        let timer = sleep_until((session.last_used() + self.idle).into());
        tokio::pin!(timer);
        loop {
            tokio::select! {
                ready = session.socket.readable() => {
                    if ready.is_err() || !self.pass_on(&session) {
                        break;
                    }
                    tokio::task::coop::consume_budget().await;
                }
                () = &mut timer => {
                    let over = session.last_used() + self.idle;
                    if over <= Instant::now() {
                        break;
                    }
                    timer.as_mut().reset(over.into());
                }
                () = session.ending.notified() => break,
            }
        }
        self.sessions.end(&self.key, &session);
        self.door.port.counters.closed.fetch_add(1, Relaxed);
    }

    /// Passes on what the endpoint sent; says whether there may be more.
    fn pass_on(&self, session: &Arc<Session>) -> bool {
        let Some(listener) = self.listener.upgrade() else {
            return false;
        };
        with_scratch(|buffer| {
            for _ in 0..BATCH {
                match session.socket.try_recv(buffer) {
                    Ok(len) => {
                        session.touch();
                        let (client, local) = self.key;
                        // A client that cannot be reached, or whose queue is full, loses this datagram.
                        if datagram::send(listener.as_fd(), &buffer[..len], client, local).is_ok() {
                            self.door.port.counters.sent.fetch_add(len as u64, Relaxed);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(_) => {
                        give_up(&self.door, &self.sessions, &self.key, session);
                        return false;
                    }
                }
            }
            true
        })
    }
}
