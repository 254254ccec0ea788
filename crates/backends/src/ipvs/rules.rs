//! The iptables side: eleven chains that mark, accept and filter by the sets, and the jumps into them. Pure.
//! IPVS picks the endpoint; nothing here translates a destination.

use ferry_host::iptables::{Document, Jump, Table};
use ferry_host::ipvs::Virtual;
use ferry_model::{Detector, Family, Masqueraded};

use super::sets::Set;
use crate::Likeness;
use crate::chains::{FORWARD, MARK_MASQ, POSTROUTING, PROXY_FIREWALL, SERVICES, masquerade};

/// What the rules depend on.
pub(super) struct Input<'a> {
    pub(super) family: Family,
    /// The bit that marks packets for masquerading.
    pub(super) mark: u32,
    /// Whose traffic for cluster IPs is masqueraded.
    pub(super) masqueraded: Masqueraded,
    pub(super) detector: &'a Detector,
    /// Whether `MASQUERADE --random-fully` is known.
    pub(super) random_fully: bool,
    pub(super) likeness: Likeness,
    pub(super) used: &'a dyn Fn(Set) -> bool,
    pub(super) closed_to_node: Vec<Virtual>,
}

/// A chain with its rules, without `-A CHAIN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) table: Table,
    pub(super) name: &'static str,
    pub(super) rules: Vec<String>,
}

/// All chains, in the order in which they are declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) chains: Vec<Chain>,
}

/// Each is put first in its chain when it is missing, in this order: the last one ends up on top.
pub(super) const JUMPS: [Jump; 9] = {
    use Table::{Filter, Nat};
    const fn jump(table: Table, from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump {
            table,
            from,
            matches: "",
            comment,
            to,
        }
    }
    [
        jump(Nat, "OUTPUT", SERVICES, "kubernetes service portals"),
        jump(Nat, "PREROUTING", SERVICES, "kubernetes service portals"),
        jump(Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        jump(Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        jump(Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        jump(Filter, "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
        jump(Filter, "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
        jump(Filter, "INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
        jump(Filter, "OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
    ]
};

pub(super) const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
pub(super) const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// The names of all chains, in the order in which they are declared.
pub(super) const CHAINS: [(Table, &str); 11] = [
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, NODE_PORT),
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, MARK_MASQ),
    (Table::Filter, FORWARD),
    (Table::Filter, NODE_PORT),
    (Table::Filter, PROXY_FIREWALL),
    (Table::Filter, SOURCE_RANGES),
    (Table::Filter, IPVS_FILTER),
    (Table::Filter, IPVS_OUT_FILTER),
];

/// Chains that iptables mode has under the same names.
pub(super) const SHARED_CHAINS: [(Table, &str); 5] = [
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, MARK_MASQ),
    (Table::Filter, FORWARD),
    (Table::Filter, PROXY_FIREWALL),
];

pub(super) fn render(input: &Input<'_>) -> Rules {
    let rules = |(table, name): (Table, &'static str)| {
        let rules = match (table, name) {
            (Table::Nat, SERVICES) => services(input),
            (Table::Nat, POSTROUTING) => postrouting(input),
            (Table::Nat, NODE_PORT) => node_port(input),
            (Table::Nat, LOAD_BALANCER) => load_balancer(input),
            (Table::Nat, MARK_MASQ) => vec![format!("-j MARK --or-mark {}", mark(input))],
            (Table::Filter, FORWARD) => forward(input),
            (Table::Filter, NODE_PORT) => {
                vec![format!(
                    "{} -j ACCEPT",
                    commented(input, Set::HealthCheckNodePort, "dst")
                )]
            }
            (Table::Filter, PROXY_FIREWALL) => firewall(input),
            (Table::Filter, SOURCE_RANGES) => source_ranges(input),
            (Table::Filter, IPVS_FILTER) => ipvs_filter(input),
            _ => {
                let mut rules: Vec<String> = input.closed_to_node.iter().map(closed_to_node).collect();
                rules.sort();
                rules
            }
        };
        Chain { table, name, rules }
    };
    Rules {
        chains: CHAINS.into_iter().map(rules).collect(),
    }
}

fn services(input: &Input<'_>) -> Vec<String> {
    let mut rules = vec![match input.family {
        Family::V4 => "-s 127.0.0.0/8 -j RETURN".to_owned(),
        Family::V6 => "-s ::1/128 -j RETURN".to_owned(),
    }];
    let used = input.used;
    if used(Set::LoadBalancer) {
        rules.push(format!(
            "{} -j {LOAD_BALANCER}",
            commented(input, Set::LoadBalancer, "dst,dst")
        ));
    }
    if used(Set::ClusterIp)
        && let Some((match_on, unless_local)) = cluster_ip_match(input)
    {
        let set = commented(input, Set::ClusterIp, match_on);
        rules.push(format!("{set}{unless_local} -j {MARK_MASQ}"));
    }
    if used(Set::ExternalIp) {
        let set = commented(input, Set::ExternalIp, "dst,dst");
        rules.push(format!("{set} -j {MARK_MASQ}"));
        rules.extend(accept_external(&set));
    }
    if used(Set::ExternalIpLocal) {
        rules.extend(accept_external(&commented(
            input,
            Set::ExternalIpLocal,
            "dst,dst",
        )));
    }
    rules.push(format!("-m addrtype --dst-type LOCAL -j {NODE_PORT}"));
    for set in [Set::ClusterIp, Set::LoadBalancer] {
        if used(set) {
            rules.push(format!("{} -j ACCEPT", matching(input, set, "dst,dst")));
        }
    }
    rules
}

/// Which traffic for cluster IPs is masqueraded. The node's own has the cluster IP itself as its source.
fn cluster_ip_match(input: &Input<'_>) -> Option<(&'static str, String)> {
    match (input.masqueraded, input.detector) {
        (Masqueraded::Nobody, _) => None,
        (Masqueraded::Everybody, _) => Some(("dst,dst", String::new())),
        (Masqueraded::Node, _) | (Masqueraded::NotPods, Detector::None) => Some(("src,dst", String::new())),
        (Masqueraded::NotPods, Detector::Cidr(cidr)) => Some(("dst,dst", format!(" ! -s {cidr}"))),
        (Masqueraded::NotPods, Detector::Bridge(name)) => Some(("dst,dst", format!(" ! -i {name}"))),
        (Masqueraded::NotPods, Detector::InterfacePrefix(prefix)) => {
            Some(("dst,dst", format!(" ! -i {prefix}+")))
        }
    }
}

/// Traffic that is on its way through the node, and traffic for the node, is not looked at further.
fn accept_external(set: &str) -> [String; 2] {
    [
        format!("{set} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT"),
        format!("{set} -m addrtype --dst-type LOCAL -j ACCEPT"),
    ]
}

fn postrouting(input: &Input<'_>) -> Vec<String> {
    let mark = mark(input);
    let mut rules = Vec::new();
    if (input.used)(Set::LoopBack) {
        rules.push(format!(
            "{} -j MASQUERADE",
            commented(input, Set::LoopBack, "dst,dst,src")
        ));
    }
    rules.push(format!("-m mark ! --mark {mark}/{mark} -j RETURN"));
    // The bit goes again, so that a packet that passes twice is not masqueraded twice.
    rules.push(format!("-j MARK --xor-mark {mark}"));
    rules.extend(masquerade(input.likeness, input.random_fully));
    rules
}

fn node_port(input: &Input<'_>) -> Vec<String> {
    let sets = [
        ("tcp", "dst", Set::NodePortLocalTcp, Set::NodePortTcp),
        ("udp", "dst", Set::NodePortLocalUdp, Set::NodePortUdp),
        ("sctp", "dst,dst", Set::NodePortLocalSctp, Set::NodePortSctp),
    ];
    let mut rules = Vec::new();
    for (protocol, match_on, local, all) in sets {
        for (set, target) in [(local, "RETURN"), (all, MARK_MASQ)] {
            if (input.used)(set) {
                rules.push(format!(
                    "-p {protocol} {} -j {target}",
                    commented(input, set, match_on)
                ));
            }
        }
    }
    rules
}

fn load_balancer(input: &Input<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    if (input.used)(Set::LoadBalancerLocal) {
        rules.push(format!(
            "{} -j RETURN",
            commented(input, Set::LoadBalancerLocal, "dst,dst")
        ));
    }
    rules.push(format!("-j {MARK_MASQ}"));
    rules
}

fn forward(input: &Input<'_>) -> Vec<String> {
    let mark = mark(input);
    vec![
        format!(
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"
        ),
        "-m comment --comment \"kubernetes forwarding conntrack rule\" \
         -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
            .to_owned(),
    ]
}

fn firewall(input: &Input<'_>) -> Vec<String> {
    let guarded = (input.used)(Set::LoadBalancerFw);
    let rule = || {
        format!(
            "{} -j {SOURCE_RANGES}",
            commented(input, Set::LoadBalancerFw, "dst,dst")
        )
    };
    guarded.then(rule).into_iter().collect()
}

fn source_ranges(input: &Input<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    for set in [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp] {
        if (input.used)(set) {
            rules.push(format!("{} -j RETURN", commented(input, set, "dst,dst,src")));
        }
    }
    rules.push("-j DROP".to_owned());
    rules
}

/// Services' addresses lead to services only, never to what else listens on the node.
fn ipvs_filter(input: &Input<'_>) -> Vec<String> {
    let open = [
        (Set::LoadBalancer, "dst,dst"),
        (Set::ClusterIp, "dst,dst"),
        (Set::ExternalIp, "dst,dst"),
        (Set::ExternalIpLocal, "dst,dst"),
        (Set::HealthCheckNodePort, "dst"),
    ];
    let mut rules: Vec<String> = open
        .iter()
        .map(|(set, on)| format!("{} -j RETURN", matching(input, *set, on)))
        .collect();
    let others = format!(
        "-m conntrack --ctstate NEW {}",
        matching(input, Set::IpvsIps, "dst")
    );
    if input.likeness == Likeness::Outcomes {
        rules.push(format!("-p tcp {others} -j REJECT --reject-with tcp-reset"));
    }
    rules.push(format!("{others} -j REJECT"));
    rules
}

/// The node's own packets to one of its addresses have that address as their source.
fn closed_to_node(at: &Virtual) -> String {
    let protocol = match i32::from(at.protocol) {
        libc::IPPROTO_UDP => "udp",
        libc::IPPROTO_SCTP => "sctp",
        _ => "tcp",
    };
    let (ip, port) = (at.address, at.port);
    format!("-s {ip} -m ipvs --vaddr {ip} --vproto {protocol} --vport {port} -j DROP")
}

fn matching(input: &Input<'_>, set: Set, on: &str) -> String {
    format!("-m set --match-set {} {on}", set.name(input.family))
}

fn commented(input: &Input<'_>, set: Set, on: &str) -> String {
    format!(
        "-m comment --comment \"{}\" {}",
        set.comment(),
        matching(input, set, on)
    )
}

fn mark(input: &Input<'_>) -> String {
    format!("{:#010x}", input.mark)
}

/// In the order in which the tables are committed.
pub(super) const ORDER: [Table; 3] = [Table::Mangle, Table::Nat, Table::Filter];

/// What to restore: the chains that differ from `known` (all without it), and the missing jumps.
pub(super) fn document(want: &Rules, known: Option<&Rules>, missing: &[Jump]) -> Document {
    let mut document = Document::ordered(ORDER);
    for (place, chain) in want.chains.iter().enumerate() {
        let old = known.and_then(|known| known.chains.get(place));
        if old == Some(chain) {
            continue;
        }
        match old.filter(|_| chain.name == IPVS_OUT_FILTER) {
            Some(old) => edit_unordered(&mut document, old, chain),
            None => document.fill(chain.table, chain.name, &chain.rules),
        }
    }
    for jump in missing {
        document.insert(jump.table, jump.from, &jump.rule());
    }
    document
}

/// The one chain that grows with services. All its rules drop, so their order is free, and only the difference is sent.
fn edit_unordered(document: &mut Document, old: &Chain, new: &Chain) {
    let missing_in = |rules: &[String], rule: &String| rules.binary_search(rule).is_err();
    for gone in old.rules.iter().filter(|rule| missing_in(&new.rules, rule)) {
        document.remove(new.table, new.name, gone);
    }
    for come in new.rules.iter().filter(|rule| missing_in(&old.rules, rule)) {
        document.append(new.table, new.name, come);
    }
}
