//! ipvs mode: the kernel's load balancer picks the endpoint, sets and a few iptables rules do the rest.
//! May touch IPVS, the KUBE- sets, the interface kube-ipvs0, eleven iptables chains per family, and a file that remembers
//! where node ports were answered.
//! Always holds: a virtual server is in a set as long as it exists, so ours are known from others' at any moment; a change
//! of one service costs what that service costs; an endpoint that goes gets no new connection from then on.

mod cleanup;
mod diff;
mod drain;
mod family;
mod guard;
mod inspect;
mod listing;
mod observe;
mod prepare;
mod record;
mod render;
mod rules;
mod ruleset;
mod run;
mod sets;

#[cfg(test)]
mod tests;

pub use cleanup::{cleanup, leftovers};
pub use guard::owns_chain;
pub use listing::listing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_host::ipset::{self, Ipset};
use ferry_host::iptables::Writers;
use ferry_host::ipvs::{self, Timeouts};
use ferry_host::route::{self, Route};
use ferry_model::{Family, PerFamily, Plan, PortName, PortPlan};
use ipnet::IpNet;

use crate::{Alarm, Applied, Backend, Error, Inspection, Likeness, Traffic};
use family::FamilyState;
use guard::Guard;
use record::Record;

/// The interface that holds services' addresses, so that packets for them are taken in.
const DEVICE: &str = "kube-ipvs0";

/// What the operator decided about this mode.
#[derive(Clone, Debug)]
pub struct Options {
    /// For services that do not name their own.
    pub scheduler: String,
    /// Virtual servers at these addresses are never removed.
    pub exclude_cidrs: Vec<IpNet>,
    /// Answer ARP for an address only on the interface that has it.
    pub strict_arp: bool,
    /// Of connections; zero leaves the kernel's own.
    pub timeouts: Timeouts,
    /// The bit that marks packets for masquerading.
    pub masquerade_mark: u32,
    pub likeness: Likeness,
    /// How long TCP connections to a removed endpoint may go on, unless the service says otherwise.
    pub drain: Duration,
    /// How often everything is compared with the kernel although nothing changed; `None` for never.
    pub repair_every: Option<Duration>,
    /// Where a record is kept that a boot empties, such as /run/ferry.
    pub record: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: "rr".to_owned(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            timeouts: Timeouts::default(),
            masquerade_mark: 1 << 14,
            likeness: Likeness::default(),
            drain: DRAIN,
            repair_every: Some(Duration::from_secs(30)),
            record: PathBuf::from("/run/ferry"),
        }
    }
}

/// As long as the kernel remembers an idle TCP connection.
const DRAIN: Duration = Duration::from_secs(15 * 60);

/// The backend.
#[derive(Debug)]
pub struct Ipvs {
    kernel: Kernel,
    options: Options,
    families: PerFamily<FamilyState>,
    guard: Guard,
    /// From getting ready, for the first `apply` to tell.
    warnings: Vec<String>,
}

/// The sockets, each for the life of the process.
#[derive(Debug)]
struct Kernel {
    ipvs: ipvs::Ipvs,
    ipset: Ipset,
    route: Route,
    writers: Arc<Writers>,
    record: Record,
    /// Whose modules were loaded, or could not be.
    schedulers: BTreeSet<String>,
}

impl Ipvs {
    /// Checks that the kernel can do it, and sets kernel parameters and timeouts. Writes no rule yet. `alarm` is called
    /// from another thread when somebody else removes our virtual servers or rules; the next `apply` then repairs it.
    ///
    /// # Errors
    /// When a module, the scheduler or a parameter is missing; the reason says what to do about it.
    pub fn open(options: Options, alarm: Alarm) -> Result<Self, Error> {
        let mut ipvs = prepare::open()?;
        let warnings = prepare::prepare(&mut ipvs, &options)?;
        let kernel = Kernel {
            ipvs,
            ipset: Ipset::open()?,
            route: Route::open()?,
            writers: Arc::new(Writers::default()),
            record: Record::new(&options.record),
            schedulers: BTreeSet::new(),
        };
        let mut guard = Guard::default();
        guard.start(&kernel.writers, &alarm)?;
        Ok(Self {
            kernel,
            options,
            families: PerFamily::from_fn(FamilyState::new),
            guard,
            warnings,
        })
    }
}

impl Backend for Ipvs {
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let state = self.families.get_mut(family);
        if self.guard.take(family) {
            state.doubt();
        }
        let mut applied = state.apply(&mut self.kernel, &self.options, plan, Instant::now())?;
        applied.warnings.append(&mut self.warnings);
        self.guard.settle(family, state.sentinel());
        Ok(applied)
    }

    fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error> {
        let state = self.families.get_mut(family);
        state.differences(&mut self.kernel, &self.options, plan)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        for family in Family::BOTH {
            self.guard.take(family);
            *self.families.get_mut(family) = FamilyState::new(family);
        }
        cleanup(&self.options.record)
    }

    fn next_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let due = |family| self.families.get(family).next_due(now, self.options.repair_every);
        Family::BOTH.into_iter().filter_map(due).min()
    }

    fn traffic(&mut self) -> Result<Vec<Traffic>, Error> {
        let mut sums: BTreeMap<(Family, PortName), (u64, u64, u64)> = BTreeMap::new();
        for (at, stats) in self.kernel.ipvs.all_stats()? {
            let family = Family::of(at.address);
            if let Some(port) = self.families.get(family).port_of(&at) {
                let sum = sums.entry((family, port.clone())).or_default();
                sum.0 += stats.connections;
                sum.1 += stats.bytes_in;
                sum.2 += stats.bytes_out;
            }
        }
        let traffic = |((family, port), (connections, bytes_in, bytes_out))| Traffic {
            family,
            port,
            endpoint: None,
            connections,
            bytes: Some((bytes_in, bytes_out)),
            relayed: None,
        };
        Ok(sums.into_iter().map(traffic).collect())
    }

    fn inspect(&mut self, plan: &Plan, port: &PortPlan) -> Result<Inspection, Error> {
        let state = self.families.get_mut(port.family);
        state.inspect(&mut self.kernel, &self.options, plan, port)
    }

    fn notes(&self) -> Vec<String> {
        let now = Instant::now();
        Family::BOTH
            .into_iter()
            .flat_map(|family| self.families.get(family).notes(now))
            .collect()
    }
}

impl From<ipvs::Error> for Error {
    fn from(error: ipvs::Error) -> Self {
        match error {
            ipvs::Error::Unavailable(_) | ipvs::Error::Open(_) => Error::opening("open IPVS")(error),
            ipvs::Error::List { .. } => Error::reading("read IPVS")(error),
            ipvs::Error::Configure { .. } | ipvs::Error::Send { .. } => Error::writing("change IPVS")(error),
        }
    }
}

impl From<ipset::Error> for Error {
    fn from(error: ipset::Error) -> Self {
        Error::writing("IP sets")(error)
    }
}

impl From<route::Error> for Error {
    fn from(error: route::Error) -> Self {
        Error::writing("interfaces")(error)
    }
}
