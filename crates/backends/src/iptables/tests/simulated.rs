//! Tables that take restore documents as the programs do, without a kernel.

use std::collections::BTreeMap;
use std::fmt::Write;

use ferry_host::iptables::{canon, target};

use super::super::names::{NODE_PORTS, SERVICES, Shared, Table, is_service_chain};

const BASE: [(&str, &[&str]); 3] = [
    (
        "mangle",
        &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
    ),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tables(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Default for Tables {
    fn default() -> Self {
        let table = |(table, chains): (&str, &[&str])| {
            (
                table.to_owned(),
                chains
                    .iter()
                    .map(|chain| (chain.to_string(), Vec::new()))
                    .collect(),
            )
        };
        Tables(BASE.into_iter().map(table).collect())
    }
}

impl Tables {
    /// Each table whole or not at all, like the programs.
    pub(super) fn restore(&mut self, document: &str) -> Result<(), String> {
        let (mut name, mut table) = (String::new(), BTreeMap::new());
        for line in document.lines() {
            let wrong = |why: &str| format!("{line}: {why}");
            match line.split_at(1) {
                ("*", opened) => {
                    table = self
                        .0
                        .get(opened)
                        .cloned()
                        .ok_or_else(|| wrong("no such table"))?;
                    name = opened.to_owned();
                }
                (":", rest) => {
                    let chain = rest.split(' ').next().unwrap();
                    table.insert(chain.to_owned(), Vec::new());
                }
                _ if line == "COMMIT" => {
                    sound(&table)?;
                    self.0.insert(name.clone(), std::mem::take(&mut table));
                }
                _ => command(&mut table, line).map_err(|why| wrong(&why))?,
            }
        }
        Ok(())
    }

    /// As a save program prints it.
    pub(super) fn save(&self) -> String {
        let mut text = String::new();
        for (table, chains) in &self.0 {
            writeln!(text, "*{table}").unwrap();
            chains
                .keys()
                .for_each(|chain| writeln!(text, ":{chain} - [0:0]").unwrap());
            for (chain, rules) in chains {
                rules
                    .iter()
                    .for_each(|rule| writeln!(text, "-A {chain} {rule}").unwrap());
            }
            writeln!(text, "COMMIT").unwrap();
        }
        text
    }

    /// With rules in one form, and those that services share in one order; what must be last stays last.
    pub(super) fn canonical(&self) -> Tables {
        let mut tables = self.clone();
        for (table, chains) in &mut tables.0 {
            for (chain, rules) in chains {
                let tail = rules
                    .last()
                    .filter(|rule| rule.contains("must be the last rule"))
                    .cloned();
                rules.iter_mut().for_each(|rule| *rule = canon(rule));
                let shared = Shared::ALL
                    .iter()
                    .any(|shared| shared.chain() == chain && shared.table().as_str() == table);
                if shared {
                    rules.sort_unstable();
                    rules.extend(tail.map(|rule| format!("last: {}", canon(&rule))));
                }
            }
        }
        tables
    }

    /// The chains of a service and its endpoints that nothing jumps to.
    pub(super) fn unreferenced(&self) -> Vec<&str> {
        let nat = &self.0[Table::Nat.as_str()];
        let targets: Vec<&str> = nat.values().flatten().filter_map(|rule| target(rule)).collect();
        nat.keys()
            .map(String::as_str)
            .filter(|chain| is_service_chain(chain) && !targets.contains(chain))
            .collect()
    }

    pub(super) fn chain(&self, table: Table, chain: &str) -> &[String] {
        self.0[table.as_str()].get(chain).map_or(&[], Vec::as_slice)
    }

    pub(super) fn chain_mut(&mut self, table: Table, chain: &str) -> &mut Vec<String> {
        self.0
            .get_mut(table.as_str())
            .unwrap()
            .entry(chain.to_owned())
            .or_default()
    }

    /// Whether the rule that counts local clients of a node port comes before the one for everybody.
    pub(super) fn node_ports_in_order(&self) -> bool {
        let rules = self.chain(Table::Nat, NODE_PORTS);
        let port = |rule: &str| {
            rule.split_once("--dport ")
                .map(|(_, rest)| rest.split(' ').next().unwrap().to_owned())
        };
        let mut open = Vec::new();
        rules.iter().all(|rule| {
            if rule.contains("nfacct") {
                !open.contains(&port(rule))
            } else {
                open.push(port(rule));
                true
            }
        })
    }

    /// Whether the nat table's KUBE-SERVICES ends in the way to the node ports.
    pub(super) fn ends_in_node_ports(&self) -> bool {
        self.chain(Table::Nat, SERVICES)
            .last()
            .is_some_and(|rule| target(rule) == Some(NODE_PORTS))
    }
}

/// Every jump has somewhere to go.
fn sound(table: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for rule in table.values().flatten() {
        match target(rule).filter(|target| target.starts_with("KUBE-")) {
            Some(target) if !table.contains_key(target) => return Err(format!("{rule}: no such chain")),
            _ => {}
        }
    }
    Ok(())
}

fn command(table: &mut BTreeMap<String, Vec<String>>, line: &str) -> Result<(), String> {
    let (verb, rest) = line.split_once(' ').unwrap();
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    if verb == "-X" {
        let referred = table.values().flatten().any(|rule| target(rule) == Some(chain));
        let empty = table.get(chain).is_some_and(Vec::is_empty);
        return if empty && !referred {
            table.remove(chain).map(drop).ok_or_else(|| "gone".to_owned())
        } else {
            Err(format!("empty: {empty}, referred to: {referred}"))
        };
    }
    let rules = table.get_mut(chain).ok_or("no such chain")?;
    match verb {
        "-A" => rules.push(rule.to_owned()),
        "-I" => rules.insert(0, rule.to_owned()),
        "-D" => {
            let form = canon(rule);
            let at = rules
                .iter()
                .position(|rule| canon(rule) == form)
                .ok_or("no such rule")?;
            rules.remove(at);
        }
        _ => return Err("what is that?".into()),
    }
    Ok(())
}
