//! Who gets the next connection of a service port: round robin, session affinity, endpoints that do not answer.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_model::Scope;
use rand::seq::SliceRandom;
use tokio::sync::Notify;

use super::recent::{LastUsed, Recent};

/// Affinity records of one service port; the least recently used ones go beyond it.
const MAX_STICKY: usize = 1 << 18;
/// How long an endpoint that did not answer is asked last: doubled by each further failure.
const FIRST_SUSPICION: Duration = Duration::from_millis(500);
const LONGEST_SUSPICION: Duration = Duration::from_secs(15);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The endpoints of a service port as the plan has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pools {
    pub(crate) cluster: Vec<SocketAddr>,
    pub(crate) local: Vec<SocketAddr>,
    /// All that may keep what they have: connections to any other endpoint are drained.
    pub(crate) known: Vec<SocketAddr>,
}

/// One endpoint of one service port, shared by the connections that go to it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    open: AtomicUsize,
    failures: AtomicUsize,
    /// In milliseconds since START; zero when the endpoint is in good standing.
    suspect_until: AtomicU64,
    gone: AtomicBool,
    /// Counts departures, so that the deadline of one does not cut connections after a return.
    departures: AtomicUsize,
    cut: AtomicBool,
    cutting: Notify,
}

impl Target {
    fn new(address: SocketAddr) -> Self {
        Target {
            address,
            open: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            suspect_until: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            departures: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
            cutting: Notify::new(),
        }
    }

    /// Whether the endpoint was removed; what goes to it is being drained.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Returns when the connections to this endpoint have to end.
    pub(crate) async fn cut(&self) {
        let cutting = self.cutting.notified();
        if !self.cut.load(Relaxed) {
            cutting.await;
        }
    }

    /// Which departure this is, for `cut_since`; none while the endpoint is there.
    pub(crate) fn departure(&self) -> Option<usize> {
        self.is_gone().then(|| self.departures.load(Relaxed))
    }

    /// Ends every connection, unless the endpoint came back after that departure.
    pub(crate) fn cut_since(&self, departure: usize) {
        if self.departure() == Some(departure) {
            self.cut.store(true, Relaxed);
            self.cutting.notify_waiters();
        }
    }

    pub(crate) fn failed(&self, now: Instant) {
        let failures = self.failures.fetch_add(1, Relaxed).min(16) as u32;
        let pause = FIRST_SUSPICION
            .saturating_mul(1 << failures)
            .min(LONGEST_SUSPICION);
        let until = now.duration_since(*START) + pause;
        self.suspect_until.store(until.as_millis() as u64, Relaxed);
    }

    pub(crate) fn answered(&self) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.suspect_until.store(0, Relaxed);
        }
    }

    fn is_suspect(&self, now: Instant) -> bool {
        let until = self.suspect_until.load(Relaxed);
        until != 0 && now.duration_since(*START).as_millis() < u128::from(until)
    }

    fn leave(&self) {
        self.departures.fetch_add(1, Relaxed);
        self.gone.store(true, Relaxed);
    }

    fn come_back(&self) {
        self.gone.store(false, Relaxed);
        self.cut.store(false, Relaxed);
    }
}

/// Counts one connection to a target for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lease(pub(crate) Arc<Target>);

impl Lease {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        target.open.fetch_add(1, Relaxed);
        Lease(target)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug, Default)]
struct Ring {
    targets: Vec<Arc<Target>>,
    next: usize,
}

impl Ring {
    /// A changed set starts in a new random order, so that nodes do not all begin with the same endpoint.
    fn update(&mut self, wanted: &[SocketAddr], targets: &HashMap<SocketAddr, Arc<Target>>) {
        let unchanged = self.targets.len() == wanted.len() && {
            let have: HashSet<SocketAddr> = self.targets.iter().map(|target| target.address).collect();
            wanted.iter().all(|address| have.contains(address))
        };
        if !unchanged {
            self.targets = wanted
                .iter()
                .filter_map(|address| targets.get(address).cloned())
                .collect();
            self.targets.shuffle(&mut rand::rng());
            self.next = 0;
        }
    }

    fn contains(&self, address: SocketAddr) -> bool {
        self.targets.iter().any(|target| target.address == address)
    }

    /// The next endpoint in turn: at best one not tried yet and not under suspicion, at worst any.
    fn next(&mut self, tried: &[SocketAddr], now: Instant) -> Option<Arc<Target>> {
        let count = self.targets.len();
        let mut best: Option<(u8, usize)> = None;
        for step in 0..count {
            let at = (self.next + step) % count;
            let target = &self.targets[at];
            let rank = 2 * u8::from(tried.contains(&target.address)) + u8::from(target.is_suspect(now));
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, at));
            }
            if rank == 0 {
                break;
            }
        }
        let (_, at) = best?;
        self.next = (at + 1) % count;
        Some(self.targets[at].clone())
    }
}

#[derive(Debug)]
struct Sticky {
    address: SocketAddr,
    used: Instant,
}

impl LastUsed for Sticky {
    fn last_used(&self) -> Instant {
        self.used
    }
}

#[derive(Debug, Default)]
struct State {
    targets: HashMap<SocketAddr, Arc<Target>>,
    cluster: Ring,
    local: Ring,
    affinity: Option<Duration>,
    sticky: Recent<IpAddr, Sticky>,
}

/// The endpoints of one service port. All of its frontends share it, so that a client keeps its endpoint whichever
/// address of the service it uses.
#[derive(Debug, Default)]
pub(crate) struct Balancer {
    state: Mutex<State>,
}

impl Balancer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the endpoints and the affinity of a new plan; returns the endpoints that left with connections
    /// still open.
    pub(crate) fn update(&self, pools: &Pools, affinity: Option<Duration>) -> Vec<Arc<Target>> {
        let mut state = self.state();
        let state = &mut *state;
        let known: HashSet<SocketAddr> = pools
            .known
            .iter()
            .chain(&pools.cluster)
            .chain(&pools.local)
            .copied()
            .collect();
        for address in &known {
            let target = state
                .targets
                .entry(*address)
                .or_insert_with(|| Arc::new(Target::new(*address)));
            if target.is_gone() {
                target.come_back();
            }
        }
        let mut left = Vec::new();
        state.targets.retain(|address, target| {
            if known.contains(address) {
                return true;
            }
            if !target.is_gone() {
                target.leave();
                left.push(target.clone());
            }
            target.open_connections() > 0
        });
        state.cluster.update(&pools.cluster, &state.targets);
        state.local.update(&pools.local, &state.targets);
        state.affinity = affinity;
        match affinity {
            None => state.sticky = Recent::default(),
            Some(_) => state.sticky.retain(|_, sticky| known.contains(&sticky.address)),
        }
        left
    }

    /// Takes leave of every endpoint, when no door leads here any more; returns those that were there. A client that
    /// came in before that still finds one.
    pub(crate) fn retire(&self) -> Vec<Arc<Target>> {
        let state = self.state();
        let there = state.targets.values().filter(|target| !target.is_gone());
        there.inspect(|target| target.leave()).cloned().collect()
    }

    /// Chooses the endpoint of a new connection. `tried` names those that this connection failed to reach:
    /// once there is one, affinity is set aside and the client sticks to the next endpoint.
    pub(crate) fn pick(
        &self,
        scope: Scope,
        client: IpAddr,
        tried: &[SocketAddr],
        now: Instant,
    ) -> Option<Arc<Target>> {
        let mut state = self.state();
        let State {
            targets,
            cluster,
            local,
            affinity,
            sticky,
        } = &mut *state;
        let ring = match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        };
        let Some(lifetime) = *affinity else {
            return ring.next(tried, now);
        };
        if tried.is_empty()
            && let Some(record) = sticky.get_mut(&client)
            && now.saturating_duration_since(record.used) < lifetime
            && ring.contains(record.address)
        {
            record.used = now;
            return targets.get(&record.address).cloned();
        }
        let target = ring.next(tried, now)?;
        sticky.insert(
            client,
            Sticky {
                address: target.address,
                used: now,
            },
        );
        if let Some(cutoff) = now.checked_sub(lifetime) {
            // Two for one: expired records go faster than new ones come.
            for _ in 0..2 {
                sticky.pop_unused_since(cutoff);
            }
        }
        if sticky.len() > MAX_STICKY {
            sticky.pop_oldest();
        }
        Some(target)
    }

    /// The endpoint of that address, if it is one of ours.
    pub(crate) fn target(&self, address: SocketAddr) -> Option<Arc<Target>> {
        self.state()
            .targets
            .get(&address)
            .filter(|target| !target.is_gone())
            .cloned()
    }

    /// Endpoints that have connections, and how many.
    pub(crate) fn open(&self) -> Vec<(SocketAddr, usize)> {
        let state = self.state();
        let open = state.targets.values();
        let open = open.map(|target| (target.address, target.open_connections()));
        open.filter(|(_, open)| *open > 0).collect()
    }

    /// Endpoints that are gone but still have connections, and how many.
    pub(crate) fn draining(&self) -> (usize, usize) {
        let state = self.state();
        let open = state
            .targets
            .values()
            .filter(|target| target.is_gone())
            .map(|target| target.open_connections());
        open.filter(|open| *open > 0)
            .fold((0, 0), |(targets, sum), open| (targets + 1, sum + open))
    }

    /// Makes a client choose anew, if it still sticks to that endpoint.
    pub(crate) fn forget(&self, client: IpAddr, address: SocketAddr) {
        let mut state = self.state();
        if state
            .sticky
            .get(&client)
            .is_some_and(|record| record.address == address)
        {
            state.sticky.remove(&client);
        }
    }

    /// Which clients stick to what, and for how long since.
    pub(crate) fn sticky(&self) -> Vec<(IpAddr, SocketAddr, Duration)> {
        let now = Instant::now();
        let state = self.state();
        let age = |used| now.saturating_duration_since(used);
        state
            .sticky
            .iter()
            .map(|(client, record)| (*client, record.address, age(record.used)))
            .collect()
    }

    /// Takes over what `sticky` of a predecessor returned, for the endpoints that are still there.
    pub(crate) fn restore_sticky(&self, records: &[(IpAddr, SocketAddr, Duration)]) {
        let now = Instant::now();
        let mut state = self.state();
        let Some(lifetime) = state.affinity else { return };
        for (client, address, age) in records {
            let used = now.checked_sub(*age).filter(|_| *age < lifetime);
            if let (Some(used), true) = (used, state.targets.contains_key(address)) {
                state.sticky.insert(
                    *client,
                    Sticky {
                        address: *address,
                        used,
                    },
                );
            }
        }
    }
}

#[cfg(test)]
#[path = "balancer_tests.rs"]
mod tests;
