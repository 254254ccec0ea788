//! What has to be done to the tables, and in which order it can be done soundly.

use std::fmt;

use ferry_host::iptables::{Chain, Chains, Command};
use ferry_model::ServiceName;

use super::names::{SERVICES, Shared, Table};
use super::ruleset::NodeChain;

/// Whose rules they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    #[default]
    Node,
    Service(ServiceName),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Node => f.write_str("rules of the node"),
            Owner::Service(name) => write!(f, "rules of service {name}"),
        }
    }
}

pub(super) type Document = ferry_host::iptables::Document<Owner>;

/// More deletions than this in one chain, and writing it again is cheaper: the nft program compares each rule to be
/// deleted with every rule of the chain.
pub(super) const DELETIONS: usize = 64;

/// Chains in one document for the nft program, whose time grows with the square of their number.
pub(super) const NFT_CHAINS: usize = 1000;

/// What has to be done. Nothing in it depends on the order of services.
#[derive(Debug, Default)]
pub(super) struct Ops {
    /// Chains that no service owns.
    pub(super) node_chains: Vec<(Table, NodeChain)>,
    /// Empty chains to be made.
    pub(super) declared: Vec<(Table, &'static str)>,
    /// Chains of services, all in the nat table; those of one service stand together.
    chains: Chains,
    /// Whose they are: every owner with the number of chains up to its last.
    owners: Vec<(Owner, usize)>,
    pub(super) shared: [SharedOp; 6],
    /// Rules in chains that are not ours alone.
    pub(super) inserted: Vec<(Table, &'static str, String)>,
    pub(super) appended: Vec<(Table, &'static str, String)>,
    pub(super) removed: Vec<(Table, String, String)>,
    /// Chains of the nat table that nothing of ours refers to any more.
    pub(super) stale: Vec<String>,
}

/// What has to be done to a chain that services share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SharedOp {
    Edit(Edit),
    /// Write all of it.
    Write {
        rules: Vec<(Owner, Vec<String>)>,
        tail: Vec<String>,
    },
}

impl Default for SharedOp {
    fn default() -> Self {
        SharedOp::Edit(Edit::default())
    }
}

/// Some rules of a shared chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Edit {
    pub(super) remove: Vec<(Owner, String)>,
    /// At the head, those of one service in their order.
    pub(super) insert: Vec<(Owner, Vec<String>)>,
    pub(super) append: Vec<String>,
}

impl Ops {
    pub(super) fn shared_mut(&mut self, chain: Shared) -> &mut SharedOp {
        &mut self.shared[chain as usize]
    }

    /// Adds a chain of a service.
    pub(super) fn push(&mut self, owner: &Owner, chain: Chain<'_>) {
        self.chains.push(chain);
        match self.owners.last_mut() {
            Some((last, end)) if last == owner => *end = self.chains.len(),
            _ => self.owners.push((owner.clone(), self.chains.len())),
        }
    }

    /// Chains of services, with their owners.
    pub(super) fn chains(&self) -> impl Iterator<Item = (&Owner, Chain<'_>)> {
        let mut owners = self.owners.iter().peekable();
        self.chains.iter().enumerate().filter_map(move |(at, chain)| {
            while owners.next_if(|(_, end)| *end <= at).is_some() {}
            Some((&owners.peek()?.0, chain))
        })
    }

    /// The documents to restore, one after the other; what every state in between does to packets is either what the
    /// one before did or what the one after does. With at most `limit` chains it is one document, and so a single
    /// transaction for each table.
    pub(super) fn documents(&self, limit: usize) -> impl Iterator<Item = Document> {
        let small = self.chains.len() + self.stale.len() <= limit;
        let mut first = Document::default();
        for (table, chain) in &self.node_chains {
            first.fill(*table, &chain.name, &chain.rules);
        }
        for (table, name) in &self.declared {
            first.declare(*table, name);
        }
        let mut filling = self.fill(first, if small { usize::MAX } else { limit });
        let (mut referring, last) = if small {
            (filling.next().unwrap_or_default(), Vec::new())
        } else {
            (Document::default(), self.delete_stale(limit).collect())
        };
        self.refer(&mut referring);
        if small {
            let stale = self.stale.iter();
            stale.for_each(|name| referring.delete(Table::Nat, name));
        }
        let documents = filling.chain([referring]).chain(last);
        documents.filter(|document| !document.is_empty())
    }

    /// The chains of services, in documents of at most about so many; a service is never split.
    fn fill(&self, first: Document, limit: usize) -> impl Iterator<Item = Document> {
        let (mut next, mut owner, mut begun) = (0, 0, Some(first));
        std::iter::from_fn(move || {
            let mut document = begun
                .take()
                .or_else(|| (next < self.chains.len()).then(Document::default))?;
            while let Some((name, end)) = self.owners.get(owner).filter(|_| document.chains() < limit) {
                let chains = (next..*end).filter_map(|at| self.chains.get(at));
                chains.for_each(|chain| document.chain(Table::Nat, name, chain));
                (next, owner) = (*end, owner + 1);
            }
            Some(document)
        })
    }

    /// What refers to chains of services, or no longer does.
    fn refer(&self, document: &mut Document) {
        for (table, chain, rule) in &self.removed {
            document.remove(*table, chain, rule);
        }
        for chain in Shared::ALL {
            self.shared[chain as usize].put(chain, document);
        }
        for (table, chain, rule) in &self.appended {
            document.append(*table, chain, rule);
        }
        for (table, chain, rule) in &self.inserted {
            document.insert(*table, chain, rule);
        }
    }

    /// Stale chains can refer to each other, so all are emptied before the first one is deleted.
    fn delete_stale(&self, limit: usize) -> impl Iterator<Item = Document> {
        let emptied = self.stale.chunks(limit).map(|names| {
            let mut document = Document::default();
            names.iter().for_each(|name| document.declare(Table::Nat, name));
            document
        });
        let deleted = self.stale.chunks(limit).map(|names| {
            let mut document = Document::default();
            names
                .iter()
                .for_each(|name| document.delete_empty(Table::Nat, name));
            document
        });
        emptied.chain(deleted)
    }
}

impl SharedOp {
    fn put(&self, chain: Shared, document: &mut Document) {
        let (table, name) = (chain.table(), chain.chain());
        match self {
            SharedOp::Write { rules, tail } => {
                document.declare(table, name);
                for (owner, rules) in rules {
                    rules
                        .iter()
                        .for_each(|rule| document.rule(table, owner, Command::Append, name, rule));
                }
                tail.iter().for_each(|rule| document.append(table, name, rule));
            }
            SharedOp::Edit(edit) => {
                for (owner, rule) in &edit.remove {
                    document.rule(table, owner, Command::Delete, name, rule);
                }
                for (owner, rules) in &edit.insert {
                    rules
                        .iter()
                        .rev()
                        .for_each(|rule| document.rule(table, owner, Command::Insert, name, rule));
                }
                edit.append
                    .iter()
                    .for_each(|rule| document.append(table, name, rule));
            }
        }
    }
}

impl Edit {
    /// From a service's rules to its new ones. The order within a service counts in KUBE-NODEPORTS, where the rule
    /// that counts local clients has to come first, so there all of them are placed again.
    pub(super) fn replace(&mut self, chain: Shared, owner: &Owner, old: &[String], new: &[String]) {
        if old == new {
            return;
        }
        let keep = |rule: &String, among: &[String]| chain != Shared::NatNodePorts && among.contains(rule);
        self.remove.extend(
            old.iter()
                .filter(|rule| !keep(rule, new))
                .map(|rule| (owner.clone(), rule.clone())),
        );
        let insert: Vec<String> = new.iter().filter(|rule| !keep(rule, old)).cloned().collect();
        if !insert.is_empty() {
            self.insert.push((owner.clone(), insert));
        }
    }
}

/// Whether this shared chain ends in rules of the node.
pub(super) fn has_tail(chain: Shared) -> bool {
    chain == Shared::NatServices && chain.chain() == SERVICES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Owner {
        Owner::Service(ServiceName::new("ns", name))
    }

    fn push(ops: &mut Ops, of: &str, name: &str) {
        let mut chains = Chains::default();
        chains.begin(name);
        chains.rule(&["-j KUBE-MARK-MASQ"]);
        ops.push(&owner(of), chains.get(0).unwrap());
    }

    fn ops() -> Ops {
        let mut ops = Ops {
            node_chains: vec![(
                Table::Nat,
                NodeChain {
                    name: "KUBE-MARK-MASQ".into(),
                    rules: vec!["-j MARK".into()],
                },
            )],
            stale: vec!["KUBE-SVC-OLD".into(), "KUBE-SEP-OLD".into()],
            inserted: vec![(Table::Nat, "OUTPUT", "-j KUBE-SERVICES".into())],
            ..Ops::default()
        };
        push(&mut ops, "a", "KUBE-SVC-A");
        push(&mut ops, "a", "KUBE-SEP-A");
        push(&mut ops, "b", "KUBE-SVC-B");
        *ops.shared_mut(Shared::NatServices) = SharedOp::Write {
            rules: vec![(owner("a"), vec!["-j KUBE-SVC-A".into()])],
            tail: vec!["-j TAIL".into()],
        };
        ops
    }

    #[test]
    fn a_small_change_is_one_transaction() {
        let ops = ops();
        let documents: Vec<Document> = ops.documents(100).collect();
        assert_eq!(documents.len(), 1);
        let expected = "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SVC-A - [0:0]\n:KUBE-SEP-A - [0:0]\n:KUBE-SVC-B - [0:0]\n\
            :KUBE-SERVICES - [0:0]\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-OLD - [0:0]\n\
            -A KUBE-MARK-MASQ -j MARK\n-A KUBE-SVC-A -j KUBE-MARK-MASQ\n-A KUBE-SEP-A -j KUBE-MARK-MASQ\n\
            -A KUBE-SVC-B -j KUBE-MARK-MASQ\n-A KUBE-SERVICES -j KUBE-SVC-A\n-A KUBE-SERVICES -j TAIL\n\
            -I OUTPUT -j KUBE-SERVICES\n-X KUBE-SVC-OLD\n-X KUBE-SEP-OLD\nCOMMIT\n";
        assert_eq!(documents[0].text(), expected);
    }

    #[test]
    fn a_large_one_goes_from_what_is_referred_to_to_what_refers() {
        let ops = ops();
        let texts: Vec<String> = ops.documents(2).map(|document| document.text()).collect();
        let chains: Vec<(String, &str)> = ops
            .chains()
            .map(|(owner, chain)| (owner.to_string(), chain.name))
            .collect();
        assert_eq!(chains[1], (owner("a").to_string(), "KUBE-SEP-A"));
        assert_eq!(chains[2], (owner("b").to_string(), "KUBE-SVC-B"));
        let position = |line: &str| texts.iter().position(|text| text.contains(line)).unwrap();
        assert!(texts.iter().all(|text| text.matches(":KUBE").count() <= 3));
        assert_eq!(
            position("-A KUBE-SVC-A"),
            position("-A KUBE-SEP-A"),
            "a service is never split"
        );
        assert!(position("-A KUBE-MARK-MASQ") <= position("-A KUBE-SVC-A"));
        assert!(position("-A KUBE-SVC-B") < position("-A KUBE-SERVICES -j KUBE-SVC-A"));
        assert!(position("-A KUBE-SERVICES -j KUBE-SVC-A") < position(":KUBE-SVC-OLD"));
        assert!(position(":KUBE-SVC-OLD") < position("-X KUBE-SEP-OLD"));
    }

    #[test]
    fn edits_keep_what_stays_and_place_node_ports_again() {
        let (old, new) = (
            vec!["1".to_owned(), "2".to_owned()],
            vec!["2".to_owned(), "3".to_owned()],
        );
        let mut edit = Edit::default();
        edit.replace(Shared::NatServices, &owner("a"), &old, &new);
        assert_eq!(edit.remove, [(owner("a"), "1".to_owned())]);
        assert_eq!(edit.insert, [(owner("a"), vec!["3".to_owned()])]);
        let mut edit = Edit::default();
        edit.replace(Shared::NatNodePorts, &owner("a"), &old, &new);
        assert_eq!((edit.remove.len(), &edit.insert), (2, &vec![(owner("a"), new)]));
        let mut edit = Edit::default();
        edit.replace(Shared::NatNodePorts, &owner("a"), &old, &old);
        assert_eq!(edit, Edit::default());
    }
}
