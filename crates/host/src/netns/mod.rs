//! Throw-away network namespaces, as hosts of a network of one's own.
//! May make namespaces and move threads into them; whatever is made inside goes away with the last one who holds it.
//! Always holds: the namespace of the calling thread stays what it was, except where a function says that it enters.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What was attempted and failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No new namespace.
    #[error("making a network namespace: {0}")]
    Create(#[source] io::Error),
    /// A thread could not move into one.
    #[error("entering a network namespace: {0}")]
    Enter(#[source] io::Error),
    /// The thread that was to work inside panicked.
    #[error("the work inside a network namespace panicked")]
    Panicked,
}

/// A network namespace that lives as long as this value, or longer if something runs in it.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes a namespace with nothing but a loopback interface that is down.
    pub fn new() -> Result<Self, Error> {
        // A namespace is made by leaving the old one, and a thread that ends right after is the cheapest to lose.
        let made = thread::spawn(|| {
            // SAFETY: unshare takes no pointers; only this thread's own network namespace changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(Error::Create(io::Error::last_os_error()));
            }
            File::open("/proc/thread-self/ns/net").map_err(Error::Create)
        });
        let file = made.join().map_err(|_| Error::Panicked)??;
        Ok(Namespace { file })
    }

    /// Moves the calling thread into the namespace, for good.
    pub fn enter(&self) -> Result<(), Error> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| Error::Enter(errno.into()))
    }

    /// Runs work inside, on a thread of its own, and waits for it. Processes that it starts stay inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| work()));
            inside.join().map_err(|_| Error::Panicked)?
        })
    }

    /// The number under which this process holds it: `/proc/<pid>/fd/<number>`.
    pub fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
