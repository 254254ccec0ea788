//! Taking back everything that this mode, or kube-proxy in it, wrote; and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_host::ipset::Ipset;
use ferry_host::iptables::{Ip, Iptables, Writers};
use ferry_host::ipvs::{Change, Ipvs};
use ferry_host::route::Route;
use ferry_model::Family;

use super::observe;
use super::record::Record;
use super::rules::{CHAINS, JUMPS, NODE_PORT, SERVICES, SHARED_CHAINS, Table};
use super::sets::Set;
use super::{DEVICE, Error};

/// How long a set may stay in use after the last rule that names it is gone: kernels free rules a little later.
const RELEASE: Duration = Duration::from_secs(10);

/// Whether this mode was ever used here. Where it was not, there is nothing to clean up, and nothing is loaded to see.
///
/// # Errors
/// When interfaces or sets cannot be listed.
pub fn leftovers() -> Result<bool, Error> {
    if Route::open()?.link(DEVICE)?.is_some() {
        return Ok(true);
    }
    Ok(!own_sets(&mut Ipset::open()?).is_empty())
}

/// Removes our virtual servers, the interface, the rules and the sets of both families. What others made stays: their
/// virtual servers, their rules, and chains that iptables mode has under the same names and filled since.
///
/// # Errors
/// When something could not be removed; everything else is removed all the same.
pub fn cleanup(record_directory: &Path) -> Result<(), Error> {
    let record = Record::new(record_directory);
    let steps = [
        remove_virtual_servers(&record),
        remove_interface(),
        remove_rules(),
        remove_sets(),
        forget(&record),
    ];
    steps.into_iter().collect()
}

fn remove_virtual_servers(record: &Record) -> Result<(), Error> {
    // Without the module there are no virtual servers, and asking would load it.
    if !Path::new("/proc/thread-self/net/ip_vs").exists() {
        return Ok(());
    }
    let (mut ipvs, mut ipset, mut route) = (Ipvs::open()?, Ipset::open()?, Route::open()?);
    let recorded = record.read();
    for family in Family::BOTH {
        let entries = observe::entries(&mut ipset, family)?;
        let addresses = observe::Addresses::observe(&mut route, family)?;
        let all = ipvs.services()?;
        let ours = observe::ours(&all, family, &entries, &addresses.ours, &recorded);
        let changes: Vec<Change> = ours.map(Change::RemoveService).collect();
        ipvs.run(&changes)?;
    }
    Ok(())
}

fn remove_interface() -> Result<(), Error> {
    Route::open()?.remove_dummy(DEVICE)?;
    Ok(())
}

fn remove_rules() -> Result<(), Error> {
    let writers = Arc::new(Writers::default());
    for ip in [Ip::V4, Ip::V6] {
        let Ok(tool) = Iptables::detect(ip, Arc::clone(&writers)) else {
            continue;
        };
        let Ok(saved) = tool.save() else { continue };
        if let Some(document) = removal(&saved) {
            tool.restore(&document)
                .map_err(|error| super::rules_failed(&error))?;
        }
    }
    Ok(())
}

/// The document that removes our chains and the jumps into them, as far as they are there.
fn removal(saved: &str) -> Option<String> {
    let rules = Saved::parse(saved);
    // The shared chains are ours only while they hold what this mode writes.
    let node_port_jump = format!("-j {NODE_PORT}");
    let shared_are_ours = rules
        .of(Table::Nat, SERVICES)
        .any(|rule| rule.ends_with(&node_port_jump));
    let ours: Vec<(Table, &str)> = CHAINS
        .into_iter()
        .filter(|chain| shared_are_ours || !SHARED_CHAINS.contains(chain))
        .filter(|chain| rules.chains.contains(&(chain.0.as_str(), chain.1)))
        .collect();
    if ours.is_empty() {
        return None;
    }
    let mut text = String::new();
    for table in [Table::Nat, Table::Filter] {
        let chains: Vec<&str> = ours
            .iter()
            .filter(|chain| chain.0 == table)
            .map(|chain| chain.1)
            .collect();
        let _ = writeln!(text, "*{}", table.as_str());
        for chain in &chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for jump in JUMPS
            .iter()
            .filter(|jump| jump.table == table && chains.contains(&jump.to))
        {
            let rule = jump.rule();
            for _ in rules.of(table, jump.from).filter(|found| **found == rule) {
                let _ = writeln!(text, "-D {} {rule}", jump.from);
            }
        }
        for chain in &chains {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    Some(text)
}

/// The document that removes what iptables mode had beside the chains that both modes have and we have just written: its
/// own chains, and its own ways into the shared ones.
pub(super) fn removal_of_iptables_mode(saved: &str) -> Option<String> {
    let rules = Saved::parse(saved);
    let mut text = String::new();
    for table in ["mangle", "nat", "filter"] {
        let ours = |name: &str| {
            CHAINS
                .iter()
                .any(|chain| (chain.0.as_str(), chain.1) == (table, name))
        };
        let of_iptables = |name: &str| !ours(name) && is_of_iptables_mode(name);
        let chains: Vec<&str> = rules
            .chains
            .iter()
            .filter(|chain| chain.0 == table && of_iptables(chain.1))
            .map(|chain| chain.1)
            .collect();
        let is_our_jump = |from: &str, rule: &str| {
            JUMPS
                .iter()
                .any(|jump| jump.table.as_str() == table && jump.from == from && jump.rule() == rule)
        };
        let into = |rule: &str| {
            rule.rsplit_once("-j ")
                .map_or("", |(_, target)| target)
                .to_owned()
        };
        let stray = |from: &str, rule: &str| {
            !from.starts_with("KUBE-")
                && !is_our_jump(from, rule)
                && (of_iptables(&into(rule)) || ours(&into(rule)))
        };
        let jumps: Vec<_> = rules
            .rules
            .iter()
            .filter(|(of, from, rule)| *of == table && stray(from, rule))
            .collect();
        if chains.is_empty() && jumps.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{table}");
        for chain in &chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for (_, from, rule) in jumps {
            let _ = writeln!(text, "-D {from} {rule}");
        }
        for chain in &chains {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    (!text.is_empty()).then_some(text)
}

/// Chains that only iptables mode has. The kubelet's, and those of others, have other names.
fn is_of_iptables_mode(chain: &str) -> bool {
    const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];
    const NAMES: [&str; 4] = [
        SERVICES,
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-CANARY",
    ];
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix)) || NAMES.contains(&chain)
}

/// What the save program printed, as far as it matters here.
pub(super) struct Saved<'a> {
    chains: BTreeSet<(&'a str, &'a str)>,
    /// Table, chain, and the rule without `-A CHAIN`.
    rules: Vec<(&'a str, &'a str, &'a str)>,
}

impl<'a> Saved<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let (mut table, mut chains, mut rules) = ("", BTreeSet::new(), Vec::new());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
                chains.insert((table, chain));
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
            {
                rules.push((table, chain, rule));
            }
        }
        Self { chains, rules }
    }

    pub(super) fn of(&self, table: Table, chain: &'static str) -> impl Iterator<Item = &&'a str> {
        self.rules
            .iter()
            .filter(move |rule| rule.0 == table.as_str() && rule.1 == chain)
            .map(|(_, _, rule)| rule)
    }

    /// The lines of our own chains, to compare with a later look.
    pub(super) fn ours(&self) -> Vec<String> {
        let ours = |table: &str, name: &str| {
            CHAINS
                .iter()
                .any(|chain| chain.0.as_str() == table && chain.1 == name)
        };
        self.rules
            .iter()
            .filter(|(table, chain, _)| ours(table, chain))
            .map(|(table, chain, rule)| format!("{table} {chain} {rule}"))
            .collect()
    }
}

fn own_sets(ipset: &mut Ipset) -> Vec<String> {
    let ours = |name: &str| {
        Family::BOTH
            .iter()
            .any(|family| Set::ALL.iter().any(|set| set.name(*family) == name))
    };
    // A kernel without sets has none of ours.
    let all = ipset.sets().unwrap_or_default();
    all.into_iter()
        .map(|set| set.name)
        .filter(|name| ours(name))
        .collect()
}

fn remove_sets() -> Result<(), Error> {
    let mut ipset = Ipset::open()?;
    let deadline = Instant::now() + RELEASE;
    for name in own_sets(&mut ipset) {
        while let Err(error) = ipset.destroy(&name) {
            if !error.is_busy() || Instant::now() >= deadline {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn forget(record: &Record) -> Result<(), Error> {
    record
        .remove()
        .map_err(|error| super::failed("removing the record of node-port addresses", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPVS: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A PREROUTING -j MINE\n\
        -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT\nCOMMIT\n\
        *filter\n:KUBE-FIREWALL - [0:0]\n:KUBE-IPVS-FILTER - [0:0]\nCOMMIT\n";

    #[test]
    fn our_chains_and_jumps_go_and_others_stay() {
        let document = removal(IPVS).unwrap();
        assert_eq!(
            document,
            "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
             -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -X KUBE-SERVICES\n-X KUBE-MARK-MASQ\nCOMMIT\n\
             *filter\n:KUBE-IPVS-FILTER - [0:0]\n-X KUBE-IPVS-FILTER\nCOMMIT\n"
        );
    }

    #[test]
    fn what_iptables_mode_left_beside_us_goes() {
        let saved = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n\
            *nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-X - [0:0]\n\
            -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -A PREROUTING -j MINE\n-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT\nCOMMIT\n\
            *filter\n:KUBE-SERVICES - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
            -A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL\n\
            -A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL\n\
            -A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        assert_eq!(
            removal_of_iptables_mode(saved).unwrap(),
            "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n\
             *nat\n:KUBE-SVC-X - [0:0]\n-X KUBE-SVC-X\nCOMMIT\n\
             *filter\n:KUBE-SERVICES - [0:0]\n\
             -D INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL\n\
             -D FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -X KUBE-SERVICES\nCOMMIT\n"
        );
        assert_eq!(removal_of_iptables_mode(&removal(IPVS).unwrap()), None);
    }

    #[test]
    fn chains_that_iptables_mode_took_over_stay() {
        let taken = IPVS.replace("-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT", "-j KUBE-SVC-X");
        let document = removal(&taken).unwrap();
        assert!(!document.contains("KUBE-SERVICES"), "{document}");
        assert!(document.contains("-X KUBE-IPVS-FILTER"), "{document}");
        assert_eq!(removal("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"), None);
    }
}
