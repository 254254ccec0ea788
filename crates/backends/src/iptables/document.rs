//! Input for the restore program, remembering for every line whose it is.

use std::fmt;

use ferry_model::ServiceName;

use super::chains::Chain;
use super::names::Table;

/// Whose rules they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
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

/// Lines in a row that know their owners.
#[derive(Clone, Debug, Default)]
struct Lines {
    text: String,
    /// Every owner, with where its lines end.
    owners: Vec<(Owner, usize)>,
}

impl Lines {
    fn push(&mut self, owner: &Owner, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.push_str(part));
        match self.owners.last_mut() {
            Some((last, end)) if last == owner => *end = self.text.len(),
            _ => self.owners.push((owner.clone(), self.text.len())),
        }
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn count(&self) -> usize {
        newlines(&self.text)
    }

    /// What stands together, and whose it is.
    fn pieces(&self) -> impl Iterator<Item = (&Owner, &str)> {
        let mut start = 0;
        self.owners.iter().map(move |(owner, end)| {
            let piece = &self.text[start..*end];
            start = *end;
            (owner, piece)
        })
    }

    fn without(&mut self, owner: &Owner) {
        let mut rest = Lines::default();
        for (of, piece) in self.pieces().filter(|(of, _)| *of != owner) {
            rest.push(of, &[piece]);
        }
        *self = rest;
    }

    /// Whose line this is, counted from 0.
    fn owner(&self, line: usize) -> Option<&Owner> {
        let mut at = 0;
        self.pieces().find_map(|(owner, piece)| {
            at += newlines(piece);
            (line < at).then_some(owner)
        })
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// One table's part: chains are declared (which empties those that exist), then filled and edited, then deleted.
#[derive(Clone, Debug, Default)]
struct Section {
    declared: Lines,
    rules: Lines,
    deleted: Vec<String>,
}

impl Section {
    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.rules.is_empty() && self.deleted.is_empty()
    }

    /// Lines of the document, those that open and commit the table included.
    fn lines(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.declared.count() + self.rules.count() + self.deleted.len() + 2,
        }
    }

    /// Whose line this is, counted from 0 at the line that opens the table.
    fn owner(&self, line: usize) -> Option<&Owner> {
        let line = line.checked_sub(1)?;
        let declared = self.declared.count();
        match line.checked_sub(declared) {
            None => self.declared.owner(line),
            Some(line) => self.rules.owner(line),
        }
    }
}

/// Changes to several tables, each of them one transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    sections: [Section; 3],
    chains: usize,
    added: usize,
    removed: usize,
    /// Rules for chains of ours, by table.
    written: [usize; 3],
}

impl Document {
    /// Makes a service's chain hold its rules and no others.
    pub(super) fn chain(&mut self, owner: &Owner, chain: Chain<'_>) {
        self.chains += 1;
        self.added += chain.count;
        self.written[Table::Nat as usize] += chain.count;
        let section = self.section(Table::Nat);
        section.declared.push(owner, &[chain.declaration]);
        section.rules.push(owner, &[chain.lines]);
    }

    /// Makes a chain of the node hold these rules and no others.
    pub(super) fn node_chain(&mut self, table: Table, name: &str, rules: &[String]) {
        self.declare(table, &Owner::Node, name);
        rules
            .iter()
            .for_each(|rule| self.append(table, &Owner::Node, name, rule));
    }

    /// Makes a chain that is empty, also if it was there and was not.
    pub(super) fn declare(&mut self, table: Table, owner: &Owner, name: &str) {
        self.chains += 1;
        self.section(table)
            .declared
            .push(owner, &[":", name, " - [0:0]\n"]);
    }

    /// Adds a rule at a chain's end.
    pub(super) fn append(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.count(table, chain);
        self.section(table)
            .rules
            .push(owner, &["-A ", chain, " ", rule, "\n"]);
    }

    /// Adds a rule at a chain's head.
    pub(super) fn insert(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.count(table, chain);
        self.section(table)
            .rules
            .push(owner, &["-I ", chain, " ", rule, "\n"]);
    }

    /// Removes a rule by what it says: should it be gone already, the restore fails instead of removing another one.
    pub(super) fn remove(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.removed += 1;
        self.section(table)
            .rules
            .push(owner, &["-D ", chain, " ", rule, "\n"]);
    }

    /// Empties and deletes a chain.
    pub(super) fn delete(&mut self, table: Table, name: &str) {
        self.declare(table, &Owner::Node, name);
        self.delete_empty(table, name);
    }

    /// Deletes a chain that is empty by now.
    pub(super) fn delete_empty(&mut self, table: Table, name: &str) {
        self.removed += 1;
        self.section(table).deleted.push(name.to_owned());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sections.iter().all(Section::is_empty)
    }

    /// Chains that are declared: what the nft program's time grows with the square of.
    pub(super) fn chains(&self) -> usize {
        self.chains
    }

    pub(super) fn added(&self) -> usize {
        self.added
    }

    pub(super) fn removed(&self) -> usize {
        self.removed
    }

    /// Leaves out everything of an owner.
    pub(super) fn without(&mut self, owner: &Owner) {
        for section in &mut self.sections {
            section.declared.without(owner);
            section.rules.without(owner);
        }
    }

    /// Leaves out the tables that were committed before the one that this line, counted from 1, belongs to.
    pub(super) fn without_committed(&mut self, line: usize) {
        let mut at = 0;
        for table in Table::ALL {
            let lines = self.sections[table as usize].lines();
            at += lines;
            if lines > 0 && at < line {
                self.sections[table as usize] = Section::default();
            }
        }
    }

    /// Leaves a chain in place that could not be deleted.
    pub(super) fn without_deletion(&mut self, name: &str) {
        for section in &mut self.sections {
            section.deleted.retain(|deleted| deleted != name);
        }
    }

    /// Rules written to chains of ours; what was left out later counts too.
    pub(super) fn written(&self, table: Table) -> usize {
        self.written[table as usize]
    }

    fn count(&mut self, table: Table, chain: &str) {
        self.added += 1;
        self.written[table as usize] += usize::from(chain.starts_with("KUBE-"));
    }

    fn section(&mut self, table: Table) -> &mut Section {
        &mut self.sections[table as usize]
    }

    /// The text, in pieces.
    pub(super) fn pieces(&self) -> Vec<&str> {
        let mut pieces = Vec::new();
        for table in Table::ALL {
            let section = &self.sections[table as usize];
            if section.is_empty() {
                continue;
            }
            pieces.extend([
                "*",
                table.as_str(),
                "\n",
                &section.declared.text,
                &section.rules.text,
            ]);
            let deleted = section.deleted.iter();
            pieces.extend(deleted.flat_map(|name| ["-X ", name, "\n"]));
            pieces.push("COMMIT\n");
        }
        pieces
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        self.pieces().concat()
    }

    /// Whose line this is, counted from 1.
    pub(super) fn owner(&self, line: usize) -> Option<Owner> {
        let mut line = line.checked_sub(1)?;
        for section in &self.sections {
            match line.checked_sub(section.lines()) {
                None => return section.owner(line).cloned(),
                Some(rest) => line = rest,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::chains::Chains;
    use super::*;

    #[test]
    fn lines_know_their_owner() {
        let service = |name| Owner::Service(ServiceName::new("ns", name));
        let mut chains = Chains::default();
        chains.begin("A");
        chains.rule(&["-j X"]);
        chains.rule(&["-j Y"]);
        chains.begin("B");
        chains.rule(&["-j Z"]);
        let mut document = Document::default();
        for (name, chain) in ["a", "b"].into_iter().zip(chains.iter()) {
            document.chain(&service(name), chain);
        }
        document.insert(Table::Filter, &Owner::Node, "INPUT", "-j C");
        document.delete(Table::Nat, "OLD");
        let expected = "*filter\n-I INPUT -j C\nCOMMIT\n*nat\n:A - [0:0]\n:B - [0:0]\n:OLD - [0:0]\n\
                        -A A -j X\n-A A -j Y\n-A B -j Z\n-X OLD\nCOMMIT\n";
        assert_eq!(document.text(), expected);
        let owners: Vec<_> = (1..=12).map(|line| document.owner(line)).collect();
        let (a, b, node) = (Some(service("a")), Some(service("b")), Some(Owner::Node));
        let expected = [
            None,
            node.clone(),
            None,
            None,
            a.clone(),
            b.clone(),
            node,
            a.clone(),
            a,
            b,
            None,
            None,
        ];
        assert_eq!(owners, expected);

        let mut retried = document.clone();
        retried.without_committed(3);
        assert_eq!(retried.text(), document.text());
        retried.without_committed(8);
        assert!(retried.text().starts_with("*nat"));

        document.without(&service("a"));
        document.without_deletion("OLD");
        let expected = "*filter\n-I INPUT -j C\nCOMMIT\n*nat\n:B - [0:0]\n:OLD - [0:0]\n-A B -j Z\nCOMMIT\n";
        assert_eq!(document.text(), expected);
    }
}
