//! Who is connected to a server, and who has to go when there are too many.
//!
//! A newcomer is always let in. Where that makes too many, the one that has kept us waiting for its request for
//! longest is closed: among those of the newcomer's address once that address has its share, else among all. So
//! clients that say nothing can only displace each other. Those that are being answered go last.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How often too many connections are told in the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How many connections are kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In all.
    pub total: usize,
    /// Of one address.
    pub per_address: usize,
}

/// The connections of one server, or of several that share the limits.
#[derive(Debug)]
pub struct Connections {
    name: &'static str,
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// Counts every arrival and every change between waiting and answering.
    turn: u64,
    reported: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    address: Option<IpAddr>,
    state: State,
    /// Since which turn it has been in this state.
    since: u64,
    close: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// The client owes us a request.
    Waiting,
    /// We owe the client an answer.
    Answering,
}

impl Connections {
    /// Nobody is connected. The name is for the log.
    pub fn new(name: &'static str, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            name,
            limits,
            table: Mutex::default(),
        })
    }

    /// Lets a client in, and another one go if there are too many. A client of a local socket has no address.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Seat {
        // A dual-stack socket shows an IPv4 client by its mapped address.
        let address = address.map(|address| address.to_canonical());
        let close = Arc::new(Notify::new());
        let mut table = self.lock();
        let of_address = table.entries.iter().filter(|entry| entry.address == address);
        if address.is_some() && of_address.count() >= self.limits.per_address {
            table.close_one(|entry| entry.address == address);
            self.report(&mut table, address);
        } else if table.entries.len() >= self.limits.total {
            table.close_one(|_| true);
            self.report(&mut table, None);
        }
        let since = table.next_turn();
        table.entries.push(Entry {
            address,
            state: State::Waiting,
            since,
            close: Arc::clone(&close),
        });
        Seat {
            connections: Arc::clone(self),
            close,
        }
    }

    /// Lets one client go, as when there are no file descriptors for another.
    pub fn make_room(&self) {
        self.lock().close_one(|_| true);
    }

    fn report(&self, table: &mut Table, address: Option<IpAddr>) {
        let now = Instant::now();
        if table.reported.is_some_and(|at| now < at + REPORT_INTERVAL) {
            return;
        }
        table.reported = Some(now);
        tracing::warn!(
            server = self.name,
            connections = table.entries.len(),
            client = address.map(|address| address.to_string()),
            "Too many connections; closing those that have been silent for longest"
        );
    }

    // Every change to the table is complete before the next can fail, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn close_one(&mut self, which: impl Fn(&Entry) -> bool) {
        let candidates = self.entries.iter().enumerate().filter(|(_, entry)| which(entry));
        let chosen = candidates.min_by_key(|(_, entry)| (entry.state, entry.since));
        if let Some((index, _)) = chosen {
            self.entries.swap_remove(index).close.notify_one();
        }
    }
}

/// One client's place; given back when dropped.
#[derive(Debug)]
pub struct Seat {
    connections: Arc<Connections>,
    close: Arc<Notify>,
}

impl Seat {
    /// The client's request is there.
    pub fn answering(&self) {
        self.change(State::Answering);
    }

    /// The answer is made; the client may send another request.
    pub fn waiting(&self) {
        self.change(State::Waiting);
    }

    /// Resolves when the place is wanted for somebody else.
    pub async fn taken(&self) {
        self.close.notified().await;
    }

    fn change(&self, state: State) {
        let mut table = self.connections.lock();
        let since = table.next_turn();
        if let Some(entry) = table.entries.iter_mut().find(|entry| self.is_mine(entry)) {
            entry.state = state;
            entry.since = since;
        }
    }

    fn is_mine(&self, entry: &Entry) -> bool {
        Arc::ptr_eq(&entry.close, &self.close)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        table.entries.retain(|entry| !self.is_mine(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    fn connections() -> Arc<Connections> {
        Connections::new(
            "test",
            Limits {
                total: 4,
                per_address: 2,
            },
        )
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    fn is_taken(seat: &Seat) -> bool {
        let taken = std::pin::pin!(seat.taken());
        taken.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn taken(seats: &[Seat]) -> Vec<usize> {
        (0..seats.len()).filter(|i| is_taken(&seats[*i])).collect()
    }

    #[test]
    fn an_address_displaces_only_its_own() {
        let connections = connections();
        let seats: Vec<Seat> = [1, 2, 1].map(|last| connections.admit(address(last))).into();
        assert_eq!(taken(&seats), [] as [usize; 0]);
        let _another = connections.admit(address(1));
        assert_eq!(taken(&seats), [0], "its oldest");
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        let _mapped = connections.admit(Some(mapped));
        assert_eq!(taken(&seats), [2], "it is the same address");
    }

    #[test]
    fn when_all_is_full_the_longest_silent_goes_and_the_answered_go_last() {
        let connections = connections();
        let mut seats: Vec<Seat> = (0..4).map(|last| connections.admit(address(last))).collect();
        seats[0].answering();
        seats[1].answering();
        seats[1].waiting();
        seats.push(connections.admit(address(5)));
        assert_eq!(taken(&seats), [2]);
        seats.push(connections.admit(address(6)));
        assert_eq!(taken(&seats), [3]);
        seats.push(connections.admit(address(7)));
        assert_eq!(taken(&seats), [1], "it asked before, but is silent since");
        for i in [4, 5, 6] {
            seats[i].answering();
        }
        seats.push(connections.admit(address(8)));
        assert_eq!(taken(&seats), [0], "the one that takes its answer slowest");
    }

    #[test]
    fn a_place_is_given_back() {
        let connections = connections();
        for _ in 0..100 {
            let seat = connections.admit(None);
            seat.answering();
        }
        assert!(connections.lock().entries.is_empty());
        let seats: Vec<Seat> = (0..4).map(|_| connections.admit(None)).collect();
        assert_eq!(taken(&seats), [] as [usize; 0], "a local client has no share");
        connections.make_room();
        assert_eq!(taken(&seats), [0]);
    }
}
