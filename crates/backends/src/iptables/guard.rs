//! Noticing that somebody else changed our rules: nf_tables says so at once, legacy tables are polled.
//! Touches nothing but the watch; what is noticed waits here until the loop asks, which the alarm makes it do.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferry_host::iptables::{
    self, Change, Flavour, Ip, Watch, Writers, legacy_fingerprint, poll_legacy, watch_nft,
};
use ferry_model::{Family, PerFamily};

use super::names::{PREFIX, Table, program};
use crate::Alarm;

/// Chains of the kubelet: what happens to them is its business.
const KUBELETS: [&str; 3] = ["KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-MARK-DROP"];

/// Changed chains that are remembered one by one; with more, everything is looked at.
const REMEMBERED: usize = 256;

/// Changes that were not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForeignChange {
    pub(super) extent: Extent,
    /// The process that did it, where the kernel tells.
    pub(super) by: Option<String>,
}

/// What can be wrong after changes of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// These chains, and nothing else.
    Chains(BTreeSet<(Table, String)>),
    Anything,
}

impl Default for Extent {
    fn default() -> Self {
        Extent::Chains(BTreeSet::new())
    }
}

impl Extent {
    fn is_nothing(&self) -> bool {
        matches!(self, Extent::Chains(chains) if chains.is_empty())
    }

    fn extend(&mut self, other: Extent) {
        match (&mut *self, other) {
            (Extent::Chains(chains), Extent::Chains(more)) => chains.extend(more),
            _ => *self = Extent::Anything,
        }
        if matches!(self, Extent::Chains(chains) if chains.len() > REMEMBERED) {
            *self = Extent::Anything;
        }
    }
}

type Fingerprint = [[u32; 12]; 3];

#[derive(Debug, Default)]
struct Seen {
    changed: PerFamily<Option<ForeignChange>>,
    /// What legacy tables looked like after our last write; `None` while there is nothing to compare with.
    expected: PerFamily<Option<Fingerprint>>,
    /// Changes of a transaction whose end has not been told yet.
    pending: PerFamily<Extent>,
}

/// Watches over both families.
#[derive(Default)]
pub(super) struct Guard {
    seen: Arc<Mutex<Seen>>,
    nft: Option<Watch>,
    legacy: Option<Watch>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Begins to watch what this flavour writes, unless it does already.
    pub(super) fn start(
        &mut self,
        flavour: Flavour,
        writers: &Arc<Writers>,
        period: Duration,
        alarm: &Alarm,
    ) -> Result<(), iptables::Error> {
        let (seen, alarm) = (self.seen.clone(), alarm.clone());
        match flavour {
            Flavour::Nft if self.nft.is_none() => {
                self.nft = Some(watch_nft(writers.clone(), move |change| {
                    if lock(&seen).told(change) {
                        alarm();
                    }
                })?);
            }
            Flavour::Legacy if self.legacy.is_none() => {
                self.legacy = Some(poll_legacy(period, move || {
                    if lock(&seen).polled() {
                        alarm();
                    }
                })?);
            }
            Flavour::Nft | Flavour::Legacy => {}
        }
        Ok(())
    }

    /// What happened to a family since the last call. Until [`Guard::settle`] the polling pauses.
    pub(super) fn take(&self, family: Family) -> Option<ForeignChange> {
        let mut seen = lock(&self.seen);
        *seen.expected.get_mut(family) = None;
        seen.changed.get_mut(family).take()
    }

    /// The tables are as we want them.
    pub(super) fn settle(&self, family: Family) {
        if self.legacy.is_some() {
            let print = fingerprint(family);
            *lock(&self.seen).expected.get_mut(family) = print;
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fingerprint(family: Family) -> Option<Fingerprint> {
    let mut print = Fingerprint::default();
    for table in Table::ALL {
        print[table as usize] = legacy_fingerprint(program(family), table.as_str()).ok()?;
    }
    Some(print)
}

impl Seen {
    /// Takes a notification; says whether the loop has to be woken.
    fn told(&mut self, change: Change<'_>) -> bool {
        match change {
            Change::Commit { process } => {
                let by = (!process.is_empty()).then_some(process);
                let mut alarm = false;
                for family in Family::BOTH {
                    let extent = std::mem::take(self.pending.get_mut(family));
                    if !extent.is_nothing() {
                        self.disturb(family, extent, by.clone());
                        alarm = true;
                    }
                }
                alarm
            }
            Change::Overrun => {
                for family in Family::BOTH {
                    self.disturb(family, Extent::Anything, None);
                }
                true
            }
            Change::Table { ip, .. } | Change::Chain { ip, .. } | Change::Rule { ip, .. } => {
                let family = match ip {
                    Ip::V4 => Family::V4,
                    Ip::V6 => Family::V6,
                };
                self.pending.get_mut(family).extend(concerning_us(&change));
                false
            }
        }
    }

    fn disturb(&mut self, family: Family, extent: Extent, by: Option<String>) {
        let foreign = self.changed.get_mut(family).get_or_insert_default();
        foreign.extent.extend(extent);
        foreign.by = by;
    }

    fn polled(&mut self) -> bool {
        let mut alarm = false;
        for family in Family::BOTH {
            let expected = self.expected.get(family);
            if expected.is_some() && *expected != fingerprint(family) {
                *self.expected.get_mut(family) = None;
                self.disturb(family, Extent::Anything, None);
                alarm = true;
            }
        }
        alarm
    }
}

/// What a change can have undone of ours. Other programs change their own rules all the time, and looking at all
/// tables is not cheap.
fn concerning_us(change: &Change<'_>) -> Extent {
    let ours = |chain: &str| chain.starts_with(PREFIX) && !KUBELETS.contains(&chain);
    let jumps_to_ours = |bytes: &[u8]| {
        bytes
            .windows(PREFIX.len())
            .any(|window| window == PREFIX.as_bytes())
    };
    match *change {
        Change::Table {
            table, gone: true, ..
        } if Table::parse(table).is_some() => Extent::Anything,
        Change::Chain { table, chain, .. } | Change::Rule { table, chain, .. } if ours(chain) => {
            let table = Table::parse(table).map(|table| (table, chain.to_owned()));
            Extent::Chains(table.into_iter().collect())
        }
        Change::Rule {
            table,
            bytes,
            gone: true,
            ..
        } if Table::parse(table).is_some() && jumps_to_ours(bytes) => Extent::Anything,
        Change::Table { .. }
        | Change::Chain { .. }
        | Change::Rule { .. }
        | Change::Commit { .. }
        | Change::Overrun => Extent::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule<'a>(chain: &'a str, bytes: &'a [u8], gone: bool) -> Change<'a> {
        Change::Rule {
            ip: Ip::V4,
            table: "nat",
            chain,
            bytes,
            gone,
        }
    }

    #[test]
    fn only_what_can_undo_ours_alarms() {
        let concerns = [
            rule("KUBE-SVC-X", b"", false),
            rule("KUBE-SVC-X", b"", true),
            rule("PREROUTING", b"..KUBE-SERVICES..", true),
            Change::Chain {
                ip: Ip::V6,
                table: "filter",
                chain: "KUBE-FORWARD",
                gone: true,
            },
            Change::Table {
                ip: Ip::V4,
                table: "mangle",
                gone: true,
            },
        ];
        let others = [
            rule("PREROUTING", b"..KUBE-SERVICES..", false),
            rule("CNI-HOSTPORT-DNAT", b"..CNI..", true),
            Change::Chain {
                ip: Ip::V4,
                table: "mangle",
                chain: "KUBE-KUBELET-CANARY",
                gone: false,
            },
            Change::Chain {
                ip: Ip::V4,
                table: "kube-proxy",
                chain: "KUBE-X",
                gone: false,
            },
            Change::Table {
                ip: Ip::V4,
                table: "raw",
                gone: true,
            },
        ];
        assert!(concerns.iter().all(|change| !concerning_us(change).is_nothing()));
        assert!(others.iter().all(|change| concerning_us(change).is_nothing()));
    }

    #[test]
    fn a_transaction_alarms_once_and_names_its_process() {
        let mut seen = Seen::default();
        assert!(!seen.told(rule("KUBE-SVC-X", b"", true)));
        assert!(!seen.told(rule("KUBE-SVC-Y", b"", true)));
        assert!(seen.told(Change::Commit {
            process: "iptables".into()
        }));
        let chains = ["KUBE-SVC-X", "KUBE-SVC-Y"].map(|chain| (Table::Nat, chain.to_owned()));
        let extent = Extent::Chains(chains.into());
        assert_eq!(
            seen.changed.v4,
            Some(ForeignChange {
                extent,
                by: Some("iptables".into())
            })
        );
        assert_eq!(seen.changed.v6, None);
        assert!(!seen.told(Change::Commit {
            process: "nft".into()
        }));
        assert!(seen.told(Change::Overrun));
        assert!(
            seen.changed
                .v6
                .is_some_and(|foreign| foreign.extent == Extent::Anything)
        );
    }
}
