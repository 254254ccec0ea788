//! What the kernel's own tools list. A tool that is not there, or a table that the kernel does not have, is told as
//! missing.

use std::process::Command;
use std::time::Duration;

use ferry_host::process::{Limits, Unattended, run};
use serde_json::{Map, Value};

/// What one listing may take.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(30),
    output: 256 << 20,
};

/// Files and the commands whose output they are.
const LISTINGS: &[(&str, &[&str])] = &[
    ("nftables.txt", &["nft", "-a", "list", "ruleset"]),
    ("iptables.txt", &["iptables-save", "-c"]),
    ("ip6tables.txt", &["ip6tables-save", "-c"]),
    ("ipset.txt", &["ipset", "save"]),
    ("ipvs.txt", &["ipvsadm", "--save", "--numeric"]),
    ("addresses.txt", &["ip", "-details", "address"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    ("routes6.txt", &["ip", "-6", "route", "show", "table", "all"]),
    ("conntrack.txt", &["conntrack", "-S"]),
];

/// Parameters that decide about services' traffic.
const PARAMETERS: &[&str] = &[
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/conf/all/route_localnet",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_acct",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/ip_local_port_range",
];

pub(super) fn release() -> String {
    let read = std::fs::read_to_string("/proc/version");
    read.map_or_else(|error| error.to_string(), |text| text.trim().to_owned())
}

/// The versions of the tools that are there.
pub(super) fn versions() -> Map<String, Value> {
    let tools = [
        "nft",
        "iptables",
        "ip6tables",
        "ipset",
        "ipvsadm",
        "conntrack",
        "ip",
    ];
    let versions = tools.into_iter().filter_map(|tool| {
        let flag = if tool == "ip" { "-Version" } else { "--version" };
        let said = output(&[tool, flag]).ok()?;
        let first = said.lines().next().unwrap_or_default().to_owned();
        Some((tool.to_owned(), first.into()))
    });
    versions.collect()
}

/// Each file with its content, or why there is none.
pub(super) fn listings() -> impl Iterator<Item = (&'static str, Result<String, String>)> {
    let parameters = PARAMETERS.iter().filter_map(|name| {
        let value = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
        Some(format!("{} = {}\n", name.replace('/', "."), value.trim()))
    });
    let parameters: String = parameters.collect();
    LISTINGS
        .iter()
        .map(|(name, command)| (*name, output(command)))
        .chain([("sysctl.txt", Ok(parameters))])
}

fn output(words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let ran = run(&mut command, &[], LIMITS, &mut Unattended).map_err(|error| error.to_string())?;
    if ran.status.success() {
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    } else {
        Err(format!("{}: {}", ran.status, ran.stderr.trim()))
    }
}
