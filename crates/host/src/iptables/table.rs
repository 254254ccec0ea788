//! The tables that NAT and filtering happen in, and the ways into chains of one's own.

use std::fmt;

/// A table. `raw` and `security` are nobody's business here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Mangle,
    Filter,
    Nat,
}

impl Table {
    /// In the order in which a document has them: what rejects comes before what stops redirecting.
    pub const ALL: [Table; 3] = [Table::Mangle, Table::Filter, Table::Nat];

    pub const fn as_str(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Filter => "filter",
            Table::Nat => "nat",
        }
    }

    pub fn parse(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.as_str() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The chains that the kernel itself enters.
pub const BASE_CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// How a packet gets from a base chain into another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    pub table: Table,
    pub from: &'static str,
    /// What else has to hold, as it stands in the rule.
    pub matches: &'static str,
    /// Empty for none.
    pub comment: &'static str,
    pub to: &'static str,
}

impl Jump {
    /// The rule, without `-A FROM`, as the save program prints it.
    pub fn rule(&self) -> String {
        let mut parts = Vec::with_capacity(3);
        if !self.matches.is_empty() {
            parts.push(self.matches.to_owned());
        }
        if !self.comment.is_empty() {
            parts.push(format!("-m comment --comment \"{}\"", self.comment));
        }
        parts.push(format!("-j {}", self.to));
        parts.join(" ")
    }
}
