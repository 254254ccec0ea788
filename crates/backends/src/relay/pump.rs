//! Moves the bytes of one connection, both ways, until both are over.
//!
//! Each direction reads only when what it read before has been written: a slow reader slows its writer and nobody
//! else. Small messages are copied through a buffer of the thread, so an idle connection holds no memory; a direction
//! that fills whole buffers goes over to splice(2). The end of one direction is passed on as such (half-close); an
//! error of either side ends both.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::pipes::{Pipe, Pipes};
use super::traffic::Counters;
use super::{SCRATCH_SIZE, with_scratch};

/// So many full buffers in a row make a direction use splice.
const FULL_READS: u8 = 2;
/// A spliced chunk below this makes a direction copy again: two system calls and a pipe are not worth it.
const SMALL_CHUNK: usize = 8 * 1024;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Flow {
    /// Read but not written yet, from `written` on.
    pending: Vec<u8>,
    written: usize,
    pipe: Option<Pipe>,
    /// Bytes in the pipe.
    piped: usize,
    full_reads: u8,
    moved: u64,
    ended: bool,
    done: bool,
}

impl Flow {
    fn flush(&mut self, total: &AtomicU64) {
        if self.moved > 0 {
            total.fetch_add(self.moved, Relaxed);
            self.moved = 0;
        }
    }

    /// Moves bytes until the direction is over or has to wait.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        pipes: &Pipes,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write(context, to, pipes))?;
            if self.ended {
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            if self.full_reads >= FULL_READS
                && let Some(pipe) = self.pipe.take().or_else(|| pipes.take())
            {
                ready!(self.poll_fill(context, from, pipe, pipes))?;
            } else {
                ready!(self.poll_copy(context, from, to))?;
            }
        }
    }

    /// Writes what was read before.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        to: &mut TcpStream,
        pipes: &Pipes,
    ) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let count = ready!(Pin::new(&mut *to).poll_write(context, &self.pending[self.written..]))?;
            self.written += count;
            self.moved += count as u64;
        }
        if self.written > 0 {
            self.pending = Vec::new();
            self.written = 0;
        }
        while self.piped > 0 {
            let Some(pipe) = &self.pipe else { break };
            ready!(to.poll_write_ready(context))?;
            match to.try_io(Interest::WRITABLE, || pipe.empty(&*to, self.piped)) {
                Ok(count) => {
                    self.piped -= count;
                    self.moved += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if self.full_reads < FULL_READS
            && let Some(pipe) = self.pipe.take()
        {
            pipes.give_back(pipe);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into the thread's buffer and writes at once what can be written; keeps a copy of the rest only.
    fn poll_copy(
        &mut self,
        context: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> Poll<io::Result<()>> {
        with_scratch(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(from).poll_read(context, &mut buffer))?;
            let data = buffer.filled();
            self.ended = data.is_empty();
            self.full_reads = if data.len() == SCRATCH_SIZE {
                self.full_reads + 1
            } else {
                0
            };
            let mut written = 0;
            while written < data.len() {
                match Pin::new(&mut *to).poll_write(context, &data[written..]) {
                    Poll::Ready(Ok(count)) => written += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.pending = data[written..].to_vec();
                        break;
                    }
                }
            }
            self.moved += written as u64;
            Poll::Ready(Ok(()))
        })
    }

    /// Fills the empty pipe; while there is nothing to read, others may use it.
    fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        from: &mut TcpStream,
        pipe: Pipe,
        pipes: &Pipes,
    ) -> Poll<io::Result<()>> {
        loop {
            match from.poll_read_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    pipes.give_back(pipe);
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    pipes.give_back(pipe);
                    return Poll::Pending;
                }
            }
            match from.try_io(Interest::READABLE, || pipe.fill(&*from)) {
                Ok(count) => {
                    self.ended = count == 0;
                    self.piped = count;
                    self.pipe = Some(pipe);
                    if count < SMALL_CHUNK {
                        self.full_reads = 0;
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    pipes.discard(pipe);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

/// A connection between a client and an endpoint.
#[derive(Debug)]
pub(super) struct Pump<'a> {
    client: TcpStream,
    server: TcpStream,
    up: Flow,
    down: Flow,
    pipes: &'a Pipes,
    counters: &'a Counters,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        client: TcpStream,
        server: TcpStream,
        pipes: &'a Pipes,
        counters: &'a Counters,
    ) -> Self {
        Pump {
            client,
            server,
            up: Flow::default(),
            down: Flow::default(),
            pipes,
            counters,
        }
    }

    /// Makes both sides see a reset instead of an orderly end.
    pub(super) fn reset(&self) {
        for side in [&self.client, &self.server] {
            super::reset_on_close(side);
        }
    }

    fn poll_both(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.up.done
            && let Poll::Ready(end) = self
                .up
                .poll(context, &mut self.client, &mut self.server, self.pipes)
        {
            end?;
            pass_end_on(&self.server, self.down.done);
        }
        if !self.down.done
            && let Poll::Ready(end) = self
                .down
                .poll(context, &mut self.server, &mut self.client, self.pipes)
        {
            end?;
            pass_end_on(&self.client, self.up.done);
        }
        if self.up.done && self.down.done {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

/// Tells `to` that no more bytes come. Closing it says the same, so the second end needs no call of its own.
fn pass_end_on(to: &TcpStream, other_done: bool) {
    if !other_done {
        // A peer that is gone already needs no telling; reading from it will say so.
        let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
    }
}

impl Future for Pump<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let end = self.poll_both(context);
        let counters = self.counters;
        self.up.flush(&counters.received);
        self.down.flush(&counters.sent);
        end
    }
}

impl Drop for Pump<'_> {
    fn drop(&mut self) {
        for flow in [&mut self.up, &mut self.down] {
            if let Some(pipe) = flow.pipe.take() {
                match flow.piped {
                    0 => self.pipes.give_back(pipe),
                    _ => self.pipes.discard(pipe),
                }
            }
        }
    }
}
