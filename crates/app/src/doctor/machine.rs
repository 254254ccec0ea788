//! The kernel and its parameters.

use std::path::PathBuf;

use ferry_host::{modules, process};
use ferry_model::Family;

use super::{Finding, Verdict};
use crate::modes::{Conntrack, Mode};

pub(super) fn privileges() -> Vec<Finding> {
    if process::may_administer_network() {
        return vec![Finding::ok("privileges", "CAP_NET_ADMIN")];
    }
    vec![Finding::bad(
        "privileges",
        Verdict::Problem,
        "no CAP_NET_ADMIN: rules can neither be seen nor changed",
        "run this, and the proxy, as root or with the capability NET_ADMIN",
    )]
}

/// Whether the kernel has what the mode needs, for each family.
pub(super) fn kernel(mode: Mode) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = modules::kernel_version();
    let shown = version.map_or_else(
        || "of unknown version".to_owned(),
        |(major, minor)| format!("{major}.{minor}"),
    );
    let oldest = mode.kernel.as_ref().map(|part| part.oldest);
    match (oldest, version) {
        (Some((major, minor)), Some(found)) if found < (major, minor) => findings.push(Finding::bad(
            "kernel",
            Verdict::Problem,
            format!("Linux {shown}, and {mode} mode needs {major}.{minor}"),
            "update the kernel, or choose another mode with --proxy-mode",
        )),
        _ => findings.push(Finding::ok("kernel", format!("Linux {shown}"))),
    }
    if let Some(part) = &mode.kernel
        && let Err(why) = (part.check)()
    {
        findings.push(Finding::bad(
            "kernel",
            Verdict::Problem,
            format!("{mode} mode cannot be used: {why}"),
            format!("{}; or choose another mode with --proxy-mode", part.remedy),
        ));
    }
    for family in Family::BOTH {
        if let Err(why) = crate::daemon::supports(family).and_then(|()| (mode.supports)(family)) {
            let verdict = match family {
                Family::V4 => Verdict::Problem,
                Family::V6 => Verdict::Note,
            };
            let remedy = "install iptables, or nothing if this family is not used in the cluster";
            findings.push(Finding::bad(
                "kernel",
                verdict,
                format!("{family}: {why}"),
                remedy,
            ));
        }
    }
    findings
}

/// Where the kernel shows its parameters (or a directory that stands in for it in tests).
#[derive(Debug)]
pub(super) struct Proc(pub(super) PathBuf);

impl Default for Proc {
    fn default() -> Self {
        Self("/proc/sys".into())
    }
}

impl Proc {
    fn number(&self, name: &str) -> Option<i64> {
        let text = std::fs::read_to_string(self.0.join(name.replace('.', "/"))).ok()?;
        text.trim().parse().ok()
    }
}

/// A parameter that must be 1 where it is there, and what suffers otherwise.
const SWITCHES: [(&str, &str); 3] = [
    (
        "net.ipv4.ip_forward",
        "nothing is forwarded, neither to pods nor to other nodes",
    ),
    (
        "net.ipv6.conf.all.forwarding",
        "no IPv6 is forwarded, neither to pods nor to other nodes",
    ),
    (
        "net.bridge.bridge-nf-call-iptables",
        "answers of pods on the same bridge as their clients do not pass the rules, so such clients get none",
    ),
];

pub(super) fn parameters(proc: &Proc, mode: Mode) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, suffers) in SWITCHES {
        if proc.number(name) == Some(0) && !mode.relays {
            let remedy = format!("sysctl -w {name}=1, and put it into /etc/sysctl.d/ so that it stays");
            let found = format!("{name} is 0: {suffers}");
            findings.push(Finding::bad("sysctl", Verdict::Warning, found, remedy));
        }
    }
    if mode.conntrack != Conntrack::Untouched {
        findings.extend(connections(proc));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "sysctl",
            "forwarding is on, connection tracking has room",
        ));
    }
    findings
}

fn connections(proc: &Proc) -> Option<Finding> {
    let max = proc.number("net.netfilter.nf_conntrack_max");
    let count = proc.number("net.netfilter.nf_conntrack_count");
    match (max, count) {
        (Some(max), Some(count)) if max > 0 && count >= max / 10 * 9 => Some(Finding::bad(
            "sysctl",
            Verdict::Warning,
            format!("connection tracking is nearly full: {count} of {max}; new connections will be dropped"),
            "raise conntrack.maxPerCore or conntrack.min in the configuration",
        )),
        (None, _) => Some(Finding::bad(
            "sysctl",
            Verdict::Problem,
            "the kernel tracks no connections",
            "modprobe nf_conntrack, and name it in /etc/modules-load.d/ so that it is there after the next boot",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], mode: &str) -> Vec<(Verdict, String)> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let findings = parameters(&Proc(dir.path().to_owned()), Mode::named(mode).unwrap());
        let told = findings.into_iter().map(|f| (f.verdict, f.found));
        told.collect()
    }

    const TRACKED: [(&str, &str); 2] = [
        ("net/netfilter/nf_conntrack_max", "1000\n"),
        ("net/netfilter/nf_conntrack_count", "10\n"),
    ];

    #[test]
    fn a_node_that_does_not_forward_is_told() {
        let mut files = TRACKED.to_vec();
        files.push(("net/ipv4/ip_forward", "0\n"));
        let told = found(&files, "nftables");
        assert_eq!(told.len(), 1);
        assert!(told[0].0 == Verdict::Warning && told[0].1.starts_with("net.ipv4.ip_forward is 0"));
        // what relays connections itself forwards nothing
        assert_eq!(found(&files, "userspace")[0].0, Verdict::Ok);
    }

    #[test]
    fn a_full_table_and_none_at_all_are_told() {
        assert_eq!(found(&TRACKED, "iptables")[0].0, Verdict::Ok);
        let full = [TRACKED[0], ("net/netfilter/nf_conntrack_count", "950")];
        let told = found(&full, "iptables");
        assert!(
            told[0].0 == Verdict::Warning && told[0].1.contains("950 of 1000"),
            "{told:?}"
        );
        assert_eq!(found(&[], "iptables")[0].0, Verdict::Problem);
    }
}
