//! Input for the restore program, remembering for every line whose it is.

use super::chains::Chain;
use super::{BASE_CHAINS, Table};

/// Lines in a row that know their owners.
#[derive(Clone, Debug, Default)]
struct Lines<O> {
    text: String,
    /// Every owner, with where its lines end.
    owners: Vec<(O, usize)>,
}

impl<O: Clone + Default + PartialEq> Lines<O> {
    fn push(&mut self, owner: &O, parts: &[&str]) {
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
    fn pieces(&self) -> impl Iterator<Item = (&O, &str)> {
        let mut start = 0;
        self.owners.iter().map(move |(owner, end)| {
            let piece = &self.text[start..*end];
            start = *end;
            (owner, piece)
        })
    }

    fn without(&mut self, owner: &O) {
        let mut rest = Lines::default();
        for (of, piece) in self.pieces().filter(|(of, _)| *of != owner) {
            rest.push(of, &[piece]);
        }
        *self = rest;
    }

    /// Whose line this is, counted from 0.
    fn owner(&self, line: usize) -> Option<&O> {
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
struct Section<O> {
    declared: Lines<O>,
    rules: Lines<O>,
    deleted: Vec<String>,
}

impl<O: Clone + Default + PartialEq> Section<O> {
    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.rules.is_empty() && self.deleted.is_empty()
    }

    /// Lines of the document, those that open and commit the table included.
    fn lines(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.declared.count() + self.rules.count() + self.deleted.len() + 2
    }

    /// Whose line this is, counted from 0 at the line that opens the table.
    fn owner(&self, line: usize) -> Option<&O> {
        let line = line.checked_sub(1)?;
        let declared = self.declared.count();
        match line.checked_sub(declared) {
            None => self.declared.owner(line),
            Some(line) => self.rules.owner(line),
        }
    }
}

/// What happens to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// It is added at the chain's end.
    Append,
    /// It is added at the chain's head.
    Insert,
    /// It is removed, by what it says: should it be gone already, the restore fails instead of removing another one.
    Delete,
}

/// Changes to several tables, each of them one transaction. Lines belong to the default owner unless another is named.
#[derive(Clone, Debug)]
pub struct Document<O = ()> {
    order: [Table; 3],
    /// By table.
    sections: [Section<O>; 3],
    chains: usize,
    added: usize,
    removed: usize,
    /// Rules for other chains than base chains, by table.
    written: [usize; 3],
}

impl<O: Default> Default for Document<O> {
    fn default() -> Self {
        Document::ordered(Table::ALL)
    }
}

impl<O: Default> Document<O> {
    /// One that commits its tables in this order.
    pub fn ordered(order: [Table; 3]) -> Self {
        Document {
            order,
            sections: Default::default(),
            chains: 0,
            added: 0,
            removed: 0,
            written: [0; 3],
        }
    }
}

impl<O: Clone + Default + PartialEq> Document<O> {
    /// Makes an owner's chain hold its rules and no others.
    pub fn chain(&mut self, table: Table, owner: &O, chain: Chain<'_>) {
        self.chains += 1;
        self.added += chain.count;
        self.written[table as usize] += chain.count;
        let section = self.section(table);
        section.declared.push(owner, &[chain.declaration]);
        section.rules.push(owner, &[chain.lines]);
    }

    /// Makes a chain hold these rules and no others.
    pub fn fill(&mut self, table: Table, name: &str, rules: &[String]) {
        self.declare(table, name);
        rules.iter().for_each(|rule| self.append(table, name, rule));
    }

    /// Makes a chain that is empty, also if it was there and was not.
    pub fn declare(&mut self, table: Table, name: &str) {
        self.chains += 1;
        let line = [":", name, " - [0:0]\n"];
        self.section(table).declared.push(&O::default(), &line);
    }

    pub fn append(&mut self, table: Table, chain: &str, rule: &str) {
        self.rule(table, &O::default(), Command::Append, chain, rule);
    }

    pub fn insert(&mut self, table: Table, chain: &str, rule: &str) {
        self.rule(table, &O::default(), Command::Insert, chain, rule);
    }

    pub fn remove(&mut self, table: Table, chain: &str, rule: &str) {
        self.rule(table, &O::default(), Command::Delete, chain, rule);
    }

    /// Adds or removes an owner's rule.
    pub fn rule(&mut self, table: Table, owner: &O, command: Command, chain: &str, rule: &str) {
        let option = match command {
            Command::Append => "-A ",
            Command::Insert => "-I ",
            Command::Delete => "-D ",
        };
        if command == Command::Delete {
            self.removed += 1;
        } else {
            self.added += 1;
            self.written[table as usize] += usize::from(!BASE_CHAINS.contains(&chain));
        }
        let line = [option, chain, " ", rule, "\n"];
        self.section(table).rules.push(owner, &line);
    }

    /// Empties and deletes a chain.
    pub fn delete(&mut self, table: Table, name: &str) {
        self.declare(table, name);
        self.delete_empty(table, name);
    }

    /// Deletes a chain that is empty by now.
    pub fn delete_empty(&mut self, table: Table, name: &str) {
        self.removed += 1;
        self.section(table).deleted.push(name.to_owned());
    }

    pub fn is_empty(&self) -> bool {
        self.sections.iter().all(Section::is_empty)
    }

    /// Chains that are declared: what the nft program's time grows with the square of.
    pub fn chains(&self) -> usize {
        self.chains
    }

    /// Rules that are added.
    pub fn added(&self) -> usize {
        self.added
    }

    /// Rules and chains that are removed.
    pub fn removed(&self) -> usize {
        self.removed
    }

    /// Rules added to other chains than base chains; what was left out later counts too.
    pub fn written(&self, table: Table) -> usize {
        self.written[table as usize]
    }

    /// Rules of a table that are added or removed.
    pub fn edits(&self, table: Table) -> usize {
        self.sections[table as usize].rules.count()
    }

    /// Leaves out everything of an owner.
    pub fn without(&mut self, owner: &O) {
        for section in &mut self.sections {
            section.declared.without(owner);
            section.rules.without(owner);
        }
    }

    /// Leaves out the tables that were committed before the one that this line, counted from 1, belongs to.
    pub fn without_committed(&mut self, line: usize) {
        let mut at = 0;
        for table in self.order {
            let section = self.section(table);
            let lines = section.lines();
            at += lines;
            if lines > 0 && at < line {
                *section = Section::default();
            }
        }
    }

    /// Leaves a chain in place that could not be deleted.
    pub fn without_deletion(&mut self, name: &str) {
        for section in &mut self.sections {
            section.deleted.retain(|deleted| deleted != name);
        }
    }

    fn section(&mut self, table: Table) -> &mut Section<O> {
        &mut self.sections[table as usize]
    }

    /// The text, in pieces.
    pub fn pieces(&self) -> Vec<&str> {
        let mut pieces = Vec::new();
        for table in self.order {
            let section = &self.sections[table as usize];
            if section.is_empty() {
                continue;
            }
            let opening = ["*", table.as_str(), "\n"];
            pieces.extend(opening);
            pieces.extend([&*section.declared.text, &section.rules.text]);
            let deleted = section.deleted.iter();
            pieces.extend(deleted.flat_map(|name| ["-X ", name, "\n"]));
            pieces.push("COMMIT\n");
        }
        pieces
    }

    pub fn text(&self) -> String {
        self.pieces().concat()
    }

    /// Whose line this is, counted from 1.
    pub fn owner(&self, line: usize) -> Option<&O> {
        let mut line = line.checked_sub(1)?;
        for section in self.order.map(|table| &self.sections[table as usize]) {
            match line.checked_sub(section.lines()) {
                None => return section.owner(line),
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
        let mut chains = Chains::default();
        chains.begin("A");
        chains.rule(&["-j X"]);
        chains.rule(&["-j Y"]);
        chains.begin("B");
        chains.rule(&["-j Z"]);
        let mut document = Document::default();
        for (name, chain) in ["a", "b"].into_iter().zip(chains.iter()) {
            document.chain(Table::Nat, &Some(name), chain);
        }
        document.insert(Table::Filter, "INPUT", "-j C");
        document.delete(Table::Nat, "OLD");
        let expected = "*filter\n-I INPUT -j C\nCOMMIT\n*nat\n:A - [0:0]\n:B - [0:0]\n:OLD - [0:0]\n\
                        -A A -j X\n-A A -j Y\n-A B -j Z\n-X OLD\nCOMMIT\n";
        assert_eq!(document.text(), expected);
        let owners: Vec<_> = (1..=12).map(|line| document.owner(line)).collect();
        let (a, b, node) = (Some(&Some("a")), Some(&Some("b")), Some(&None));
        let expected = [None, node, None, None, a, b, node, a, a, b, None, None];
        assert_eq!(owners, expected);

        let mut retried = document.clone();
        retried.without_committed(3);
        assert_eq!(retried.text(), document.text());
        retried.without_committed(8);
        assert!(retried.text().starts_with("*nat"));

        document.without(&Some("a"));
        document.without_deletion("OLD");
        let expected = "*filter\n-I INPUT -j C\nCOMMIT\n*nat\n:B - [0:0]\n:OLD - [0:0]\n-A B -j Z\nCOMMIT\n";
        assert_eq!(document.text(), expected);
    }
}
