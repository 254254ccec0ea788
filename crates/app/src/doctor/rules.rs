//! What iptables is, and what other modes and proxies have left in the kernel.

use std::sync::Arc;

use ferry_host::iptables::{Error, Ip, Iptables, Saved, Table, other_flavour};
use ferry_host::nftables::{Client, Family};
use ferry_host::route::Route;

use super::{Finding, Verdict};
use crate::modes::Mode;

/// The interface that holds the services' addresses in ipvs mode.
const IPVS_INTERFACE: &str = "kube-ipvs0";
const TABLE: &str = "kube-proxy";

pub(super) fn all(mode: Mode) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut left = Vec::new();
    for ip in [Ip::V4, Ip::V6] {
        match Iptables::detect(ip, Arc::default()) {
            Ok(tool) => {
                if ip == Ip::V4 {
                    let found = format!("{ip} {} of the {} kind", tool.version(), tool.flavour());
                    findings.push(Finding::ok("iptables", found));
                }
                findings.extend(mixed(&tool));
                if !mode.writes_iptables && has_services(&tool) {
                    left.push(format!("{ip} has the chain KUBE-SERVICES"));
                }
            }
            // modes that need it have said so
            Err(Error::Missing { .. }) => {}
            Err(error) => findings.push(Finding::bad(
                "iptables",
                Verdict::Warning,
                error.to_string(),
                "see whether the program runs at all: iptables --version",
            )),
        }
    }
    left.extend(elsewhere(mode));
    if left.is_empty() {
        findings.push(Finding::ok("leftovers", "nothing of another mode"));
    } else {
        findings.push(Finding::bad(
            "leftovers",
            Verdict::Note,
            left.join("; "),
            format!(
                "nothing, if a proxy in {mode} mode is started: it removes what other modes have left after its first sync; \
                 else ferry --cleanup"
            ),
        ));
    }
    findings
}

/// Rules of both flavours are in force at once, and each program shows only its own.
fn mixed(tool: &Iptables) -> Option<Finding> {
    let other = other_flavour(tool, |chain| chain.starts_with("KUBE-")).ok()??;
    Some(Finding::bad(
        "iptables",
        Verdict::Warning,
        format!("both kinds of iptables are in use: {other}"),
        "find out which kind the kubelet and the CNI plugin use, and choose that one with update-alternatives; \
         ferry --cleanup removes the proxy's chains of both kinds",
    ))
}

fn has_services(tool: &Iptables) -> bool {
    let saved = tool.save().unwrap_or_default();
    let saved = Saved::parse(&saved);
    saved.chains(Table::Nat).any(|chain| chain == "KUBE-SERVICES")
}

/// The table of nftables mode and the interface of ipvs mode, where it is another mode.
fn elsewhere(mode: Mode) -> Vec<String> {
    let mut left = Vec::new();
    if mode.as_str() != "nftables"
        && let Ok(mut client) = Client::open()
    {
        for (family, name) in [(Family::Ip, "ip"), (Family::Ip6, "ip6")] {
            if client.has_table(family, TABLE).unwrap_or_default() {
                left.push(format!("nftables has the table {name} {TABLE}"));
            }
        }
    }
    let link = |mut route: Route| route.link(IPVS_INTERFACE).ok().flatten();
    if mode.as_str() != "ipvs" && Route::open().ok().and_then(link).is_some() {
        left.push(format!("there is the interface {IPVS_INTERFACE} of ipvs mode"));
    }
    left
}
