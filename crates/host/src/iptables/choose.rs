//! Which flavour to speak where nobody has chosen one: an image has the programs of both, and no plain names.

use std::sync::Arc;

use super::mixed::has_legacy_tables;
use super::{Flavour, Ip, Iptables, Table, Writers};

/// Chains that a kubelet makes in table mangle to show which flavour the node uses; it has made the first for this very
/// purpose since Kubernetes 1.24, the second since 1.17.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// The programs of the flavour that the kubelet speaks, else of the one with more rules, else of nf_tables; of what
/// there is of them.
pub(super) fn by_rules(ip: Ip, writers: &Arc<Writers>) -> Option<Iptables> {
    let first = flavour();
    [first, first.other()]
        .into_iter()
        .find_map(|flavour| Iptables::of_flavour(ip, flavour, Arc::clone(writers)).ok())
}

fn flavour() -> Flavour {
    let (nft, legacy) = (tools(Flavour::Nft), tools(Flavour::Legacy));
    if nft.iter().any(is_hinted) {
        return Flavour::Nft;
    }
    if legacy.iter().any(is_hinted) || rules(&legacy) > rules(&nft) {
        return Flavour::Legacy;
    }
    Flavour::Nft
}

/// Of both families, since the kernel's rules are one thing to whoever chose. The legacy programs are not started where
/// there are no legacy tables: asking would make them.
fn tools(flavour: Flavour) -> Vec<Iptables> {
    let there = |ip: &Ip| flavour == Flavour::Nft || has_legacy_tables(*ip);
    [Ip::V4, Ip::V6]
        .into_iter()
        .filter(there)
        .filter_map(|ip| Iptables::of_flavour(ip, flavour, Arc::default()).ok())
        .collect()
}

fn is_hinted(tool: &Iptables) -> bool {
    let saved = tool.save_table(Table::Mangle).unwrap_or_default();
    saved
        .lines()
        .any(|line| HINTS.iter().any(|hint| line.starts_with(hint)))
}

fn rules(tools: &[Iptables]) -> usize {
    let saved = tools.iter().filter_map(|tool| tool.save().ok());
    saved
        .map(|text| text.lines().filter(|line| line.starts_with("-A ")).count())
        .sum()
}
