//! What the tables hold, as the save program prints it.

use std::collections::HashMap;

use super::Table;
use super::rule::{canon, same};

/// One family's tables.
#[derive(Debug, Default)]
pub struct Saved<'a> {
    tables: [Chains<'a>; 3],
}

/// One table: rules by chain, each as the text after `-A <chain>`.
#[derive(Debug, Default)]
struct Chains<'a> {
    /// By names that stand in the map itself: the texts they come from are far apart.
    places: HashMap<Name, usize>,
    chains: Vec<Chain<'a>>,
    /// Those of one chain stand together.
    rules: Vec<&'a str>,
}

/// A chain's name, filled up with zeros. Programs and kernel take no longer one; what is longer was made by other
/// means and is none of our business.
type Name = [u8; 32];

fn key(name: &str) -> Option<Name> {
    let mut key = Name::default();
    key.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(key)
}

#[derive(Clone, Copy, Debug)]
struct Chain<'a> {
    name: &'a str,
    first: usize,
    count: usize,
}

impl<'a> Chains<'a> {
    fn place(&mut self, name: &'a str) -> Option<usize> {
        let chains = &mut self.chains;
        let place = *self.places.entry(key(name)?).or_insert_with(|| {
            chains.push(Chain {
                name,
                first: 0,
                count: 0,
            });
            chains.len() - 1
        });
        Some(place)
    }

    fn push(&mut self, place: usize, rule: &'a str) {
        let Some(chain) = self.chains.get_mut(place) else {
            return;
        };
        if chain.first + chain.count != self.rules.len() {
            // Others came between: no program prints it so, and it costs little to read it all the same.
            let first = self.rules.len();
            self.rules
                .extend_from_within(chain.first..chain.first + chain.count);
            chain.first = first;
        }
        self.rules.push(rule);
        chain.count += 1;
    }

    /// Takes a line. `last` is the place of the line before; the next chain is mostly the one declared after it.
    fn read(&mut self, line: &'a str, last: &mut Option<usize>) {
        if let Some(rest) = line.strip_prefix(':') {
            self.place(rest.split(' ').next().unwrap_or(rest));
        } else if let Some(rest) = without_counters(line).strip_prefix("-A ") {
            let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            let is_at = |place: &usize| self.chains.get(*place).is_some_and(|at| at.name == chain);
            let next = last.map_or(0, |last| last + 1);
            *last = last
                .filter(is_at)
                .or(Some(next).filter(is_at))
                .or_else(|| self.place(chain));
            if let Some(place) = *last {
                self.push(place, rule);
            }
        }
    }
}

/// `[12:3456] -A ...` without what stands in front.
fn without_counters(line: &str) -> &str {
    let counted = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    counted.map_or(line, |(_, rest)| rest)
}

impl<'a> Saved<'a> {
    /// Reads what a save program printed, with or without counters. Other tables than ours are left out.
    pub fn parse(text: &'a str) -> Self {
        let mut saved = Saved::default();
        let (mut table, mut last) = (None, None);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                (table, last) = (Table::parse(name), None);
            }
            if let Some(table) = table {
                saved.tables[table as usize].read(line, &mut last);
            }
        }
        saved
    }

    /// Where a chain stands among those of its table; `None` if there is no such chain.
    pub fn place(&self, table: Table, chain: &str) -> Option<usize> {
        self.tables[table as usize].places.get(&key(chain)?).copied()
    }

    /// The rules of the chain at this place.
    pub fn at(&self, table: Table, place: usize) -> &[&'a str] {
        let of = &self.tables[table as usize];
        let range = of
            .chains
            .get(place)
            .map(|chain| chain.first..chain.first + chain.count);
        range.and_then(|range| of.rules.get(range)).unwrap_or_default()
    }

    /// Every rule of a table, with its chain.
    pub fn rules(&self, table: Table) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of = &self.tables[table as usize];
        let rules = |chain: &Chain<'a>| of.rules.get(chain.first..chain.first + chain.count);
        of.chains.iter().flat_map(move |chain| {
            let name = chain.name;
            rules(chain)
                .unwrap_or_default()
                .iter()
                .map(move |rule| (name, *rule))
        })
    }

    /// A chain's rules; `None` if there is no such chain.
    pub fn chain(&self, table: Table, chain: &str) -> Option<&[&'a str]> {
        self.place(table, chain).map(|place| self.at(table, place))
    }

    /// The names of a table's chains, by their places.
    pub fn chains(&self, table: Table) -> impl Iterator<Item = &'a str> {
        self.tables[table as usize].chains.iter().map(|chain| chain.name)
    }

    /// Whether a chain holds exactly these rules in this order.
    pub fn holds(&self, table: Table, chain: &str, rules: &[String]) -> bool {
        self.chain(table, chain).is_some_and(|found| {
            found.len() == rules.len() && found.iter().zip(rules).all(|(found, rule)| same(found, rule))
        })
    }

    /// Whether this rule is somewhere in the chain.
    pub fn contains(&self, table: Table, chain: &str, rule: &str) -> bool {
        let form = canon(rule);
        self.chain(table, chain)
            .is_some_and(|found| found.iter().any(|found| canon(found) == form))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "# Generated by iptables-save\n*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j NOTRACK\nCOMMIT\n\
        *nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";

    #[test]
    fn tables_and_chains_are_read() {
        let saved = Saved::parse(SAVED);
        assert_eq!(saved.chain(Table::Nat, "KUBE-SERVICES"), Some(&[][..]));
        assert_eq!(saved.chain(Table::Filter, "KUBE-SERVICES"), None);
        assert!(saved.holds(
            Table::Nat,
            "KUBE-MARK-MASQ",
            &["-j MARK --or-mark 0x00004000".into()]
        ));
        assert!(!saved.holds(
            Table::Nat,
            "KUBE-MARK-MASQ",
            &["-j MARK --or-mark 0x00008000".into()]
        ));
        let jump = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
        assert!(saved.contains(Table::Nat, "PREROUTING", jump));
        assert_eq!(saved.chains(Table::Nat).count(), 3);
    }

    #[test]
    fn every_rule_of_a_table_is_listed_also_with_counters() {
        let saved = Saved::parse("*nat\n:A - [0:0]\n[12:34] -A A -j X\n-A B -j Y\nCOMMIT\n");
        let rules: Vec<_> = saved.rules(Table::Nat).collect();
        assert_eq!(rules, [("A", "-j X"), ("B", "-j Y")]);
        assert_eq!(saved.rules(Table::Filter).count(), 0);
    }

    #[test]
    fn rules_of_a_chain_need_not_stand_together() {
        let saved = Saved::parse("*nat\n-A A -j X\n-A B -j Y\n-A A -j Z\n-A B -j W\nCOMMIT\n");
        assert_eq!(saved.chain(Table::Nat, "A"), Some(&["-j X", "-j Z"][..]));
        assert_eq!(saved.chain(Table::Nat, "B"), Some(&["-j Y", "-j W"][..]));
    }
}
