//! The outcome of a comparison.

use std::fmt;

use serde::{Deserialize, Serialize};

/// So many services are named in the text; all of them are in the JSON.
const NAMED: usize = 5;

/// What `ferry compare` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareReport {
    /// Which form of the plan was compared: the older one of both sides.
    pub form: u32,
    pub before: Side,
    pub after: Side,
    /// How many services there are, and how many of them would behave differently.
    pub services: usize,
    pub different: usize,
    /// What is different for every service.
    pub node: Vec<NodeDifference>,
    /// What is different for some.
    pub classes: Vec<ClassDifference>,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    pub what: String,
    pub mode: String,
    /// The form in which it told its plan.
    pub form: u32,
}

/// Something about the node itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDifference {
    pub what: String,
    pub before: String,
    pub after: String,
}

/// A class of packets that is treated differently, and of which service ports that is true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassDifference {
    /// Who sends: pods, the node, others, or everybody.
    pub client: String,
    /// Where to.
    pub frontend: String,
    pub before: String,
    pub after: String,
    pub services: Vec<String>,
}

impl CompareReport {
    /// Whether nothing would change for any packet.
    pub fn agrees(&self) -> bool {
        self.node.is_empty() && self.classes.is_empty()
    }
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after, .. } = self;
        writeln!(f, "before  {} ({} mode)", before.what, before.mode)?;
        writeln!(f, "after   {} ({} mode)", after.what, after.mode)?;
        if self.form == 0 {
            writeln!(
                f,
                "note    one side is too old to tell its frontends one by one: only clients from elsewhere are compared"
            )?;
        }
        if self.agrees() {
            return writeln!(
                f,
                "\nno packet would be treated differently, of {} services",
                self.services
            );
        }
        if !self.node.is_empty() {
            writeln!(f, "\nfor every service")?;
        }
        for NodeDifference { what, before, after } in &self.node {
            writeln!(f, "  {what}: {before} -> {after}")?;
        }
        for class in &self.classes {
            write!(f, "\n{class}")?;
        }
        writeln!(
            f,
            "\n{} of {} services would behave differently",
            self.different, self.services
        )
    }
}

impl fmt::Display for ClassDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "from {} to {}", self.client, self.frontend)?;
        writeln!(f, "  before  {}", self.before)?;
        writeln!(f, "  after   {}", self.after)?;
        let named: Vec<&str> = self.services.iter().take(NAMED).map(String::as_str).collect();
        write!(
            f,
            "  {} service port(s): {}",
            self.services.len(),
            named.join(", ")
        )?;
        match self.services.len() - named.len() {
            0 => writeln!(f),
            more => writeln!(f, " and {more} more"),
        }
    }
}
