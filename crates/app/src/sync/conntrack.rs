//! Stale UDP flows, removed off the sync path: a thread of its own takes what the loop hands over.
//! Hand-overs of a family coalesce while the thread is busy; a failure is counted and logged, never fatal.

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ferry_model::{Family, PerFamily, Plan, StaleFlows, UdpFrontends};

use crate::metrics::Metrics;

/// More than these are not remembered one by one while syncs fail: all flows are judged instead.
const MANY: usize = 100_000;

/// Removes flows from the kernel's table.
pub trait Flows: Send {
    /// Removes these, node ports counting on the local addresses only; tells how many there were.
    fn remove(&mut self, family: Family, local: &[IpAddr], stale: &[StaleFlows]) -> Result<u64, String>;
    /// Removes every flow that is stale by the frontends; tells how many there were.
    fn sweep(&mut self, family: Family, frontends: &UdpFrontends) -> Result<u64, String>;
}

/// What a family's syncs have made stale.
#[derive(Debug, Default)]
pub struct Work {
    /// Judge all flows by these.
    judge: Option<Box<UdpFrontends>>,
    /// Look for these.
    stale: Vec<StaleFlows>,
    /// The host's own addresses.
    local: Vec<IpAddr>,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.judge.is_none() && self.stale.is_empty()
    }

    /// What came later: newer frontends replace older ones, single flows add up.
    fn merge(&mut self, later: Work) {
        self.judge = later.judge.or(self.judge.take());
        self.stale.extend(later.stale);
        self.local = later.local;
    }
}

/// Collects what a family's next successful sync makes stale.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Nobody knows what happened before the first sync.
    judge_all: bool,
    stale: Vec<StaleFlows>,
}

impl Default for Gathering {
    fn default() -> Self {
        Self {
            judge_all: true,
            stale: Vec::new(),
        }
    }
}

impl Gathering {
    pub(super) fn add(&mut self, stale: impl IntoIterator<Item = StaleFlows>) {
        self.stale.extend(stale);
        if self.stale.len() > MANY {
            self.judge_all = true;
            self.stale.clear();
        }
    }

    /// What there is to do now that the sync has succeeded; begins again.
    pub(super) fn take(&mut self, plan: &Plan, family: Family) -> Option<Work> {
        let judge = std::mem::take(&mut self.judge_all).then(|| Box::new(UdpFrontends::of(plan, family)));
        let judge = judge.filter(|frontends| !frontends.is_empty());
        let stale = std::mem::take(&mut self.stale);
        let local = plan.node().family(family).addresses.clone();
        let work = Work { judge, stale, local };
        (!work.is_empty()).then_some(work)
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: PerFamily<Work>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread. Dropping it lets it finish what it has begun and no more.
#[derive(Debug)]
pub struct Sweeper {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sweeper {
    /// Starts the thread.
    pub fn start(mut flows: impl Flows + 'static, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let run = move || {
            while let Some((family, work)) = theirs.next() {
                do_work(&mut flows, family, &work, &metrics);
            }
        };
        let thread = std::thread::Builder::new().name("conntrack".into()).spawn(run)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Hands work over.
    pub fn hand_over(&self, family: Family, work: Work) {
        self.shared.lock().waiting.get_mut(family).merge(work);
        self.shared.changed.notify_all();
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn next(&self) -> Option<(Family, Work)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            for family in Family::BOTH {
                let work = std::mem::take(state.waiting.get_mut(family));
                if !work.is_empty() {
                    return Some((family, work));
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    // Each change is one assignment, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn do_work(flows: &mut impl Flows, family: Family, work: &Work, metrics: &Metrics) {
    let labels = [family.as_str()];
    let start = Instant::now();
    let swept = work
        .judge
        .as_ref()
        .map_or(Ok(0), |frontends| flows.sweep(family, frontends));
    let removed = if work.stale.is_empty() {
        Ok(0)
    } else {
        flows.remove(family, &work.local, &work.stale)
    };
    for outcome in [swept, removed] {
        match outcome {
            Ok(deleted) => metrics.conntrack_deleted.add(&labels, deleted as f64),
            Err(error) => {
                metrics.conntrack_failures.increment(&labels);
                tracing::error!(
                    ipFamily = family.as_str(),
                    err = error,
                    "Failed to remove stale flows"
                );
            }
        }
    }
    metrics
        .conntrack_duration
        .observe_duration(&labels, start.elapsed());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Build;
    use crate::modes::Mode;
    use ferry_model::{FrontendKey, Planner, Protocol, Which};
    use std::sync::mpsc;

    fn flow(port: u16) -> StaleFlows {
        let frontend = FrontendKey::Address([10, 0, 0, 1].into(), port, Protocol::Udp);
        StaleFlows {
            frontend,
            which: Which::All,
        }
    }

    struct Recorder {
        calls: mpsc::Sender<usize>,
        go: mpsc::Receiver<Result<u64, String>>,
    }

    impl Flows for Recorder {
        fn remove(&mut self, _: Family, _: &[IpAddr], stale: &[StaleFlows]) -> Result<u64, String> {
            self.calls.send(stale.len()).unwrap();
            self.go.recv().unwrap()
        }

        fn sweep(&mut self, _: Family, _: &UdpFrontends) -> Result<u64, String> {
            Ok(0)
        }
    }

    #[test]
    fn what_arrives_meanwhile_is_done_at_once_afterwards_and_failures_are_counted() {
        let metrics = Arc::new(Metrics::new(Mode::named("nftables").unwrap(), Build::default()));
        let (calls, called) = mpsc::channel();
        let (answer, go) = mpsc::channel();
        let sweeper = Sweeper::start(Recorder { calls, go }, Arc::clone(&metrics)).unwrap();
        let some = |ports: &[u16]| Work {
            stale: ports.iter().map(|p| flow(*p)).collect(),
            ..Work::default()
        };
        sweeper.hand_over(Family::V4, some(&[1]));
        assert_eq!(called.recv().unwrap(), 1);
        sweeper.hand_over(Family::V4, some(&[2]));
        sweeper.hand_over(Family::V4, some(&[3, 4]));
        answer.send(Ok(7)).unwrap();
        assert_eq!(called.recv().unwrap(), 3);
        answer.send(Err("no".into())).unwrap();
        drop(sweeper);
        assert_eq!(metrics.conntrack_deleted.get(&["IPv4"]).unwrap().0, 7.0);
        assert_eq!(metrics.conntrack_failures.get(&["IPv4"]).unwrap().0, 1.0);
        assert_eq!(metrics.conntrack_duration.get(&["IPv4"]).unwrap().count(), 2);
    }

    #[test]
    fn the_first_success_judges_everything_and_later_ones_what_changed() {
        let planner = Planner::new(crate::sync::tests::options());
        let mut gathering = Gathering::default();
        gathering.add([flow(1)]);
        let work = gathering.take(planner.plan(), Family::V4).unwrap();
        assert!(work.judge.is_none(), "no UDP frontends, nothing to judge");
        assert_eq!(work.stale.len(), 1);
        assert!(gathering.take(planner.plan(), Family::V4).is_none());
        gathering.add((0..=MANY).map(|_| flow(1)));
        assert!(gathering.judge_all && gathering.stale.is_empty());
    }
}
