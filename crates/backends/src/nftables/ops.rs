//! Changes of the table, as a value, and their order in a transaction.

use std::collections::{BTreeMap, BTreeSet};

use ferry_host::nftables::{Batch, ChainDecl, Element, Family, Generation, SetDecl, Value};

use super::image::ChainImage;
use super::names;
use super::render::{self, Context};
use super::ruleset::{Name, element};

/// What happens to the table itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TableOp {
    #[default]
    Keep,
    Create,
    /// Deleted and created in one transaction: packets see the old one or the new one.
    Recreate,
}

/// How many elements of a new table go into one transaction. As long as anybody on the machine listens, in whatever
/// namespace, the kernel holds a page of notification for each element until the transaction ends: a gigabyte for
/// 250,000 of them, which takes four times as long as the elements themselves.
const PORTION: usize = 10_000;

/// Some elements of a set.
type Portion<'a> = (&'a Name, &'a [Element]);

/// Everything that has to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ops {
    pub(super) table: TableOp,
    pub(super) new_chains: BTreeMap<Name, NewChain>,
    pub(super) changed_chains: BTreeMap<Name, ChainImage>,
    pub(super) removed_chains: BTreeSet<Name>,
    pub(super) new_sets: BTreeMap<Name, SetDecl>,
    pub(super) removed_sets: BTreeSet<Name>,
    pub(super) deleted: BTreeMap<Name, Vec<Element>>,
    pub(super) added: BTreeMap<Name, Vec<Element>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewChain {
    pub(super) image: ChainImage,
    pub(super) comment: Option<&'static str>,
}

impl Ops {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn add(&mut self, set: &str, element: Element) {
        put(&mut self.added, set, element);
    }

    pub(super) fn delete(&mut self, set: &str, element: Element) {
        put(&mut self.deleted, set, element);
    }

    /// How many elements, chains and sets appear.
    pub(super) fn additions(&self) -> usize {
        self.new_chains.len()
            + self.changed_chains.len()
            + self.new_sets.len()
            + self.added.values().map(Vec::len).sum::<usize>()
    }

    /// How many disappear.
    pub(super) fn removals(&self) -> usize {
        self.removed_chains.len()
            + self.removed_sets.len()
            + self.deleted.values().map(Vec::len).sum::<usize>()
    }

    /// For people: what was not as it should be.
    pub(super) fn summary(&self, family: Family) -> String {
        let table = format!("table {} {}", family.as_str(), names::TABLE);
        match self.table {
            TableOp::Create => return format!("{table} was gone"),
            TableOp::Recreate => return format!("{table} was made anew"),
            TableOp::Keep => {}
        }
        let names = |kind: &str, names: Vec<&Name>| match names[..] {
            [] => None,
            [name] => Some(format!("{kind} {name}")),
            [name, ..] => Some(format!("{kind} {name} and {} more", names.len() - 1)),
        };
        let chains = self
            .new_chains
            .keys()
            .chain(self.changed_chains.keys())
            .chain(&self.removed_chains)
            .collect();
        let sets = self.new_sets.keys().chain(&self.removed_sets).collect();
        let mut touched: BTreeSet<&Name> = self.added.keys().collect();
        touched.extend(self.deleted.keys());
        touched.retain(|name| !self.new_sets.contains_key(*name));
        let parts = [
            names("chain", chains),
            names("set", sets),
            names("elements of", touched.into_iter().collect()),
        ];
        format!(
            "{table}: {}",
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        )
    }

    /// Each thing that is not as it should be, a line each.
    pub(super) fn describe(&self, context: &Context) -> Vec<String> {
        let table = format!("table {} {}", context.family.as_str(), names::TABLE);
        match self.table {
            TableOp::Create => return vec![format!("{table} is missing")],
            TableOp::Recreate => {
                return vec![format!("{table} is not ours, or its sets are of another kind")];
            }
            TableOp::Keep => {}
        }
        let mut lines = Vec::new();
        let mut tell = |names: &mut dyn Iterator<Item = &Name>, kind: &str, what: &str| {
            lines.extend(names.map(|name| format!("{kind} {name} {what}")));
        };
        tell(&mut self.new_chains.keys(), "chain", "is missing");
        tell(&mut self.changed_chains.keys(), "chain", "has other rules");
        tell(&mut self.removed_chains.iter(), "chain", "should not be there");
        tell(&mut self.new_sets.keys(), "set", "is missing");
        tell(&mut self.removed_sets.iter(), "set", "should not be there");
        let fixed = render::fixed(context);
        let all = [
            (&self.added, "is missing"),
            (&self.deleted, "should not be there"),
        ];
        for (sets, what) in all {
            for (name, elements) in sets
                .iter()
                .filter(|(name, _)| !self.new_sets.contains_key(*name) && !self.removed_sets.contains(*name))
            {
                match fixed.sets.get(name) {
                    Some(set) => lines.extend(elements.iter().map(|found| {
                        let text = element(&set.decl, found);
                        format!("element {text} of {name} {what}")
                    })),
                    None => lines.push(format!("{} element(s) of {name}: {what}", elements.len())),
                }
            }
        }
        lines
    }

    /// The transactions, each on top of the one before. There is one, unless a table that was not there is large: its
    /// data is written in portions first, which no packet meets before the chains come, all at once, with the last.
    pub(super) fn batches(
        &self,
        family: Family,
        generation: Option<u32>,
    ) -> impl Iterator<Item = Batch> + use<'_> {
        let portions = self.portions();
        let last = portions.len();
        let mut generation = generation;
        (0..=last).filter(|_| !self.is_empty()).map(move |index| {
            let mut batch = Batch::new(family, names::TABLE, generation);
            generation = generation.map(Generation::next);
            if index == 0 {
                self.begin(&mut batch);
            }
            match portions.get(index) {
                Some((set, elements)) => batch.add_elements(set, *elements),
                None => self.rest(&mut batch, last == 0),
            }
            batch
        })
    }

    /// What can be written before there are chains: elements without verdicts.
    fn portions(&self) -> Vec<Portion<'_>> {
        let elements = self.added.values().map(Vec::len).sum::<usize>();
        if self.table != TableOp::Create || elements <= PORTION {
            return Vec::new();
        }
        let data = self.added.iter().filter(|(_, elements)| !has_verdicts(elements));
        data.flat_map(|(set, elements)| elements.chunks(PORTION).map(move |portion| (set, portion)))
            .collect()
    }

    /// The table and its sets.
    fn begin(&self, batch: &mut Batch) {
        if self.table == TableOp::Recreate {
            batch.delete_table();
        }
        if self.table != TableOp::Keep {
            batch.add_table(names::TABLE_COMMENT);
        }
        self.new_sets.values().for_each(|decl| batch.add_set(decl));
    }

    /// Everything else; of the elements, those that were in no portion. Things appear before what refers to them, and
    /// go after.
    fn rest(&self, batch: &mut Batch, with_data: bool) {
        for (name, chain) in &self.new_chains {
            batch.add_chain(&ChainDecl {
                name: name.clone(),
                base: chain.image.base,
                comment: chain.comment.map(Into::into),
            });
        }
        self.changed_chains
            .keys()
            .chain(&self.removed_chains)
            .for_each(|name| batch.flush_chain(name));
        self.deleted
            .iter()
            .for_each(|(set, elements)| batch.delete_elements(set, elements));
        self.added
            .iter()
            .filter(|(_, elements)| with_data || has_verdicts(elements))
            .for_each(|(set, elements)| batch.add_elements(set, elements));
        for (name, chain) in &self.new_chains {
            batch.add_rules(name, &chain.image.rules);
        }
        for (name, chain) in &self.changed_chains {
            batch.add_rules(name, &chain.rules);
        }
        self.removed_sets.iter().for_each(|name| batch.delete_set(name));
        self.removed_chains
            .iter()
            .for_each(|name| batch.delete_chain(name));
    }
}

/// A set has verdicts in all of its elements or in none.
fn has_verdicts(elements: &[Element]) -> bool {
    matches!(elements.first(), Some(element) if matches!(element.value, Value::Verdict(_)))
}

fn put(into: &mut BTreeMap<Name, Vec<Element>>, set: &str, element: Element) {
    match into.get_mut(set) {
        Some(elements) => elements.push(element),
        None => drop(into.insert(set.into(), vec![element])),
    }
}
