//! What the tables should hold, as values. A rule is the text that stands after `-A <chain>`.

use std::fmt;

use ferry_host::iptables::{Chains, Jump};

use super::names::{CANARY, KUBELET_FIREWALL, SERVICES, Shared, Table};

/// One service's part of a family's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceRules {
    /// Rules in the chains that all services share, in the order of [`Shared::ALL`]. Each matches a frontend of its
    /// own, so the order of services within a chain does not matter; within a service it does.
    pub(super) shared: [Vec<String>; 6],
    /// Chains of its own, all in the nat table.
    pub(super) chains: Chains,
}

/// A chain that no service owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeChain {
    pub(super) name: String,
    pub(super) rules: Vec<String>,
}

impl ServiceRules {
    /// Forgets all and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.shared.iter_mut().for_each(Vec::clear);
        self.chains.clear();
    }

    pub(super) fn shared(&self, chain: Shared) -> &[String] {
        &self.shared[chain as usize]
    }

    pub(super) fn shared_mut(&mut self, chain: Shared) -> &mut Vec<String> {
        &mut self.shared[chain as usize]
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts {
            filter: 0,
            nat: self.chains.rules(),
        };
        for chain in Shared::ALL {
            *counts.of(chain.table()) += self.shared(chain).len();
        }
        counts
    }
}

/// What no service owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeRules {
    /// Chains whose whole content is ours.
    pub(super) chains: Vec<(Table, NodeChain)>,
    /// The kubelet's chain: our rule has to be in it, what else is there is the kubelet's business.
    pub(super) kubelet_firewall: Option<String>,
    /// The end of the nat table's KUBE-SERVICES.
    pub(super) tail: Vec<String>,
    pub(super) jumps: &'static [Jump],
}

impl NodeRules {
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts {
            filter: usize::from(self.kubelet_firewall.is_some()),
            nat: self.tail.len(),
        };
        for (table, chain) in &self.chains {
            *counts.of(*table) += chain.rules.len();
        }
        counts
    }
}

/// Rules by table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) filter: usize,
    pub(super) nat: usize,
}

impl Counts {
    /// The count of a table. The mangle table has no rules of ours; its place is never read.
    fn of(&mut self, table: Table) -> &mut usize {
        match table {
            Table::Filter | Table::Mangle => &mut self.filter,
            Table::Nat => &mut self.nat,
        }
    }

    pub(super) fn add(&mut self, other: Counts) {
        self.filter += other.filter;
        self.nat += other.nat;
    }

    pub(super) fn subtract(&mut self, other: Counts) {
        self.filter -= other.filter;
        self.nat -= other.nat;
    }
}

/// A family's tables, whole: for people and for tests. Syncing never needs all of it at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ruleset {
    pub(super) node: NodeRules,
    pub(super) services: Vec<ServiceRules>,
}

impl Ruleset {
    fn write_chain(f: &mut fmt::Formatter<'_>, chain: &str, rules: &[String]) -> fmt::Result {
        rules.iter().try_for_each(|rule| writeln!(f, "-A {chain} {rule}"))
    }

    /// Chains by name, in the order kube-proxy declares them.
    fn chain_names(&self, table: Table) -> Vec<&str> {
        let shared = Shared::ALL.into_iter().filter(|shared| shared.table() == table);
        let mut names: Vec<&str> = shared.map(Shared::chain).collect();
        names.extend(
            self.node
                .chains
                .iter()
                .filter(|(of, _)| *of == table)
                .map(|(_, chain)| chain.name.as_str()),
        );
        names.push(CANARY);
        if table == Table::Filter {
            names.push(KUBELET_FIREWALL);
        }
        if table == Table::Nat {
            let chains = self.services.iter().flat_map(|service| service.chains.iter());
            names.extend(chains.map(|chain| chain.name));
        }
        names
    }
}

/// As a document for `iptables-restore`.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in Table::ALL {
            writeln!(f, "*{}", table.as_str())?;
            for name in self.chain_names(table) {
                writeln!(f, ":{name} - [0:0]")?;
            }
            for (_, chain) in self.node.chains.iter().filter(|(of, _)| *of == table) {
                Self::write_chain(f, &chain.name, &chain.rules)?;
            }
            if let (Table::Filter, Some(rule)) = (table, &self.node.kubelet_firewall) {
                Self::write_chain(f, KUBELET_FIREWALL, std::slice::from_ref(rule))?;
            }
            for service in &self.services {
                for shared in Shared::ALL.into_iter().filter(|shared| shared.table() == table) {
                    Self::write_chain(f, shared.chain(), service.shared(shared))?;
                }
                for chain in service.chains.iter().filter(|_| table == Table::Nat) {
                    f.write_str(chain.lines)?;
                }
            }
            if table == Table::Nat {
                Self::write_chain(f, SERVICES, &self.node.tail)?;
            }
            for jump in self.node.jumps.iter().filter(|jump| jump.table == table) {
                writeln!(f, "-I {} {}", jump.from, jump.rule())?;
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}
