//! The threads of the relay: each with its own poller and its own connections, none waiting for another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

/// A socket is accepted from by so many threads at most: each of them wakes up for every client.
const ACCEPTING: usize = 8;

#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Zero means one thread for each processor.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let count = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            chosen => chosen,
        };
        let workers = (0..count).map(|_| Worker::start()).collect::<io::Result<_>>()?;
        Ok(Workers {
            workers,
            next: AtomicUsize::new(0),
        })
    }

    /// One of the threads, each in turn.
    pub(super) fn one(&self) -> &Handle {
        let at = self.next.fetch_add(1, Relaxed) % self.workers.len();
        &self.workers[at].handle
    }

    /// The threads that share the work of one socket.
    pub(super) fn some(&self) -> impl Iterator<Item = &Handle> {
        let count = self.workers.len();
        let first = self.next.fetch_add(ACCEPTING.min(count), Relaxed);
        (0..ACCEPTING.min(count)).map(move |step| &self.workers[(first + step) % count].handle)
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ferry-relay".into())
            .spawn(move || runtime.block_on(stopped.notified()))?;
        Ok(Worker {
            handle,
            stop,
            thread: Some(thread),
        })
    }
}

/// Ends every task: their sockets are closed when this returns.
impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.stop.notify_one();
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
