//! What went through each service port, counted exactly.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of one service port. A connection adds what it moved each time it pauses, so that the sums are
/// exact whenever nothing is in motion and never run backwards.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) opened: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> Totals {
        // Closed before opened: a connection that ends in between must not count as more closed than opened.
        let closed = self.closed.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        Totals {
            connections: opened,
            active: opened.saturating_sub(closed),
            failed: self.failed.load(Relaxed),
            refused: self.refused.load(Relaxed),
            bytes_received: self.received.load(Relaxed),
            bytes_sent: self.sent.load(Relaxed),
        }
    }
}

/// The counters of a service port at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Connections that reached an endpoint (for UDP: associations).
    pub(crate) connections: u64,
    pub(crate) active: u64,
    /// Connections for which no endpoint answered.
    pub(crate) failed: u64,
    /// Connections and datagrams turned away by policy: source ranges, no endpoints.
    pub(crate) refused: u64,
    /// From clients to endpoints.
    pub(crate) bytes_received: u64,
    /// From endpoints to clients.
    pub(crate) bytes_sent: u64,
}
