//! Noticing at once that somebody else removed our virtual servers or rules, instead of at the next comparison.
//!
//! IPVS tells nobody about changes, so one virtual server of each family stands for all: a flush, by far the most common
//! accident, takes it along. nf_tables tells about rules. What is noticed waits here until the loop, woken by the alarm,
//! applies again.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferry_host::iptables::{self, Change, Ip, Table, Watch, Writers, watch_nft};
use ferry_host::ipvs::{Ipvs, Virtual};
use ferry_model::{Family, PerFamily};

use super::Error;
use super::rules::CHAINS;
use crate::Alarm;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Seen {
    sentinel: PerFamily<Option<Virtual>>,
    changed: PerFamily<bool>,
}

/// Watches over both families; ends with its value.
#[derive(Default)]
pub(super) struct Guard {
    seen: Arc<Mutex<Seen>>,
    watching: Option<(Option<Watch>, Sender<()>)>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Begins to watch, in the calling thread's network namespace.
    pub(super) fn start(&mut self, writers: &Arc<Writers>, alarm: &Alarm) -> Result<(), Error> {
        let mut ipvs = Ipvs::open()?;
        let (stop, stopped) = mpsc::channel();
        let (seen, wake) = (Arc::clone(&self.seen), Arc::clone(alarm));
        std::thread::Builder::new()
            .name("ipvs-guard".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if lock(&seen).look(&mut ipvs) {
                        wake();
                    }
                }
            })
            .map_err(Error::opening("start the watch of virtual servers"))?;
        let (seen, wake) = (Arc::clone(&self.seen), Arc::clone(alarm));
        let told = move |change: Change<'_>| {
            if lock(&seen).told(change) {
                wake();
            }
        };
        let watch = match watch_nft(Arc::clone(writers), told) {
            Ok(watch) => Some(watch),
            // A kernel without nf_tables has legacy rules, which only the comparison from time to time looks at.
            Err(iptables::Error::Watch(_)) => None,
            Err(error) => return Err(Error::opening("watch iptables rules")(error)),
        };
        self.watching = Some((watch, stop));
        Ok(())
    }

    /// Whether something happened to a family. Until [`Guard::settle`] its virtual servers may come and go.
    pub(super) fn take(&self, family: Family) -> bool {
        let mut seen = lock(&self.seen);
        *seen.sentinel.get_mut(family) = None;
        std::mem::take(seen.changed.get_mut(family))
    }

    /// Everything is as it should be; this virtual server stands for all.
    pub(super) fn settle(&self, family: Family, sentinel: Option<Virtual>) {
        *lock(&self.seen).sentinel.get_mut(family) = sentinel;
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    /// Looks after the sentinels; says whether the loop has to be woken.
    fn look(&mut self, ipvs: &mut Ipvs) -> bool {
        let mut wake = false;
        for family in Family::BOTH {
            let Some(at) = *self.sentinel.get(family) else {
                continue;
            };
            if matches!(ipvs.stats(at), Ok(None)) {
                *self.sentinel.get_mut(family) = None;
                *self.changed.get_mut(family) = true;
                wake = true;
            }
        }
        wake
    }

    /// Takes a notification; says whether the loop has to be woken.
    fn told(&mut self, change: Change<'_>) -> bool {
        let families: &[Family] = match change {
            Change::Overrun => &Family::BOTH,
            Change::Table { ip, gone: true, .. } => of(ip),
            Change::Chain {
                ip,
                table,
                chain,
                gone: true,
            } if owns_chain(table, chain) => of(ip),
            Change::Rule { ip, table, chain, .. } if owns_chain(table, chain) => of(ip),
            Change::Rule {
                ip,
                bytes,
                gone: true,
                ..
            } if jumps_to_us(bytes) => of(ip),
            Change::Table { .. } | Change::Chain { .. } | Change::Rule { .. } | Change::Commit { .. } => &[],
        };
        let mut wake = false;
        for family in families {
            wake |= !std::mem::replace(self.changed.get_mut(*family), true);
        }
        wake
    }
}

fn of(ip: Ip) -> &'static [Family] {
    match ip {
        Ip::V4 => &[Family::V4],
        Ip::V6 => &[Family::V6],
    }
}

/// Whether a chain of a table is one of this mode's.
pub fn owns_chain(table: &str, chain: &str) -> bool {
    Table::parse(table).is_some_and(|table| CHAINS.contains(&(table, chain)))
}

fn jumps_to_us(rule: &[u8]) -> bool {
    CHAINS
        .iter()
        .any(|(_, name)| rule.windows(name.len()).any(|part| part == name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_concerns_us_wakes_the_loop_and_only_once() {
        let rule = |chain, bytes, gone| Change::Rule {
            ip: Ip::V4,
            table: "nat",
            chain,
            bytes,
            gone,
        };
        let mut seen = Seen::default();
        assert!(!seen.told(rule("OTHERS", b"KUBE-OTHERS", true)));
        assert!(!seen.told(rule("PREROUTING", b"\0KUBE-SERVICES\0", false)));
        assert!(!seen.told(Change::Chain {
            ip: Ip::V4,
            table: "nat",
            chain: "OTHERS",
            gone: true
        }));
        assert_eq!(seen.changed, PerFamily::default());
        assert!(seen.told(rule("PREROUTING", b"\0KUBE-SERVICES\0", true)));
        assert!(!seen.told(rule("KUBE-SERVICES", b"", true)), "the loop is awake");
        assert_eq!(seen.changed, PerFamily { v4: true, v6: false });
        assert!(seen.told(Change::Overrun));
        assert!(seen.changed.v6);
    }
}
