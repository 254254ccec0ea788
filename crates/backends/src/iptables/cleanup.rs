//! Removing everything: ours, and what kube-proxy of any release left in its iptables and userspace modes.
//! The kubelet's chains stay, with the jumps to them.

use std::sync::Arc;

use ferry_host::iptables::{self, BASE_CHAINS, Flavour, Iptables, Saved, target};
use ferry_model::Family;

use super::Programs;
use super::names::{self, Table, is_service_chain};
use super::ops::Document;

const NAT: [&str; 9] = [
    names::SERVICES,
    names::NODE_PORTS,
    names::POSTROUTING,
    names::MARK_MASQ,
    names::CANARY,
    names::PORTALS_CONTAINER,
    names::PORTALS_HOST,
    names::NODE_PORT_CONTAINER,
    names::NODE_PORT_HOST,
];
const FILTER: [&str; 7] = [
    names::SERVICES,
    names::EXTERNAL_SERVICES,
    names::FORWARD,
    names::NODE_PORTS,
    names::PROXY_FIREWALL,
    names::CANARY,
    names::NODE_PORT_NON_LOCAL,
];
const MANGLE: [&str; 1] = [names::CANARY];

/// Whether a chain of a table, by name, belongs to a mode in force and is left alone.
pub type Keep = fn(table: &str, chain: &str) -> bool;

fn removes(keep: Keep, table: Table, chain: &str) -> bool {
    is_ours(table, chain) && !keep(table.as_str(), chain)
}

/// Whether a chain is one that cleaning up removes.
pub(super) fn is_ours(table: Table, chain: &str) -> bool {
    match table {
        Table::Nat => NAT.contains(&chain) || is_service_chain(chain),
        Table::Filter => FILTER.contains(&chain),
        Table::Mangle => MANGLE.contains(&chain),
    }
}

/// Whether a chain of this name, in whichever table, is ours or kube-proxy's.
pub(super) fn is_ours_anywhere(chain: &str) -> bool {
    Table::ALL.into_iter().any(|table| is_ours(table, chain))
}

/// Removes everything in both flavours of a family; goes on after a failure and says at the end what is left.
pub(super) fn cleanup(programs: &Programs, family: Family, keep: Keep) -> Result<(), Vec<String>> {
    let mut left = Vec::new();
    let tool = match programs.find(family, Arc::default()) {
        Ok(tool) => tool,
        Err(iptables::Error::Missing { .. }) => return Ok(()),
        Err(error) => return Err(vec![error.to_string()]),
    };
    clean(&tool, keep, &mut left);
    match iptables::other_flavour(&tool, is_ours_anywhere) {
        Ok(None) => {}
        Ok(Some(other)) => match other_programs(programs, other.flavour).find(family, Arc::default()) {
            Ok(tool) => clean(&tool, keep, &mut left),
            Err(error) => left.push(error.to_string()),
        },
        Err(error) => left.push(error.to_string()),
    }
    if left.is_empty() { Ok(()) } else { Err(left) }
}

fn other_programs(programs: &Programs, flavour: Flavour) -> Programs {
    Programs {
        flavour: Some(flavour),
        ..programs.clone()
    }
}

fn clean(tool: &Iptables, keep: Keep, left: &mut Vec<String>) {
    let text = match tool.save() {
        Ok(text) => text,
        Err(error) => return left.push(error.to_string()),
    };
    let saved = Saved::parse(&text);
    for table in Table::ALL {
        let chains: Vec<&str> = saved
            .chains(table)
            .filter(|chain| removes(keep, table, chain))
            .collect();
        if chains.is_empty() {
            continue;
        }
        let whole = removal(&saved, table, &chains, keep);
        // The nft program takes minutes for very many chains at once; then, and after a failure, go by parts.
        let fits = tool.flavour() == Flavour::Legacy || chains.len() <= super::ops::NFT_CHAINS;
        if !fits || tool.restore(&whole).is_err() {
            by_parts(tool, &saved, table, &chains, keep, left);
        }
    }
}

/// The rules of other chains that jump to ours, and ours.
fn removal(saved: &Saved<'_>, table: Table, chains: &[&str], keep: Keep) -> Document {
    let mut document = Document::default();
    for (chain, rule) in jumps(saved, table, keep) {
        document.remove(table, chain, rule);
    }
    chains.iter().for_each(|chain| document.delete(table, chain));
    document
}

/// Jumps from base chains that kube-proxy wrote: they carry its comments.
fn jumps<'a>(saved: &'a Saved<'a>, table: Table, keep: Keep) -> impl Iterator<Item = (&'a str, &'a str)> {
    BASE_CHAINS.into_iter().flat_map(move |chain| {
        let rules = saved.chain(table, chain).unwrap_or_default();
        let ours = move |rule: &&&str| target(rule).is_some_and(|target| removes(keep, table, target));
        rules.iter().filter(ours).map(move |rule| (chain, *rule))
    })
}

/// One thing after the other, so that what somebody else still refers to holds nothing else back.
fn by_parts(
    tool: &Iptables,
    saved: &Saved<'_>,
    table: Table,
    chains: &[&str],
    keep: Keep,
    left: &mut Vec<String>,
) {
    let restore = |document: Document| tool.restore(&document);
    for (chain, rule) in jumps(saved, table, keep) {
        let mut document = Document::default();
        document.remove(table, chain, rule);
        left.extend(restore(document).err().map(|error| error.to_string()));
    }
    for names in chains.chunks(super::ops::NFT_CHAINS) {
        let mut document = Document::default();
        names.iter().for_each(|name| document.declare(table, name));
        left.extend(restore(document).err().map(|error| error.to_string()));
    }
    for names in chains.chunks(super::ops::NFT_CHAINS) {
        let mut document = Document::default();
        names.iter().for_each(|name| document.delete_empty(table, name));
        if restore(document).is_ok() {
            continue;
        }
        for name in names {
            let mut document = Document::default();
            document.delete_empty(table, name);
            let stays = |error| format!("chain {name} stays: {error}");
            left.extend(restore(document).err().map(stays));
        }
    }
}
