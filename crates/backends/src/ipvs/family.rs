//! One family's state: what the kernel is known to hold, and the steps of an `apply`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_host::ipset;
use ferry_host::iptables::{Document, Iptables, Jump, Saved, Table};
use ferry_host::ipvs::Virtual;
use ferry_model::{Changed, Family, NodePlan, Plan, PortName, Revision, ServiceName};

use super::cleanup::{own_rules, removal_of_iptables_mode};
use super::diff::{Before, Ops, diff};
use super::drain::Drain;
use super::observe::{self, Addresses, Trusted};
use super::render::{self, View};
use super::rules::{self, JUMPS, Rules};
use super::ruleset::Ruleset;
use super::run::{self, Ran};
use super::sets::Set;
use super::{DEVICE, Error, Kernel, Options};
use crate::chains::program;
use crate::{Applied, Repair, TableRules};

const FIND_PROGRAMS: &str = "find the iptables programs";
const READ_RULES: &str = "read iptables rules";
const WRITE_RULES: &str = "write iptables rules";

#[derive(Debug)]
pub(super) struct FamilyState {
    family: Family,
    tool: Option<Iptables>,
    known: Option<Known>,
    drain: Drain,
    /// What is known may be wrong: compare it with the kernel.
    in_doubt: bool,
}

/// What was written last, all of it successfully.
#[derive(Debug)]
struct Known {
    revision: Revision,
    node: Arc<NodePlan>,
    view: View,
    device: u32,
    ruleset: Ruleset,
    rules: Rules,
    /// Our chains as the save program printed them after they were written.
    saved: Vec<String>,
    checked: Instant,
    /// The last virtual server whose real servers were compared for no reason but time.
    last_listed: Option<Virtual>,
}

/// Why everything is compared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// It is time.
    Time,
    /// Nothing is known, or somebody else changed something.
    Doubt,
}

fn missing_jumps(saved: &Saved<'_>) -> Vec<Jump> {
    let is_missing = |jump: &Jump| {
        let found = saved.chain(jump.table, jump.from).unwrap_or_default();
        !found.contains(&jump.rule().as_str())
    };
    JUMPS.into_iter().filter(is_missing).collect()
}

/// What is to be written.
struct Write<'a> {
    ops: &'a Ops,
    rules: &'a Document,
    order: Order,
}

/// When the rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Before the virtual servers, so that their first packets are masqueraded and filtered too.
    RulesFirst,
    /// After them: the chains are full of iptables mode's rules, which serve until ours replace them.
    RulesLast,
}

impl Order {
    /// By what iptables mode left behind.
    fn with(leftovers: &Document) -> Order {
        if leftovers.is_empty() {
            Order::RulesFirst
        } else {
            Order::RulesLast
        }
    }
}

impl FamilyState {
    pub(super) fn new(family: Family) -> Self {
        Self {
            family,
            tool: None,
            known: None,
            drain: Drain::default(),
            in_doubt: false,
        }
    }

    /// Makes the kernel hold what the plan says. Whatever fails, the next call looks at the kernel first.
    pub(super) fn apply(
        &mut self,
        kernel: &mut Kernel,
        options: &Options,
        plan: &Plan,
        now: Instant,
    ) -> Result<Applied, Error> {
        let known = self.known.take();
        let in_doubt = std::mem::take(&mut self.in_doubt);
        let stale = |known: &Known| {
            let age = now.saturating_duration_since(known.checked);
            in_doubt || options.repair_every.is_some_and(|every| age >= every)
        };
        let (known, applied) = match known {
            Some(known) if !stale(&known) => self.update(known, kernel, options, plan, now)?,
            known => {
                let reason = if in_doubt { Reason::Doubt } else { Reason::Time };
                self.observe(known, reason, kernel, options, plan, now)?
            }
        };
        self.known = Some(known);
        self.drain_step(kernel, now)?;
        Ok(applied)
    }

    /// The normal path: only what changed since.
    fn update(
        &mut self,
        mut known: Known,
        kernel: &mut Kernel,
        options: &Options,
        plan: &Plan,
        now: Instant,
    ) -> Result<(Known, Applied), Error> {
        let mut before = Before::default();
        let changed = self.changed(&mut known, kernel, plan)?;
        let full = changed == Changed::Everything;
        match changed {
            Changed::Everything => render_all(&mut known.ruleset, plan, &known.view, options, &mut before),
            Changed::Services(names) => {
                for name in names {
                    render_one(&mut known.ruleset, plan, name, &known.view, options, &mut before);
                }
            }
        }
        known.revision = plan.revision();
        for (at, have) in &mut before.virtuals {
            if let Some(have) = have {
                have.servers
                    .extend(self.drain.servers_of(*at).map(|server| (server, 0)));
            }
        }
        let ops = diff(&before, &known.ruleset);
        let wanted = self.rules(&known.ruleset, plan.node(), options, kernel)?;
        let document = rules::document(&wanted, Some(&known.rules), &[]);
        let mut applied = Applied {
            full,
            tables: tables(&wanted, &known.rules),
            ..Applied::default()
        };
        if !ops.is_empty() || !document.is_empty() {
            kernel.record.add(&known.view.node_ports).map_err(record_failed)?;
            let write = Write {
                ops: &ops,
                rules: &document,
                order: Order::RulesFirst,
            };
            let ran = self.run(kernel, &known, &write, options, now)?;
            (applied.added, applied.removed) = ops.tally();
            applied.warnings = ran.warnings;
            if !document.is_empty() {
                known.saved = self.saved(kernel)?;
            }
        }
        known.rules = wanted;
        Ok((known, applied))
    }

    /// What changed since, by the plan's node and what is seen of it.
    fn changed<'p>(
        &self,
        known: &mut Known,
        kernel: &mut Kernel,
        plan: &'p Plan,
    ) -> Result<Changed<'p>, Error> {
        if !Arc::ptr_eq(&known.node, plan.node()) {
            known.node = Arc::clone(plan.node());
            let addresses = Addresses::observe(&mut kernel.route, self.family)?;
            let view = observe::view(plan.node(), self.family, &addresses);
            if view != known.view {
                known.view = view;
                return Ok(Changed::Everything);
            }
        }
        Ok(plan.changed_since(known.revision))
    }

    /// The path after a start, a failure, and from time to time: everything is compared with the kernel.
    fn observe(
        &mut self,
        known: Option<Known>,
        reason: Reason,
        kernel: &mut Kernel,
        options: &Options,
        plan: &Plan,
        now: Instant,
    ) -> Result<(Known, Applied), Error> {
        let device = self.ensure_device_and_sets(kernel)?;
        let addresses = Addresses::observe(&mut kernel.route, self.family)?;
        let view = observe::view(plan.node(), self.family, &addresses);
        let mut ruleset = Ruleset::default();
        render_all(&mut ruleset, plan, &view, options, &mut Before::default());
        let (trusted, last_listed) = match (&known, reason) {
            (Some(known), Reason::Time) => {
                Trusted::except_next(&known.ruleset, &self.drain, known.last_listed)
            }
            _ => (Trusted::default(), None),
        };
        let exclude = &options.exclude_cidrs;
        let before = observe::before(kernel, self.family, &addresses, exclude, &ruleset, &trusted)?;
        let ops = diff(&before, &ruleset);
        let wanted = self.rules(&ruleset, plan.node(), options, kernel)?;
        let text = self.tool(kernel)?.save().map_err(Error::reading(READ_RULES))?;
        let save = Saved::parse(&text);
        let missing = missing_jumps(&save);
        let intact = known
            .as_ref()
            .filter(|known| known.saved == own_rules(&save))
            .map(|known| &known.rules);
        let document = rules::document(&wanted, intact, &missing);
        let repaired = match &known {
            Some(known) if known.revision == plan.revision() && known.view == view => {
                repairs(&ops, intact.is_none(), &missing, &self.drain)
            }
            _ => Vec::new(),
        };
        let fresh = Known {
            revision: plan.revision(),
            node: Arc::clone(plan.node()),
            view,
            device,
            ruleset,
            rules: wanted,
            saved: Vec::new(),
            checked: now,
            last_listed,
        };
        kernel.record.add(&fresh.view.node_ports).map_err(record_failed)?;
        let leftovers = match known {
            None => removal_of_iptables_mode(&save),
            Some(_) => Document::default(),
        };
        let write = Write {
            ops: &ops,
            rules: &document,
            order: Order::with(&leftovers),
        };
        let ran = self.run(kernel, &fresh, &write, options, now)?;
        let tool = self.tool(kernel)?;
        tool.restore(&leftovers).map_err(Error::writing(WRITE_RULES))?;
        let saved = if document.is_empty() {
            own_rules(&save)
        } else {
            self.saved(kernel)?
        };
        let none = Rules { chains: Vec::new() };
        let (added, removed) = ops.tally();
        let applied = Applied {
            full: true,
            added,
            removed,
            repaired,
            tables: tables(&fresh.rules, intact.unwrap_or(&none)),
            warnings: ran.warnings,
            ..Applied::default()
        };
        Ok((Known { saved, ..fresh }, applied))
    }

    /// Where the kernel differs from the plan. Reads only.
    pub(super) fn differences(
        &mut self,
        kernel: &mut Kernel,
        options: &Options,
        plan: &Plan,
    ) -> Result<Vec<String>, Error> {
        let addresses = Addresses::observe(&mut kernel.route, self.family)?;
        let view = observe::view(plan.node(), self.family, &addresses);
        let mut ruleset = Ruleset::default();
        render_all(&mut ruleset, plan, &view, options, &mut Before::default());
        let (exclude, trusted) = (&options.exclude_cidrs, Trusted::default());
        let before = observe::before(kernel, self.family, &addresses, exclude, &ruleset, &trusted)?;
        let ops = diff(&before, &ruleset);
        let text = self.tool(kernel)?.save().map_err(Error::reading(READ_RULES))?;
        let save = Saved::parse(&text);
        let intact = self
            .known
            .as_ref()
            .is_some_and(|known| known.saved == own_rules(&save));
        let found = repairs(&ops, !intact, &missing_jumps(&save), &self.drain);
        Ok(found.into_iter().map(|repair| repair.what).collect())
    }

    /// What everything else refers to. The device's index.
    fn ensure_device_and_sets(&self, kernel: &mut Kernel) -> Result<u32, Error> {
        let device = kernel.route.ensure_dummy(DEVICE)?;
        let addresses = match self.family {
            Family::V4 => ipset::Addresses::V4,
            Family::V6 => ipset::Addresses::V6,
        };
        for set in Set::ALL {
            kernel
                .ipset
                .ensure(set.name(self.family), set.kind(), addresses)?;
        }
        Ok(device)
    }

    fn run(
        &mut self,
        kernel: &mut Kernel,
        known: &Known,
        write: &Write<'_>,
        options: &Options,
        now: Instant,
    ) -> Result<Ran, Error> {
        let tool = self.tool(kernel)?.clone();
        let mut runner = run::Runner {
            kernel,
            family: self.family,
            device: known.device,
            scheduler: &options.scheduler,
            drain: &mut self.drain,
            now,
        };
        let write_rules = |order: Order| {
            if order != write.order {
                return Ok(());
            }
            let restored = tool.restore(write.rules);
            restored.map(drop).map_err(Error::writing(WRITE_RULES))
        };
        runner.fill(write.ops)?;
        write_rules(Order::RulesFirst)?;
        let ran = runner.serve(write.ops, &known.ruleset)?;
        write_rules(Order::RulesLast)?;
        Ok(ran)
    }

    pub(super) fn tool(&mut self, kernel: &Kernel) -> Result<&Iptables, Error> {
        let tool = match self.tool.take() {
            Some(tool) => tool,
            None => Iptables::detect(program(self.family), Arc::clone(&kernel.writers))
                .map_err(Error::opening(FIND_PROGRAMS))?,
        };
        Ok(self.tool.insert(tool))
    }

    fn saved(&mut self, kernel: &Kernel) -> Result<Vec<String>, Error> {
        let text = self.tool(kernel)?.save().map_err(Error::reading(READ_RULES))?;
        Ok(own_rules(&Saved::parse(&text)))
    }

    fn rules(
        &mut self,
        ruleset: &Ruleset,
        node: &NodePlan,
        options: &Options,
        kernel: &Kernel,
    ) -> Result<Rules, Error> {
        let random_fully = self.tool(kernel)?.features().random_fully;
        Ok(rules(ruleset, node, self.family, options, random_fully))
    }

    /// Ends what has drained or run out of time.
    fn drain_step(&mut self, kernel: &mut Kernel, now: Instant) -> Result<(), Error> {
        for at in self.drain.due(now) {
            let states = kernel.ipvs.servers(at)?;
            let changes = self.drain.step(at, &states, now);
            kernel.ipvs.run(&changes)?;
        }
        Ok(())
    }

    pub(super) fn next_due(&self, now: Instant, repair_every: Option<Duration>) -> Option<Duration> {
        let check = self
            .known
            .as_ref()
            .zip(repair_every)
            .map(|(known, every)| (known.checked + every).saturating_duration_since(now));
        check.into_iter().chain(self.drain.next_due(now)).min()
    }

    /// Somebody else changed what we wrote.
    pub(super) fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// A virtual server that is there as long as nobody takes them all.
    pub(super) fn sentinel(&self) -> Option<Virtual> {
        self.known.as_ref()?.ruleset.virtuals().next().map(|(at, _)| *at)
    }

    pub(super) fn port_of(&self, at: &Virtual) -> Option<&PortName> {
        self.known
            .as_ref()?
            .ruleset
            .virtual_server(at)
            .map(|server| &server.port)
    }

    /// Our chains as the save program printed them when they were last right.
    pub(super) fn saved_rules(&self) -> Option<&[String]> {
        self.known.as_ref().map(|known| known.saved.as_slice())
    }

    pub(super) fn notes(&self, now: Instant) -> Vec<String> {
        self.drain.notes(now)
    }
}

fn render_one(
    ruleset: &mut Ruleset,
    plan: &Plan,
    name: &ServiceName,
    view: &View,
    options: &Options,
    before: &mut Before,
) {
    let fragment = plan
        .service(name)
        .map(|service| render::service(service, view, options));
    ruleset.replace(name, fragment, before);
}

pub(super) fn render_all(
    ruleset: &mut Ruleset,
    plan: &Plan,
    view: &View,
    options: &Options,
    before: &mut Before,
) {
    let gone: BTreeSet<ServiceName> = ruleset
        .services()
        .filter(|name| plan.service(name).is_none())
        .cloned()
        .collect();
    for name in &gone {
        ruleset.replace(name, None, before);
    }
    for service in plan.services() {
        ruleset.replace(
            &service.name,
            Some(render::service(service, view, options)),
            before,
        );
    }
}

/// The rules that go with a ruleset.
pub(super) fn rules(
    ruleset: &Ruleset,
    node: &NodePlan,
    family: Family,
    options: &Options,
    random_fully: bool,
) -> Rules {
    rules::render(&rules::Input {
        family,
        mark: options.masquerade_mark,
        masqueraded: node.family(family).masqueraded,
        detector: &node.family(family).detector,
        random_fully,
        likeness: options.likeness,
        used: &|set| ruleset.is_used(set),
        closed_to_node: ruleset.closed_to_node().copied().collect(),
    })
}

fn tables(want: &Rules, known: &Rules) -> Vec<TableRules> {
    let count = |table: Table| {
        let chains = || want.chains.iter().filter(move |chain| chain.table == table);
        let changed = chains().filter(|chain| !known.chains.contains(chain));
        TableRules {
            table: table.as_str(),
            total: chains().map(|chain| chain.rules.len()).sum(),
            written: changed.map(|chain| chain.rules.len()).sum(),
        }
    };
    vec![count(Table::Nat), count(Table::Filter)]
}

/// What somebody else had changed: whatever there is to do although nothing changed on our side.
fn repairs(ops: &Ops, rules_changed: bool, missing: &[Jump], drain: &Drain) -> Vec<Repair> {
    let mut what = ops.describe(drain);
    what.extend(rules_changed.then(|| "iptables chains of ipvs mode".to_owned()));
    what.extend(
        missing
            .iter()
            .map(|jump| format!("jump from {} to {}", jump.from, jump.to)),
    );
    what.into_iter().map(|what| Repair { what, by: None }).collect()
}

fn record_failed(error: std::io::Error) -> Error {
    Error::writing("record where node ports are answered")(error)
}
