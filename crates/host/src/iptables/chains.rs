//! Many chains as the lines of a document, all in one piece of memory: there can be tens of thousands of them, and a
//! string for every rule would be most of the cost of writing them.

use std::fmt;

const DECLARED: &str = " - [0:0]\n";
const ADD: &str = "-A ";

/// Chains in their order, each declared and filled.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Chains {
    /// `:name - [0:0]`, then `-A name rule` for every rule.
    text: String,
    spans: Vec<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    start: usize,
    rules: usize,
    end: usize,
    count: usize,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Chain<'a> {
    pub name: &'a str,
    /// The line that declares it.
    pub declaration: &'a str,
    /// The lines that fill it.
    pub lines: &'a str,
    /// How many these are.
    pub count: usize,
}

impl Chains {
    /// Begins a chain; the rules that follow are its.
    pub fn begin(&mut self, name: &str) {
        let start = self.text.len();
        let line = [":", name, DECLARED];
        line.iter().for_each(|part| self.text.push_str(part));
        let end = self.text.len();
        self.spans.push(Span {
            start,
            rules: end,
            end,
            count: 0,
        });
    }

    /// Adds a rule to the chain that was begun last: these texts in a row.
    pub fn rule(&mut self, parts: &[&str]) {
        let Some(span) = self.spans.last_mut() else {
            return;
        };
        self.text.push_str(ADD);
        self.text
            .extend_from_within(span.start + 1..span.rules - DECLARED.len());
        self.text.push(' ');
        parts.iter().for_each(|part| self.text.push_str(part));
        self.text.push('\n');
        span.end = self.text.len();
        span.count += 1;
    }

    /// Adds a chain as it is elsewhere.
    pub fn push(&mut self, chain: Chain<'_>) {
        let start = self.text.len();
        self.text.push_str(chain.declaration);
        let rules = self.text.len();
        self.text.push_str(chain.lines);
        self.spans.push(Span {
            start,
            rules,
            end: self.text.len(),
            count: chain.count,
        });
    }

    /// Forgets all and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Rules of all chains together.
    pub fn rules(&self) -> usize {
        self.spans.iter().map(|span| span.count).sum()
    }

    pub fn get(&self, at: usize) -> Option<Chain<'_>> {
        self.spans.get(at).map(|span| self.chain(span))
    }

    pub fn iter(&self) -> impl Iterator<Item = Chain<'_>> {
        self.spans.iter().map(|span| self.chain(span))
    }

    fn chain(&self, span: &Span) -> Chain<'_> {
        Chain {
            name: &self.text[span.start + 1..span.rules - DECLARED.len()],
            declaration: &self.text[span.start..span.rules],
            lines: &self.text[span.rules..span.end],
            count: span.count,
        }
    }
}

impl<'a> Chain<'a> {
    /// The rules, each as the text that stands after `-A <chain>`.
    pub fn rules(self) -> impl Iterator<Item = &'a str> {
        let before = ADD.len() + self.name.len() + 1;
        self.lines.split_terminator('\n').map(move |line| &line[before..])
    }
}

impl fmt::Debug for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.declaration, self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_lines_and_come_apart_again() {
        let mut chains = Chains::default();
        chains.begin("A");
        chains.rule(&["-j ", "B"]);
        chains.rule(&["-j C"]);
        chains.begin("EMPTY");
        let mut copy = Chains::default();
        chains.iter().for_each(|chain| copy.push(chain));
        assert_eq!(chains, copy);
        assert_eq!((copy.len(), copy.rules()), (2, 2));
        let chain = copy.get(0).unwrap();
        assert_eq!((chain.name, chain.declaration), ("A", ":A - [0:0]\n"));
        assert_eq!((chain.lines, chain.count), ("-A A -j B\n-A A -j C\n", 2));
        assert_eq!(chain.rules().collect::<Vec<_>>(), ["-j B", "-j C"]);
        let empty = copy.get(1).unwrap();
        assert_eq!((empty.name, empty.lines), ("EMPTY", ""));
        assert_eq!(copy.get(2), None);
        copy.clear();
        assert_eq!(copy, Chains::default());
    }
}
