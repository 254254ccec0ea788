//! The iptables mode: rule for rule what kube-proxy 1.36 writes, at the cost of the change.
//!
//! Lives here: rendering a plan as rules, comparing them with what is known or observed, and writing the difference
//! through `iptables-restore`. May use `ferry_host::iptables`, its counters and sysctls; touches no other table, and
//! in shared ones only chains named `KUBE-*` and the jumps to them. Always holds: what is known was written by a
//! restore that succeeded, and every document leaves the tables in a state that serves.

mod cleanup;
mod compare;
mod diff;
mod guard;
mod inspect;
mod names;
mod ops;
mod port;
mod render;
mod ruleset;
mod run;
#[cfg(test)]
mod tests;

pub use cleanup::Keep;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_host::iptables::{Flavour, Iptables as Tool, Saved, Writers, other_flavour};
use ferry_host::nfacct::Nfacct;
use ferry_host::sysctl::Sysctls;
use ferry_model::{Family, PerFamily, Plan, PortPlan};

use crate::{
    Alarm, Applied, Backend, Error, Inspection, Likeness, RefusedWrites, Repair, Retry, Step, TableRules,
};
use compare::{Difference, differences, from_observed};
use diff::{Known, from_known, restoring};
use guard::{Extent, ForeignChange, Guard};
use names::program;
use ops::Ops;
use render::{COUNTER_INVALID, COUNTER_LOCALHOST, Context, Style};
use run::{Done, Refusal, run};

/// With more endpoints than this, kube-proxy leaves comments out of the endpoints' rules.
const LARGE_CLUSTER: usize = 1000;
/// Repairs that are named; more are only counted.
const NAMED_REPAIRS: usize = 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// The bit of the packet mark that means "masquerade", 0 to 31.
    pub masquerade_bit: u8,
    /// How often legacy tables are looked at; with nft the kernel tells.
    pub poll: Duration,
    pub likeness: Likeness,
    pub programs: Programs,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            masquerade_bit: 14,
            poll: Duration::from_secs(1),
            likeness: Likeness::default(),
            programs: Programs::default(),
        }
    }
}

/// Which programs to run. By default those behind the plain names, because everybody else on the node uses them.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub flavour: Option<Flavour>,
    /// Another lock file than theirs.
    pub lock: Option<PathBuf>,
}

impl Programs {
    fn find(&self, family: Family, writers: Arc<Writers>) -> Result<Tool, ferry_host::iptables::Error> {
        let tool = match self.flavour {
            Some(flavour) => Tool::of_flavour(program(family), flavour, writers)?,
            None => Tool::detect(program(family), writers)?,
        };
        Ok(match &self.lock {
            Some(lock) => tool.with_lock(lock.clone()),
            None => tool,
        })
    }
}

/// The backend.
pub struct Iptables {
    options: Options,
    alarm: Alarm,
    writers: Arc<Writers>,
    sysctls: Sysctls,
    tcp_liberal: bool,
    nfacct: Option<Nfacct>,
    families: PerFamily<FamilyState>,
    guard: Guard,
}

impl std::fmt::Debug for Iptables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iptables")
            .field("options", &self.options)
            .field("families", &self.families)
            .finish_non_exhaustive()
    }
}

/// One family.
#[derive(Debug, Default)]
struct FamilyState {
    tool: Option<Tool>,
    known: Option<Known>,
    /// What was known before it was forgotten: tells repairs from changes.
    forgotten: Option<Known>,
}

impl Iptables {
    /// Touches nothing yet. Reads once whether conntrack lets out-of-window TCP packets pass as valid.
    pub fn open(options: Options, alarm: Alarm) -> Iptables {
        let sysctls = Sysctls::default();
        let liberal = sysctls.get("net/netfilter/nf_conntrack_tcp_be_liberal");
        Iptables {
            options,
            alarm,
            writers: Arc::default(),
            tcp_liberal: liberal.is_ok_and(|value| value != 0),
            sysctls,
            // Without counters the rules work as well.
            nfacct: Nfacct::open().ok().flatten(),
            families: PerFamily::default(),
            guard: Guard::default(),
        }
    }

    /// Removes everything that this mode wrote, except what a mode in force has under the same names.
    pub fn cleanup_beside(&mut self, keep: Keep) -> Result<(), Error> {
        let mut left = Vec::new();
        for family in Family::BOTH {
            self.families.get_mut(family).known = None;
            self.guard.take(family);
            left.extend(
                cleanup::cleanup(&self.options.programs, family, keep)
                    .err()
                    .into_iter()
                    .flatten(),
            );
        }
        if left.is_empty() {
            return Ok(());
        }
        let attempt = "remove all iptables rules";
        Err(Error::new(Step::Write, attempt, Retry::Helps, left.join("; ")))
    }

    fn tool(&mut self, family: Family) -> Result<Tool, Error> {
        let state = self.families.get_mut(family);
        if let Some(tool) = &state.tool {
            return Ok(tool.clone());
        }
        let tool = self
            .options
            .programs
            .find(family, self.writers.clone())
            .map_err(Error::opening(format!("find the {} programs", program(family))))?;
        Ok(state.tool.insert(tool).clone())
    }

    /// Makes sure of the counters, and says how rules look.
    fn style(&mut self, tool: &Tool, plan: &Plan) -> Style {
        let mut counter = |name| {
            self.nfacct
                .as_mut()
                .is_some_and(|nfacct| nfacct.ensure(name).is_ok())
        };
        Style {
            mark: 1 << (self.options.masquerade_bit & 31),
            random_fully: tool.features().random_fully,
            tcp_liberal: self.tcp_liberal,
            count_invalid: !self.tcp_liberal && counter(COUNTER_INVALID),
            count_localhost: plan.node().family(Family::V4).localhost_node_ports
                && counter(COUNTER_LOCALHOST),
            likeness: self.options.likeness,
        }
    }

    /// Writes what changed; `None` if only an observation can tell what is there.
    fn apply_known(
        &mut self,
        tool: &Tool,
        plan: &Plan,
        family: Family,
        mut known: Known,
        foreign: Option<&ForeignChange>,
    ) -> Result<Option<Applied>, run::Failed> {
        let mut repaired = Vec::new();
        if let Some(ForeignChange { extent, by }) = foreign {
            let Some((ops, chains)) = repair(&known, family, extent) else {
                self.families.get_mut(family).forgotten = Some(known);
                return Ok(None);
            };
            run(tool, &ops, Refusal::Stop)?;
            repaired.extend(chains.map(|what| Repair { what, by: by.clone() }));
        }
        let context = context(plan, family, known.style);
        let ops = from_known(&mut known, plan, &context);
        let done = run(tool, &ops, Refusal::Stop)?;
        let applied = Applied {
            repaired,
            ..applied(done, &known)
        };
        self.families.get_mut(family).known = Some(known);
        Ok(Some(applied))
    }

    fn apply_observed(
        &mut self,
        tool: &Tool,
        plan: &Plan,
        family: Family,
        foreign: Option<ForeignChange>,
    ) -> Result<Applied, Error> {
        // Without it the other rules are worth writing all the same.
        let localhost = self.open_localhost(plan, family);
        let mut warnings: Vec<String> = localhost
            .err()
            .map(|error| error.to_string())
            .into_iter()
            .collect();
        if let Err(error) = self
            .guard
            .start(tool.flavour(), &self.writers, self.options.poll, &self.alarm)
        {
            warnings.push(error.to_string());
        }
        let style = self.style(tool, plan);
        let reading = Error::reading(format!("read the {family} rules that are there"));
        let saved = tool.save().map_err(reading)?;
        let context = context(plan, family, style);
        let (ops, mut known) = from_observed(&Saved::parse(&saved), plan, &context);
        let done = run(tool, &ops, Refusal::LeaveOut).map_err(Error::writing(attempt(family)))?;
        for (service, _) in &done.refused {
            if let Some(written) = known.services.remove(service) {
                known
                    .counts
                    .subtract(render::render_service(&written.plan, &context).counts());
            }
        }
        let state = self.families.get_mut(family);
        let repaired = match (state.forgotten.take(), foreign) {
            (Some(before), Some(foreign)) => repairs(plan, &before, differences(&ops), &foreign),
            _ => Vec::new(),
        };
        let mut applied = Applied {
            full: true,
            repaired,
            ..applied(done, &known)
        };
        applied.warnings.append(&mut warnings);
        state.known = Some(known);
        Ok(applied)
    }

    /// Lets the kernel route loopback addresses where node ports are to answer on them.
    fn open_localhost(&mut self, plan: &Plan, family: Family) -> Result<(), Error> {
        if family == Family::V6 || !plan.node().family(family).localhost_node_ports {
            return Ok(());
        }
        let ensured = self.sysctls.ensure("net/ipv4/conf/all/route_localnet", 1);
        ensured
            .map(drop)
            .map_err(Error::opening("let node ports answer on localhost"))
    }
}

impl Backend for Iptables {
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let tool = self.tool(family)?;
        let foreign = self.guard.take(family);
        let mut refused = None;
        if let Some(known) = self.families.get_mut(family).known.take() {
            match self.apply_known(&tool, plan, family, known, foreign.as_ref()) {
                Ok(Some(applied)) => {
                    self.guard.settle(family);
                    return Ok(applied);
                }
                Ok(None) => {}
                Err(failed) if failed.error.is_transient() => {
                    return Err(Error::writing(attempt(family))(failed));
                }
                Err(failed) => refused = Some(failed),
            }
        }
        let mut applied = self.apply_observed(&tool, plan, family, foreign)?;
        if let Some(reason) = refused {
            applied.refused.partial += 1;
            let warning = format!("a change was refused, so everything was compared: {reason}");
            applied.warnings.insert(0, warning);
        }
        self.guard.settle(family);
        Ok(applied)
    }

    fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error> {
        let reading = || format!("read the {family} rules that are there");
        let tool = self.tool(family)?;
        let Some(style) = self.families.get(family).known.as_ref().map(|known| known.style) else {
            let reason = "no sync has succeeded since they were last found wrong";
            return Err(Error::new(Step::Read, reading(), Retry::Helps, reason));
        };
        let saved = tool.save().map_err(Error::reading(reading()))?;
        let (ops, _) = from_observed(&Saved::parse(&saved), plan, &context(plan, family, style));
        let mut found: Vec<String> = differences(&ops).into_iter().map(|(what, _)| what).collect();
        let rule = |(table, chain, rule): &(_, String, String)| {
            format!(
                "{} should not be in chain {chain} of table {}",
                rule,
                names::Table::as_str(*table)
            )
        };
        found.extend(ops.removed.iter().map(rule));
        let stale = ops.stale.iter();
        found.extend(stale.map(|chain| format!("chain {chain} in table nat belongs to no service")));
        Ok(found)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.cleanup_beside(|_, _| false)
    }

    fn inspect(&mut self, plan: &Plan, port: &PortPlan) -> Result<Inspection, Error> {
        let tool = self.tool(port.family)?;
        let known = self
            .families
            .get(port.family)
            .known
            .as_ref()
            .map(|known| known.style);
        let style = known.unwrap_or_else(|| self.style(&tool, plan));
        let found = inspect::inspect(&tool, port, &context(plan, port.family, style));
        found.map_err(Error::reading(format!(
            "read the {} rules of {}",
            port.family, port.name
        )))
    }

    fn prepare(&mut self, plan: &Plan) -> Result<(), Error> {
        self.open_localhost(plan, Family::V4)
    }

    /// Chains of ours, or of kube-proxy, in the flavour that is not used: they are in force too, and whoever looks
    /// with the plain programs does not see them.
    fn mixed(&mut self) -> Option<String> {
        let found = |family| {
            let tool = self.tool(family).ok()?;
            let other = other_flavour(&tool, cleanup::is_ours_anywhere).ok().flatten()?;
            let chains = other.chains.join(", ");
            Some(format!("{} {} also holds {chains}", other.ip, other.flavour))
        };
        let found: Vec<String> = Family::BOTH.into_iter().filter_map(found).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }
}

/// What a family's tables should hold, as `iptables-restore` reads it. What depends on the kernel is as on a current one
/// without accounting objects.
pub fn listing(plan: &Plan, family: Family, options: &Options) -> String {
    let style = Style {
        mark: 1 << (options.masquerade_bit & 31),
        random_fully: true,
        tcp_liberal: false,
        count_invalid: false,
        count_localhost: false,
        likeness: options.likeness,
    };
    let rules = render::render(plan, &context(plan, family, style));
    format!("# iptables-restore --noflush\n{rules}")
}

fn context(plan: &Plan, family: Family, style: Style) -> Context<'_> {
    let endpoints = plan.tally().families.get(family).endpoints;
    Context {
        family,
        node: plan.node(),
        style,
        comments: endpoints <= LARGE_CLUSTER,
    }
}

fn attempt(family: Family) -> String {
    format!("write {family} rules")
}

fn applied(done: Done, known: &Known) -> Applied {
    let mut warnings = done.warnings;
    warnings.extend(
        done.refused
            .iter()
            .map(|(service, reason)| format!("service {service} is not served: {reason}")),
    );
    Applied {
        added: done.added,
        removed: done.removed,
        tables: vec![
            TableRules {
                table: "filter",
                total: known.counts.filter,
                written: done.written.filter,
            },
            TableRules {
                table: "nat",
                total: known.counts.nat,
                written: done.written.nat,
            },
        ],
        warnings,
        refused: RefusedWrites {
            partial: 0,
            full: done.failures,
        },
        ..Applied::default()
    }
}

/// What puts chains right that others changed, and those chains in words.
fn repair<'a>(
    known: &Known,
    family: Family,
    extent: &'a Extent,
) -> Option<(Ops, impl Iterator<Item = String> + use<'a>)> {
    let Extent::Chains(chains) = extent else {
        return None;
    };
    let ops = restoring(known, family, chains)?;
    Some((
        ops,
        chains
            .iter()
            .map(|(table, chain)| format!("chain {chain} in table {}", table.as_str())),
    ))
}

/// What was different although we had written it and it has not changed since.
fn repairs(plan: &Plan, before: &Known, found: Vec<Difference>, by: &ForeignChange) -> Vec<Repair> {
    let unchanged = |(_, service): &Difference| match service {
        Some(name) => plan.service(name).is_some_and(|service| before.has(service)),
        None => true,
    };
    let mut found: Vec<String> = found
        .into_iter()
        .filter(unchanged)
        .map(|(what, _)| what)
        .collect();
    let more = found.len().saturating_sub(NAMED_REPAIRS);
    found.truncate(NAMED_REPAIRS);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    found
        .into_iter()
        .map(|what| Repair {
            what,
            by: by.by.clone(),
        })
        .collect()
}
