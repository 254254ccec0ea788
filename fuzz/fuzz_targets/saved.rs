//! Any text as what a save program prints: reading ends, and what was read can be written and is read again.

#![no_main]

use ferry_host::iptables::{Document, Saved, Table, canon, same, target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let saved = Saved::parse(text);
    let mut document: Document = Document::default();
    for table in Table::ALL {
        for chain in saved.chains(table) {
            let rules = saved.chain(table, chain).expect("a chain that is listed is there");
            let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            document.fill(table, chain, &rules);
        }
        for (_, rule) in saved.rules(table) {
            assert!(same(rule, rule));
            assert!(target(rule).is_none_or(|target| rule.contains(target)));
            assert!(canon(rule).len() <= 8 * rule.len() + 64);
        }
    }
    // Programs end lines with a newline alone; before one, a carriage return is not part of the line.
    if !text.contains('\r') {
        let written = document.text();
        let again = Saved::parse(&written);
        for table in Table::ALL {
            assert!(saved.chains(table).eq(again.chains(table)));
            assert!(saved.rules(table).eq(again.rules(table)));
        }
    }
});
