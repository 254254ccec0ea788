//! Kernel pipes for splice(2), shared by all connections: a connection holds one only while bytes are in it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use rustix::pipe::{PipeFlags, SpliceFlags};

/// What one pipe may hold. More than the default means fewer system calls for the same bytes.
const CAPACITY: usize = 256 * 1024;
/// Pipes kept open for reuse.
const KEPT: usize = 64;

#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    fn open() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The default size serves as well, if the user's share of pipe memory is used up.
        let capacity = rustix::pipe::fcntl_setpipe_size(&write, CAPACITY).unwrap_or(16 * 4096);
        Ok(Pipe {
            read,
            write,
            capacity,
        })
    }

    /// Moves what `from` has into the pipe.
    pub(super) fn fill(&self, from: impl std::os::fd::AsFd) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(rustix::pipe::splice(
            from,
            None,
            &self.write,
            None,
            self.capacity,
            flags,
        )?)
    }

    /// Moves up to `len` bytes of the pipe into `to`.
    pub(super) fn empty(&self, to: impl std::os::fd::AsFd, len: usize) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(rustix::pipe::splice(&self.read, None, to, None, len, flags)?)
    }
}

#[derive(Debug)]
pub(super) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    open: AtomicUsize,
    limit: usize,
}

impl Pipes {
    pub(super) fn new(limit: usize) -> Self {
        Pipes {
            idle: Mutex::default(),
            open: AtomicUsize::new(0),
            limit,
        }
    }

    /// An empty pipe, unless as many as allowed are in use: then bytes are copied.
    pub(super) fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Some(pipe);
        }
        if self.open.fetch_add(1, Relaxed) >= self.limit {
            self.open.fetch_sub(1, Relaxed);
            return None;
        }
        match Pipe::open() {
            Ok(pipe) => Some(pipe),
            Err(_) => {
                self.open.fetch_sub(1, Relaxed);
                None
            }
        }
    }

    /// Takes an empty pipe back.
    pub(super) fn give_back(&self, pipe: Pipe) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(pipe);
        } else {
            self.discard(pipe);
        }
    }

    /// Closes a pipe that may still hold bytes.
    pub(super) fn discard(&self, pipe: Pipe) {
        drop(pipe);
        self.open.fetch_sub(1, Relaxed);
    }

    /// Pipes that exist.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Those of them that nobody uses.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
