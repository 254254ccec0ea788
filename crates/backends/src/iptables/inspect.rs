//! What the tables hold for one service port. With nft the programs read single chains; legacy tables are only had
//! whole.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ferry_host::iptables::{Error, Flavour, Iptables, Saved, same, target};
use ferry_host::nftables::{self, Client, Expr, Rule, Verdict};
use ferry_model::{Family, PortPlan};

use super::names::{SERVICES, Shared, Table};
use super::port::Port;
use super::render::{Context, render_node};
use super::ruleset::ServiceRules;
use crate::{Inspection, Presence};

/// Above so many chains one look at everything is cheaper than one at each.
const SINGLE_CHAINS: usize = 32;

pub(super) fn inspect(tool: &Iptables, port: &PortPlan, context: &Context<'_>) -> Result<Inspection, Error> {
    let mut wanted = ServiceRules::default();
    let rules = Port::of(port, context);
    rules.dispatch(&mut wanted);
    rules.chains(&mut wanted.chains);
    let single = tool.flavour() == Flavour::Nft && wanted.chains.len() <= SINGLE_CHAINS;
    let saved = if single { String::new() } else { tool.save()? };
    let mut reader = Reader {
        tool,
        whole: (!single).then(|| Saved::parse(&saved)),
        read: HashMap::new(),
        client: if single { Client::open().ok() } else { None },
        shared: HashMap::new(),
        found: Inspection::default(),
    };
    let node = render_node(context);
    for jump in node.jumps {
        reader.rule(jump.table, jump.from, &jump.rule())?;
    }
    for (table, chain) in &node.chains {
        let rules: Vec<&str> = chain.rules.iter().map(String::as_str).collect();
        reader.chain(*table, &chain.name, &rules)?;
    }
    if !wanted.shared(Shared::NatNodePorts).is_empty() {
        for rule in &node.tail {
            reader.rule(Table::Nat, SERVICES, rule)?;
        }
    }
    for shared in Shared::ALL {
        for rule in wanted.shared(shared) {
            reader.shared_rule(shared, rule, port.family)?;
        }
    }
    for chain in wanted.chains.iter() {
        let rules: Vec<&str> = chain.rules().collect();
        reader.chain(Table::Nat, chain.name, &rules)?;
    }
    Ok(reader.found)
}

struct Reader<'a> {
    tool: &'a Iptables,
    whole: Option<Saved<'a>>,
    read: HashMap<(Table, String), Option<Vec<Line>>>,
    client: Option<Client>,
    shared: HashMap<Shared, Vec<(u64, Rule)>>,
    found: Inspection,
}

/// A rule that is there, and what it counted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    rule: String,
    packets: Option<u64>,
}

impl Reader<'_> {
    fn lines(&mut self, table: Table, chain: &str) -> Result<Option<&[Line]>, Error> {
        let lines = match self.read.entry((table, chain.to_owned())) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(match &self.whole {
                Some(saved) => saved.chain(table, chain).map(|rules| {
                    let line = |rule: &&str| Line {
                        rule: (*rule).to_owned(),
                        packets: None,
                    };
                    rules.iter().map(line).collect()
                }),
                None => self
                    .tool
                    .list(table, chain)?
                    .map(|text| text.lines().filter_map(|line| counted(line, chain)).collect()),
            }),
        };
        Ok(lines.as_deref())
    }

    /// A rule in a chain that all services share. With nft that chain is read from the kernel itself, which takes a
    /// third of the time that the program takes for ten thousand services; its rules are told by comment and target.
    fn shared_rule(&mut self, shared: Shared, rule: &str, family: Family) -> Result<(), Error> {
        let (table, chain) = (shared.table(), shared.chain());
        let Some(client) = &mut self.client else {
            return self.rule(table, chain, rule);
        };
        let rules = match self.shared.entry(shared) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let number = match family {
                    Family::V4 => nftables::Family::Ip.number(),
                    Family::V6 => nftables::Family::Ip6.number(),
                };
                match client.rules(number, table.as_str(), chain) {
                    Ok(rules) => entry.insert(rules),
                    // The program says more about what is wrong.
                    Err(_) => return self.rule(table, chain, rule),
                }
            }
        };
        let comment = comment(rule);
        let to = target(rule).filter(|chain| chain.starts_with("KUBE-"));
        let leads = |rule: &Rule| {
            let jumps = |to: &str| {
                let mut all = rule.expressions.iter();
                all.any(|one| matches!(one, Expr::Verdict(Verdict::Jump(chain)) if **chain == *to))
            };
            to.is_none_or(jumps)
        };
        let found = rules
            .iter()
            .any(|(_, rule)| rule.comment.as_deref() == comment && leads(rule));
        let presence = if found {
            Presence::Present
        } else {
            Presence::Missing
        };
        self.found
            .add(format!("-t {} -A {chain} {rule}", table.as_str()), presence);
        Ok(())
    }

    /// A rule that has to be somewhere in a chain.
    fn rule(&mut self, table: Table, chain: &str, rule: &str) -> Result<(), Error> {
        let lines = self.lines(table, chain)?.unwrap_or_default();
        let found = lines.iter().find(|line| same(&line.rule, rule));
        let packets = found.and_then(|line| line.packets);
        let presence = match found {
            Some(_) => Presence::Present,
            None => Presence::Missing,
        };
        let what = format!("-t {} -A {chain} {rule}", table.as_str());
        self.found.add_counted(what, presence, packets);
        Ok(())
    }

    /// A chain that has to hold these rules and no others.
    fn chain(&mut self, table: Table, chain: &str, rules: &[&str]) -> Result<(), Error> {
        let lines = self.lines(table, chain)?;
        let equal = |lines: &[Line]| {
            lines.len() == rules.len() && lines.iter().zip(rules).all(|(line, rule)| same(&line.rule, rule))
        };
        let presence = match lines {
            None => Presence::Missing,
            Some(lines) if equal(lines) => Presence::Present,
            Some(_) => Presence::Different,
        };
        let packets = lines.and_then(|lines| lines.iter().filter_map(|line| line.packets).max());
        let what = format!("-t {} chain {chain} ({} rules)", table.as_str(), rules.len());
        self.found.add_counted(what, presence, packets);
        Ok(())
    }
}

/// The comment of a rule that we write; one of a single word stands without quotes.
fn comment(rule: &str) -> Option<&str> {
    let (_, rest) = rule.split_once("--comment ")?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split(' ').next(),
    }
}

/// `-A CHAIN rule -c PACKETS BYTES rest`
fn counted(line: &str, chain: &str) -> Option<Line> {
    let rule = line.strip_prefix("-A ")?.strip_prefix(chain)?.strip_prefix(' ')?;
    let without = |at: usize| {
        let (before, counters) = (&rule[..at], &rule[at + " -c ".len()..]);
        let (packets, rest) = counters.split_once(' ')?;
        let (bytes, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        bytes.parse::<u64>().ok()?;
        let rule = if rest.is_empty() {
            before.to_owned()
        } else {
            format!("{before} {rest}")
        };
        Some(Line {
            rule,
            packets: packets.parse().ok(),
        })
    };
    if let Some(rest) = rule.strip_prefix("-c ") {
        let mut words = rest.splitn(3, ' ');
        let packets = words.next()?.parse().ok();
        words.next()?;
        return Some(Line {
            rule: words.next()?.to_owned(),
            packets,
        });
    }
    let counted = rule.rfind(" -c ").and_then(without);
    Some(counted.unwrap_or_else(|| Line {
        rule: rule.to_owned(),
        packets: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_read_with_and_without_quotes() {
        assert_eq!(comment("-m comment --comment \"a b\" -j X"), Some("a b"));
        assert_eq!(comment("-m comment --comment a/b:c -m tcp -j X"), Some("a/b:c"));
        assert_eq!(comment("-j X"), None);
    }

    #[test]
    fn counters_are_taken_out_of_rules() {
        let read = |line: &str| counted(line, "X").map(|line| (line.rule, line.packets));
        assert_eq!(read("-A X -c 3 180 -j Y"), Some(("-j Y".to_owned(), Some(3))));
        assert_eq!(
            read("-A X -d 10.0.0.1/32 -m comment --comment \"a -c b\" -c 4 5 -j Y --to 1"),
            Some((
                "-d 10.0.0.1/32 -m comment --comment \"a -c b\" -j Y --to 1".to_owned(),
                Some(4)
            ))
        );
        assert_eq!(read("-A X -p tcp -c 1 2"), Some(("-p tcp".to_owned(), Some(1))));
        assert_eq!(read("-A X -j Y"), Some(("-j Y".to_owned(), None)));
        assert_eq!(read("-N X"), None);
    }
}
