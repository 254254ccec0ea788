//! The relay: sockets in, sockets out, and what happens between them. Userspace mode forwards by it; nftables mode
//! answers node ports on `::1` with it.
//!
//! Touches sockets and pipes only; it knows nothing of plans or rules, and owns the only threads of tokio in backends.
//! Always holds: no client waits for another. A connection is accepted, dialled and copied in a task of its own, and
//! what there is too much of waits in the kernel's queue.

mod access;
mod balancer;
mod pipes;
mod proxy_protocol;
mod pump;
mod recent;
mod sockets;
mod tcp;
mod traffic;
mod udp;
mod workers;

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use balancer::{Balancer, Target};
use pipes::Pipes;
use traffic::Counters;
use workers::Workers;

pub(crate) use access::{Access, Home};
pub(crate) use balancer::Pools;
pub use sockets::hold;
pub(crate) use sockets::{Listening, adopt, listen, set_filter};
pub(crate) use udp::SessionRecord;

/// Files for a hundred thousand connections.
const ENOUGH_FILES: u64 = 1 << 18;

/// How long answers may take that nobody but us can pass on.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What the relay may use and how long it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads; zero means one for each processor.
    pub threads: usize,
    /// TCP connections at a time; zero means as many as the limit on open files allows.
    pub max_connections: usize,
    /// UDP associations at a time; zero means a share of the limit on open files.
    pub max_sessions: usize,
    /// How long a UDP association outlives its last packet.
    pub udp_idle: Duration,
    /// How long each attempt to reach an endpoint may take; there are as many attempts.
    pub dial: Vec<Duration>,
    /// How long connections to a removed endpoint may go on; none means for as long as they like.
    pub drain: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            threads: 0,
            max_connections: 0,
            max_sessions: 0,
            udp_idle: Duration::from_secs(30),
            dial: [250, 500, 1000, 2000].map(Duration::from_millis).to_vec(),
            drain: Some(Duration::from_secs(3600)),
        }
    }
}

/// One service port: its endpoints and counters, whatever the doors that lead to it.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub(crate) balancer: Balancer,
    pub(crate) counters: Counters,
    options: RwLock<PortOptions>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortOptions {
    /// Endpoints get a PROXY protocol header before the first byte.
    pub(crate) proxy_protocol: bool,
    /// Stands for the relay's own limit.
    pub(crate) drain: Option<Duration>,
}

impl Port {
    pub(crate) fn options(&self) -> PortOptions {
        *self.options.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_options(&self, options: PortOptions) {
        *self.options.write().unwrap_or_else(PoisonError::into_inner) = options;
    }
}

/// One way into a service port, with its own rule about who may come in.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) port: Arc<Port>,
    access: RwLock<Arc<Access>>,
}

impl Door {
    pub(crate) fn new(port: Arc<Port>, access: Access) -> Arc<Self> {
        Arc::new(Door {
            port,
            access: RwLock::new(Arc::new(access)),
        })
    }

    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }
}

/// What all tasks share.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    connections: Arc<Semaphore>,
    pipes: Pipes,
    sessions: AtomicUsize,
    max_sessions: usize,
}

/// The running relay. Dropping it ends every connection.
#[derive(Debug)]
pub(crate) struct Relay {
    workers: Workers,
    shared: Arc<Shared>,
    max_connections: usize,
}

/// A door in service. Dropping it closes the door; those who are inside stay.
#[derive(Debug)]
pub(crate) struct Serving {
    tasks: Vec<JoinHandle<()>>,
    udp: Option<udp::Sessions>,
    /// The socket by which answers leave, as long as the door is open.
    answering: Weak<UdpSocket>,
}

impl Serving {
    /// The associations of a UDP door, to be handed over.
    pub(crate) fn sessions(&self) -> Vec<SessionRecord> {
        self.udp.as_ref().map(udp::Sessions::records).unwrap_or_default()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Relay {
    pub(crate) fn start(settings: Settings) -> io::Result<Self> {
        let workers = Workers::start(settings.threads)?;
        raise_file_limit();
        // A connection needs two files, an association one; some are left for listeners, pipes and the daemon.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) as usize;
        let or = |chosen: usize, default: usize| if chosen == 0 { default.max(1) } else { chosen };
        let max_connections = or(settings.max_connections, files * 2 / 5).min(Semaphore::MAX_PERMITS);
        let shared = Shared {
            connections: Arc::new(Semaphore::new(max_connections)),
            pipes: Pipes::new((files / 64).clamp(2, 1024)),
            sessions: AtomicUsize::new(0),
            max_sessions: or(settings.max_sessions, files / 10),
            settings,
        };
        Ok(Relay {
            workers,
            shared: Arc::new(shared),
            max_connections,
        })
    }

    /// Lets clients in through a listening socket.
    pub(crate) fn serve(
        &self,
        listening: Listening,
        door: Arc<Door>,
        restored: Vec<SessionRecord>,
    ) -> io::Result<Serving> {
        match listening {
            Listening::Tcp(listener) => {
                let mut serving = Serving {
                    tasks: Vec::new(),
                    udp: None,
                    answering: Weak::new(),
                };
                for worker in self.workers.some() {
                    let _inside = worker.enter();
                    let accepting = tcp::accept(listener.try_clone()?, door.clone(), self.shared.clone())?;
                    serving.tasks.push(worker.spawn(accepting));
                }
                Ok(serving)
            }
            Listening::Udp(socket) => {
                let worker = self.workers.one();
                let _inside = worker.enter();
                socket.set_nonblocking(true)?;
                let listener = Arc::new(UdpSocket::from_std(socket)?);
                let answering = Arc::downgrade(&listener);
                let (receiving, sessions) = udp::receive(listener, door, self.shared.clone(), restored);
                Ok(Serving {
                    tasks: vec![worker.spawn(receiving)],
                    udp: Some(sessions),
                    answering,
                })
            }
        }
    }

    /// Closes a door, and returns when its socket is no longer in use. Not to be called from a task.
    pub(crate) fn stop(&self, mut serving: Serving) {
        for task in serving.tasks.drain(..) {
            task.abort();
            let _ = self.workers.one().block_on(task);
        }
    }

    /// Leaves a door to another process that has its socket too. Answers to those whom we let in still go out by it for
    /// a moment: the other process knows nothing of the last of them.
    pub(crate) fn leave(&self, serving: Serving) {
        let answering = serving.answering.upgrade();
        self.stop(serving);
        if let Some(socket) = answering {
            self.workers.one().spawn(async move {
                tokio::time::sleep(LAST_ANSWERS).await;
                drop(socket);
            });
        }
    }

    /// Lets the connections to endpoints that left end by themselves, and ends them at the deadline.
    pub(crate) fn drain(&self, left: Vec<Arc<Target>>, limit: Option<Duration>) {
        let Some(limit) = limit.or(self.shared.settings.drain) else {
            return;
        };
        for target in left {
            let Some(departure) = target.departure() else {
                continue;
            };
            self.workers.one().spawn(async move {
                tokio::time::sleep(limit).await;
                target.cut_since(departure);
            });
        }
    }

    /// Open TCP connections.
    pub(crate) fn connections(&self) -> usize {
        self.max_connections
            .saturating_sub(self.shared.connections.available_permits())
    }

    /// Open UDP associations.
    pub(crate) fn sessions(&self) -> usize {
        self.shared.sessions.load(Relaxed)
    }
}

/// As far as it may be raised: a lower limit would only mean fewer connections. The hard limit, which takes a
/// capability, is raised only to what is of use.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let to = |files: Option<u64>| {
        let raised = Rlimit {
            current: files,
            maximum: files,
        };
        setrlimit(Resource::Nofile, raised)
    };
    let beyond =
        limit.maximum.is_some_and(|maximum| maximum < ENOUGH_FILES) && to(Some(ENOUGH_FILES)).is_ok();
    if !beyond && let Err(error) = to(limit.maximum) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

/// Makes closing the socket a reset: the other side learns that something broke.
fn reset_on_close(socket: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Whether an error says that the process or the machine has run out of something for now.
fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// The largest datagram, and what a read of a stream takes at a time.
const SCRATCH_SIZE: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_SIZE].into_boxed_slice());
}

/// Lends the buffer of the thread: connections that wait hold none.
fn with_scratch<T>(body: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| body(scratch))
}

#[cfg(test)]
mod tests;
