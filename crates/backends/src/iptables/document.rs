//! Input for the restore program, remembering for every line whose it is.

use std::fmt;

use ferry_model::ServiceName;

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

/// Lines of one owner that stand together.
#[derive(Clone, Debug)]
struct Piece {
    owner: Owner,
    text: String,
}

/// One table's part: chains are declared (which empties those that exist), then filled and edited, then deleted.
#[derive(Clone, Debug, Default)]
struct Section {
    declared: Vec<Piece>,
    rules: Vec<Piece>,
    deleted: Vec<String>,
}

impl Section {
    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.rules.is_empty() && self.deleted.is_empty()
    }

    /// Lines of the document, those that open and commit the table included.
    fn lines(&self) -> usize {
        let lines = |pieces: &[Piece]| {
            pieces
                .iter()
                .map(|piece| piece.text.lines().count())
                .sum::<usize>()
        };
        match self.is_empty() {
            true => 0,
            false => lines(&self.declared) + lines(&self.rules) + self.deleted.len() + 2,
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
    /// Makes a chain hold these rules and no others.
    pub(super) fn chain(&mut self, table: Table, owner: &Owner, name: &str, rules: &[String]) {
        self.declare(table, owner, name);
        self.added += rules.len();
        self.written[table as usize] += rules.len();
        let text = text_of(&mut self.section(table).rules, owner);
        text.reserve(
            rules
                .iter()
                .map(|rule| name.len() + rule.len() + "-A  \n".len())
                .sum(),
        );
        for rule in rules {
            ["-A ", name, " ", rule, "\n"]
                .iter()
                .for_each(|part| text.push_str(part));
        }
    }

    /// Makes a chain that is empty, also if it was there and was not.
    pub(super) fn declare(&mut self, table: Table, owner: &Owner, name: &str) {
        self.chains += 1;
        push(
            &mut self.section(table).declared,
            owner,
            &[":", name, " - [0:0]\n"],
        );
    }

    /// Adds a rule at a chain's end.
    pub(super) fn append(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.count(table, chain);
        push(
            &mut self.section(table).rules,
            owner,
            &["-A ", chain, " ", rule, "\n"],
        );
    }

    /// Adds a rule at a chain's head.
    pub(super) fn insert(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.count(table, chain);
        push(
            &mut self.section(table).rules,
            owner,
            &["-I ", chain, " ", rule, "\n"],
        );
    }

    /// Removes a rule by what it says: should it be gone already, the restore fails instead of removing another one.
    pub(super) fn remove(&mut self, table: Table, owner: &Owner, chain: &str, rule: &str) {
        self.removed += 1;
        push(
            &mut self.section(table).rules,
            owner,
            &["-D ", chain, " ", rule, "\n"],
        );
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
            section.declared.retain(|piece| piece.owner != *owner);
            section.rules.retain(|piece| piece.owner != *owner);
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

    /// The text.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(self.bytes());
        self.walk(|line, _| text.push_str(line));
        text
    }

    /// Whose line this is, counted from 1.
    pub(super) fn owner(&self, line: usize) -> Option<Owner> {
        let (mut at, mut found) = (0, None);
        self.walk(|piece, owner| {
            let lines = piece.matches('\n').count();
            if (at + 1..=at + lines).contains(&line) {
                found = owner.cloned();
            }
            at += lines;
        });
        found
    }

    fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.walk(|piece, _| bytes += piece.len());
        bytes
    }

    fn walk(&self, mut each: impl FnMut(&str, Option<&Owner>)) {
        for table in Table::ALL {
            let section = &self.sections[table as usize];
            if section.is_empty() {
                continue;
            }
            each("*", None);
            each(table.as_str(), None);
            each("\n", None);
            for piece in section.declared.iter().chain(&section.rules) {
                each(&piece.text, Some(&piece.owner));
            }
            for name in &section.deleted {
                each("-X ", None);
                each(name, None);
                each("\n", None);
            }
            each("COMMIT\n", None);
        }
    }
}

fn push(pieces: &mut Vec<Piece>, owner: &Owner, parts: &[&str]) {
    let text = text_of(pieces, owner);
    parts.iter().for_each(|part| text.push_str(part));
}

/// The text to which this owner's next lines go.
fn text_of<'a>(pieces: &'a mut Vec<Piece>, owner: &Owner) -> &'a mut String {
    if pieces.last().is_none_or(|last| last.owner != *owner) {
        pieces.push(Piece {
            owner: owner.clone(),
            text: String::new(),
        });
    }
    let last = pieces.len() - 1;
    &mut pieces[last].text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_know_their_owner() {
        let service = |name| Owner::Service(ServiceName::new("ns", name));
        let mut document = Document::default();
        document.chain(Table::Nat, &service("a"), "A", &["-j X".into(), "-j Y".into()]);
        document.chain(Table::Nat, &service("b"), "B", &["-j Z".into()]);
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
