//! The nftables mode: maps, not chains. A service is a handful of elements in shared maps; chains exist by the size
//! of a pool, not by service; only services with session affinity have chains of their own.
//! May touch the tables `kube-proxy` and `ferry-fast-path` of the families `ip` and `ip6`, through [`ferry_host::nftables`].
//! Always holds: one `apply` is one transaction, what is right already is not touched, and work follows the change.

mod compile;
mod diff;
mod fast_path;
mod image;
mod inspect;
mod known;
mod ledger;
mod localhost;
mod names;
mod ops;
mod render;
mod ruleset;
mod traffic;
mod watch;

#[cfg(test)]
mod tests;

use ferry_host::nftables::{self as nft, Client, Generation, Monitor};
use ferry_host::sysctl::Sysctls;
use ferry_model::{Family, PerFamily, Plan, PortPlan};

pub use names::TABLE;

use crate::{Alarm, Applied, Backend, Error, Inspection, Likeness, Repair, Retry, Step, Traffic};
use fast_path::FastPath;
use known::Known;
use localhost::Relays;
use ops::Ops;
use render::Context;
use watch::{ForeignChange, Watch};

/// How often a full look starts again because others changed nf_tables meanwhile, before it goes without a check.
const ATTEMPTS: u32 = 5;

/// What the operator decided about this mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit of the packet mark, 0 to 31, that says: masquerade this.
    pub masquerade_bit: u8,
    /// Whether elements count new connections. Costs kernel memory: a counter for each CPU in each element.
    pub counters: bool,
    pub likeness: Likeness,
    /// Whether long TCP connections that the node forwards leave the rule path.
    pub fast_path: bool,
    /// Whether to refuse a kernel on which rules of this kind are known to fail.
    pub check_kernel: bool,
}

/// The first kernel that this mode works on, for kube-proxy and for us.
pub const OLDEST_KERNEL: (u32, u32) = (5, 13);

impl Default for Options {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            counters: false,
            likeness: Likeness::default(),
            fast_path: false,
            check_kernel: true,
        }
    }
}

impl Options {
    fn context(&self, plan: &Plan, family: Family) -> Context {
        Context::new(plan.node(), family, self)
    }
}

/// The table of a family as the plan wants it, as `nft -f` reads it.
pub fn listing(plan: &Plan, family: Family, options: &Options) -> String {
    render::ruleset(plan, &options.context(plan, family)).to_string()
}

/// The backend.
pub struct Nftables {
    options: Options,
    alarm: Alarm,
    client: Client,
    /// Opened with the client, used after the first success: before that it would hear nothing but ourselves.
    monitor: Option<Monitor>,
    watch: Option<Watch>,
    families: PerFamily<FamilyState>,
    sysctls: Sysctls,
    relays: Relays,
    fast_path: Option<FastPath>,
    /// The last transaction that is known to have left our tables as they should be.
    generation: Option<u32>,
}

/// One family's state.
#[derive(Debug, Default)]
struct FamilyState {
    known: Option<Known>,
    /// The last transaction was refused. Some kernels validate such a table slowly ever after, so it is made anew.
    refused: bool,
}

impl std::fmt::Debug for Nftables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nftables")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Nftables {
    /// Opens the way to nf_tables in the calling thread's network namespace. `alarm` is called from another thread
    /// when somebody else changes the table; the next `apply` then repairs it.
    pub fn open(options: Options, alarm: Alarm) -> Result<Self, Error> {
        const ATTEMPT: &str = "open nf_tables";
        if options.check_kernel && nft::kernel_version().is_some_and(|version| version < OLDEST_KERNEL) {
            let reason = "kube-proxy in nftables mode requires kernel 5.13 or later";
            return Err(Error::new(Step::Open, ATTEMPT, Retry::Futile, reason));
        }
        let mut client = Client::open().map_err(Error::opening(ATTEMPT))?;
        client.generation().map_err(Error::opening(ATTEMPT))?;
        let monitor = Monitor::open(names::TABLE).map_err(Error::opening(ATTEMPT))?;
        let fast_path = options
            .fast_path
            .then(|| FastPath::open(alarm.clone()))
            .transpose()?;
        Ok(Self {
            options,
            alarm,
            fast_path,
            client,
            monitor: Some(monitor),
            watch: None,
            families: PerFamily::default(),
            sysctls: Sysctls::default(),
            relays: Relays::default(),
            generation: None,
        })
    }

    /// Changes what changed since the last time; `None` if that is not known well enough.
    fn apply_changes(
        &mut self,
        plan: &Plan,
        family: Family,
        context: &Context,
    ) -> Result<Option<Ops>, Error> {
        let state = self.families.get_mut(family);
        let Some(known) = state.known.as_mut().filter(|known| known.context == *context) else {
            return Ok(None);
        };
        let Some(ops) = known.update(plan) else {
            return Ok(None);
        };
        let mut generation = self.generation;
        for attempt in 1.. {
            match self.commit(&ops, context, generation) {
                Ok(_) => {
                    if !ops.is_empty() {
                        self.generation = self.generation_after(generation);
                    }
                    return Ok(Some(ops));
                }
                Err(nft::Error::Outdated) => match self.harmless_generation() {
                    // Others are busy with their own tables; they need not wait for us, nor we for them.
                    Some(_) if attempt >= ATTEMPTS => generation = None,
                    Some(now) => generation = Some(now),
                    None => break,
                },
                Err(error) => return Err(self.forget(family, &ops, error)),
            }
        }
        self.families.get_mut(family).known = None;
        Ok(None)
    }

    /// Makes the changes true and tells in how many transactions.
    fn commit(&mut self, ops: &Ops, context: &Context, generation: Option<u32>) -> Result<usize, nft::Error> {
        let mut batches = ops.batches(context.family, generation);
        batches.try_fold(0, |commits, batch| {
            self.client.commit(batch)?;
            Ok(commits + 1)
        })
    }

    /// The generation that a commit has made: the one after that which it was bound to, or whatever is there now.
    fn generation_after(&mut self, bound: Option<u32>) -> Option<u32> {
        match bound {
            Some(bound) => Some(Generation::next(bound)),
            None => self.client.generation().ok().map(|now| now.id),
        }
    }

    /// The current generation, if nothing that led to it touched our tables.
    fn harmless_generation(&mut self) -> Option<u32> {
        let now = self.client.generation().ok()?.id;
        self.watch
            .as_ref()
            .filter(|watch| watch.is_harmless(now))
            .map(|_| now)
    }

    /// Looks at everything.
    fn apply_everything(&mut self, plan: &Plan, family: Family, context: &Context) -> Result<Ops, Error> {
        let state = self.families.get_mut(family);
        state.known = None;
        let anew = state.refused;
        let reading = || format!("read table {} {}", context.family.as_str(), names::TABLE);
        for attempt in 1.. {
            let now = self.client.generation().map_err(Error::reading(reading()))?.id;
            let compared = known::compare(&mut self.client, plan, context, anew);
            let (ops, known) = compared.map_err(Error::reading(reading()))?;
            let checked = (attempt < ATTEMPTS).then_some(now);
            match self.commit(&ops, context, checked) {
                Ok(commits) => {
                    self.generation =
                        Some((0..commits).fold(now, |generation, _| Generation::next(generation)));
                    *self.families.get_mut(family) = FamilyState {
                        known: Some(known),
                        refused: false,
                    };
                    return Ok(ops);
                }
                Err(nft::Error::Outdated) => {}
                Err(error) => return Err(self.forget(family, &ops, error)),
            }
        }
        let reason = "others changed it again and again meanwhile";
        Err(Error::new(Step::Read, reading(), Retry::Helps, reason))
    }

    /// After a refusal nothing is known, and the table is not to be trusted.
    fn forget(&mut self, family: Family, ops: &Ops, error: nft::Error) -> Error {
        *self.families.get_mut(family) = FamilyState {
            known: None,
            refused: true,
        };
        let attempt = format!(
            "write {} additions and {} removals to nf_tables",
            ops.additions(),
            ops.removals()
        );
        Error::writing(attempt)(error)
    }

    /// Lets node ports answer on loopback addresses, where that was asked for. Comes after the rules: they keep
    /// others away from 127.0.0.0/8, which the kernel guards no more from here on.
    fn open_localhost(&mut self, plan: &Plan, family: Family, warnings: &mut Vec<String>) {
        let asked = plan.node().family(family).localhost_node_ports;
        match family {
            Family::V4 if asked => {
                let ensured = self.sysctls.ensure("net/ipv4/conf/all/route_localnet", 1);
                warnings.extend(
                    ensured
                        .err()
                        .map(|error| format!("node ports are not answered on 127.0.0.1: {error}")),
                );
            }
            Family::V4 => {}
            Family::V6 => warnings.extend(self.relays.set(&localhost::wanted(plan))),
        }
    }

    /// Writes the fast path after everything was looked at or when devices came, or removes what another process left.
    fn fast_path(&mut self, family: nft::Family, full: bool, warnings: &mut Vec<String>) {
        match &mut self.fast_path {
            Some(fast_path) if full || fast_path.is_due(family) => {
                warnings.extend(fast_path.write(&mut self.client, family));
            }
            None if full => {
                let removed = self.client.delete_table(family, names::FAST_PATH);
                let told = |error| format!("the fast path of another process stays: {error}");
                warnings.extend(removed.err().map(told));
            }
            Some(_) | None => {}
        }
    }

    /// Starts to watch, once.
    fn watch(&mut self, warnings: &mut Vec<String>) {
        let Some(monitor) = self.monitor.take() else {
            return;
        };
        match Watch::start(monitor, &mut self.client, self.generation, self.alarm.clone()) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => warnings.push(format!("changes by others will not be noticed: {error}")),
        }
    }
}

impl Backend for Nftables {
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let context = self.options.context(plan, family);
        let foreign = self.watch.as_ref().and_then(|watch| watch.take(context.family));
        let was_known = self.families.get(family).known.is_some();
        if foreign.is_some() {
            self.families.get_mut(family).known = None;
        }
        let partial = self.apply_changes(plan, family, &context)?;
        let full = partial.is_none();
        let ops = match partial {
            Some(ops) => ops,
            None => self.apply_everything(plan, family, &context)?,
        };
        let mut warnings = Vec::new();
        self.watch(&mut warnings);
        self.open_localhost(plan, family, &mut warnings);
        self.fast_path(context.family, full, &mut warnings);
        // What was heard up to our own transaction was looked at with everything else; what came later was not.
        let heeded = || {
            self.watch
                .as_ref()
                .zip(self.generation)
                .filter(|_| full && was_known)
        };
        let foreign =
            foreign.or_else(|| heeded().and_then(|(watch, until)| watch.take_until(context.family, until)));
        Ok(Applied {
            full,
            added: ops.additions(),
            removed: ops.removals(),
            repaired: foreign
                .filter(|_| was_known)
                .map(|foreign| repaired(foreign, &ops, context.family))
                .unwrap_or_default(),
            warnings,
            ..Applied::default()
        })
    }

    fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error> {
        let context = self.options.context(plan, family);
        let reading = || format!("read table {} {}", context.family.as_str(), names::TABLE);
        let mut found = Vec::new();
        // A table that changes while it is read shows what never was.
        for _ in 0..ATTEMPTS {
            let before = self.client.generation().map_err(Error::reading(reading()))?.id;
            let compared = known::compare(&mut self.client, plan, &context, false);
            let (ops, _) = compared.map_err(Error::reading(reading()))?;
            found = ops.describe(&context);
            let after = self.client.generation().map_err(Error::reading(reading()))?.id;
            if before == after || found.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.watch = None;
        self.relays = Relays::default();
        self.monitor = Monitor::open(names::TABLE).ok();
        self.families = PerFamily::default();
        for family in [nft::Family::Ip, nft::Family::Ip6] {
            let attempt = format!("delete table {} {}", family.as_str(), names::TABLE);
            for table in [names::TABLE, names::FAST_PATH] {
                self.client
                    .delete_table(family, table)
                    .map_err(Error::writing(attempt.clone()))?;
            }
        }
        Ok(())
    }

    fn inspect(&mut self, plan: &Plan, port: &PortPlan) -> Result<Inspection, Error> {
        let context = self.options.context(plan, port.family);
        inspect::inspect(&mut self.client, port, &context)
            .map_err(Error::reading("read the service's part of nf_tables"))
    }

    fn traffic(&mut self) -> Result<Vec<Traffic>, Error> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            if let Some(known) = self
                .families
                .get(family)
                .known
                .as_ref()
                .filter(|known| known.context.counters)
            {
                let counted = traffic::read(&mut self.client, known, family);
                all.extend(counted.map_err(Error::reading("read the counters of nf_tables"))?);
            }
        }
        Ok(all)
    }
}

/// What others had changed: one report, by all who did it.
fn repaired(foreign: ForeignChange, ops: &Ops, family: nft::Family) -> Vec<Repair> {
    if ops.is_empty() {
        return Vec::new();
    }
    let by = foreign.by.into_iter().collect::<Vec<_>>().join(", ");
    vec![Repair {
        what: ops.summary(family),
        by: Some(by).filter(|by| !by.is_empty()),
    }]
}
