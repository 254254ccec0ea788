//! Taking back everything that this mode, or kube-proxy in it, wrote; and nothing else.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_host::ipset::Ipset;
use ferry_host::iptables::{Document, Iptables, Saved, Table, Writers, target};
use ferry_host::ipvs::{Change, Ipvs};
use ferry_host::route::Route;
use ferry_model::Family;

use super::observe;
use super::record::Record;
use super::rules::{CHAINS, JUMPS, NODE_PORT, ORDER, SHARED_CHAINS};
use super::sets::Set;
use super::{DEVICE, Error};
use crate::chains::{self, CANARY, EXTERNAL_SERVICES, NODE_PORTS, SERVICES, is_service_chain};

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
    for family in Family::BOTH {
        let Ok(tool) = Iptables::detect(chains::program(family), Arc::clone(&writers)) else {
            continue;
        };
        let Ok(saved) = tool.save() else { continue };
        tool.restore(&removal(&Saved::parse(&saved)))
            .map_err(Error::writing("remove iptables rules"))?;
    }
    Ok(())
}

/// Removes our chains and the jumps into them, as far as they are there.
fn removal(saved: &Saved<'_>) -> Document {
    // The shared chains are ours only while they hold what this mode writes.
    let services = saved.chain(Table::Nat, SERVICES).unwrap_or_default();
    let shared_are_ours = services.iter().any(|rule| target(rule) == Some(NODE_PORT));
    let is_ours = |chain: &(Table, &str)| {
        (shared_are_ours || !SHARED_CHAINS.contains(chain)) && saved.chain(chain.0, chain.1).is_some()
    };
    let ours: Vec<(Table, &str)> = CHAINS.into_iter().filter(is_ours).collect();
    let mut document = Document::ordered(ORDER);
    for (table, chain) in &ours {
        document.delete(*table, chain);
    }
    for jump in JUMPS.iter().filter(|jump| ours.contains(&(jump.table, jump.to))) {
        let rule = jump.rule();
        let found = saved.chain(jump.table, jump.from).unwrap_or_default();
        for _ in found.iter().filter(|found| **found == rule) {
            document.remove(jump.table, jump.from, &rule);
        }
    }
    document
}

/// Removes what iptables mode had beside the chains that both modes have and we have just written: its own chains, and
/// its own ways into the shared ones.
pub(super) fn removal_of_iptables_mode(saved: &Saved<'_>) -> Document {
    let mut document = Document::ordered(ORDER);
    for table in Table::ALL {
        let ours = |chain: &str| CHAINS.contains(&(table, chain));
        let of_iptables = |chain: &str| !ours(chain) && is_of_iptables_mode(chain);
        for chain in saved.chains(table).filter(|chain| of_iptables(chain)) {
            document.delete(table, chain);
        }
        let is_our_jump = |from: &str, rule: &str| {
            let mut jumps = JUMPS
                .iter()
                .filter(|jump| jump.table == table && jump.from == from);
            jumps.any(|jump| jump.rule() == rule)
        };
        for (from, rule) in saved.rules(table) {
            let into = target(rule).is_some_and(|into| of_iptables(into) || ours(into));
            if into && !from.starts_with(chains::PREFIX) && !is_our_jump(from, rule) {
                document.remove(table, from, rule);
            }
        }
    }
    document
}

/// Chains that only iptables mode has. The kubelet's, and those of others, have other names.
fn is_of_iptables_mode(chain: &str) -> bool {
    is_service_chain(chain) || [SERVICES, EXTERNAL_SERVICES, NODE_PORTS, CANARY].contains(&chain)
}

/// The rules of our own chains, to compare with a later look.
pub(super) fn own_rules(saved: &Saved<'_>) -> Vec<String> {
    let rules = |(table, chain): (Table, &str)| {
        let rules = saved.chain(table, chain).unwrap_or_default();
        let line = move |rule: &&str| format!("{table} {chain} {rule}");
        rules.iter().map(line).collect::<Vec<_>>()
    };
    CHAINS.into_iter().flat_map(rules).collect()
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
        .map_err(Error::writing("remove the record of node-port addresses"))
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
        let document = removal(&Saved::parse(IPVS)).text();
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
            removal_of_iptables_mode(&Saved::parse(saved)).text(),
            "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n\
             *nat\n:KUBE-SVC-X - [0:0]\n-X KUBE-SVC-X\nCOMMIT\n\
             *filter\n:KUBE-SERVICES - [0:0]\n\
             -D INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL\n\
             -D FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -X KUBE-SERVICES\nCOMMIT\n"
        );
        let ours = removal(&Saved::parse(IPVS)).text();
        assert!(removal_of_iptables_mode(&Saved::parse(&ours)).is_empty());
    }

    #[test]
    fn chains_that_iptables_mode_took_over_stay() {
        let taken = IPVS.replace("-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT", "-j KUBE-SVC-X");
        let document = removal(&Saved::parse(&taken)).text();
        assert!(!document.contains("KUBE-SERVICES"), "{document}");
        assert!(document.contains("-X KUBE-IPVS-FILTER"), "{document}");
        assert!(removal(&Saved::parse("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")).is_empty());
    }
}
