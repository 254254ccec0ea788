//! The netfilter rules of one family: known, compared, written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_host::iptables::{Document, Iptables, Saved, Table, Writers};
use ferry_model::{Family, ServiceName};

use crate::chains::program;
use crate::userspace::portals::{self, Present, Rule};
use crate::{Applied, Error, Inspection, Presence, Repair, TableRules};

/// The rules of some services; of one that is gone, none.
pub(super) type Changes = Vec<(ServiceName, BTreeSet<Rule>)>;

#[derive(Debug, Default)]
pub(super) struct Rules {
    tool: Option<Iptables>,
    services: BTreeMap<ServiceName, BTreeSet<Rule>>,
    /// When the rules of all services were last seen to be there; none if that is not known.
    seen: Option<Instant>,
}

impl Rules {
    fn tool(&mut self, family: Family) -> Result<Iptables, Error> {
        if let Some(tool) = &self.tool {
            return Ok(tool.clone());
        }
        let tool = Iptables::detect(program(family), Arc::new(Writers::default()))
            .map_err(Error::opening("find the iptables program"))?;
        self.tool = Some(tool.clone());
        Ok(tool)
    }

    /// Changes the rules of some services. Looks at what is there first if that is not known, or not for a while.
    pub(super) fn write(
        &mut self,
        changes: Changes,
        family: Family,
        check: Duration,
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let tool = self.tool(family)?;
        let seen = self.seen.take();
        let is_due = seen.is_none_or(|seen| seen.elapsed() >= check);
        // What should be there now, before the changes.
        let before = (is_due && seen.is_some()).then(|| self.all());
        let (gone, new) = self.merge(changes);
        let document = if is_due {
            let present = present(&tool)?;
            applied
                .repaired
                .extend(before.iter().flat_map(|known| repairs(known, &present)));
            let want = self.all();
            if present.is_wired() {
                portals::change(&(&present.rules - &want), &(&want - &present.rules))
            } else {
                portals::whole(&present, &want)
            }
        } else {
            portals::change(&gone, &new)
        };
        tool.restore(&document)
            .map_err(Error::writing("write the rules"))?;
        self.seen = if is_due { Some(Instant::now()) } else { seen };
        self.report(&document, applied);
        Ok(())
    }

    /// Whether the rules of a service are there.
    pub(super) fn inspect(
        &mut self,
        family: Family,
        service: &ServiceName,
        found: &mut Inspection,
    ) -> Result<(), Error> {
        let present = present(&self.tool(family)?)?;
        let presence = |there: bool| {
            if there {
                Presence::Present
            } else {
                Presence::Missing
            }
        };
        found.add(
            "the chains of userspace mode and the jumps to them",
            presence(present.is_wired()),
        );
        for rule in self.services.get(service).into_iter().flatten() {
            let (chain, text) = rule;
            let what = format!("-t {} -A {} {text}", chain.table().as_str(), chain.name());
            found.add(what, presence(present.rules.contains(rule)));
        }
        Ok(())
    }

    /// Where the rules that are there differ from those that were written.
    pub(super) fn differences(&mut self, family: Family) -> Result<Vec<String>, Error> {
        let present = present(&self.tool(family)?)?;
        let found = repairs(&self.all(), &present);
        Ok(found.into_iter().map(|repair| repair.what).collect())
    }

    fn all(&self) -> BTreeSet<Rule> {
        self.services.values().flatten().cloned().collect()
    }

    /// Takes changes over, and returns the rules that go and those that come.
    fn merge(&mut self, changes: Changes) -> (BTreeSet<Rule>, BTreeSet<Rule>) {
        let (mut gone, mut new) = (BTreeSet::new(), BTreeSet::new());
        for (service, rules) in changes {
            let old = self.services.remove(&service).unwrap_or_default();
            gone.extend(&old - &rules);
            new.extend(&rules - &old);
            if !rules.is_empty() {
                self.services.insert(service, rules);
            }
        }
        (gone, new)
    }

    fn report(&self, document: &Document, applied: &mut Applied) {
        for table in [Table::Filter, Table::Nat] {
            let rules = self.services.values().flatten();
            let total = rules.filter(|(chain, _)| chain.table() == table).count();
            applied.tables.push(TableRules {
                table: table.as_str(),
                total,
                written: document.edits(table),
            });
        }
    }

    pub(super) fn remove(&mut self, family: Family) -> Result<(), Error> {
        self.seen = None;
        self.services.clear();
        // Without the program there is nothing that could have been written.
        let Ok(tool) = self.tool(family) else {
            return Ok(());
        };
        tool.restore(&portals::removal(&present(&tool)?))
            .map_err(Error::writing("remove the rules"))?;
        Ok(())
    }
}

fn present(tool: &Iptables) -> Result<Present, Error> {
    let text = tool.save().map_err(Error::reading("list the rules"))?;
    Ok(Present::of(&Saved::parse(&text)))
}

fn repairs(known: &BTreeSet<Rule>, present: &Present) -> Vec<Repair> {
    let missing = known.difference(&present.rules).count();
    let foreign = present.rules.difference(known).count();
    let mut repairs = Vec::new();
    let mut note = |count: usize, what: &str| {
        if count > 0 {
            repairs.push(Repair {
                what: format!("{count} {what}"),
                by: None,
            });
        }
    };
    note(missing, "rule(s) were missing");
    note(foreign, "rule(s) were not ours");
    note(usize::from(!present.is_wired()), "chain or jump was missing");
    repairs
}
