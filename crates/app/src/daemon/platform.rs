//! What this kernel can do: which families, and what to tell an operator whose kernel cannot.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use ferry_model::Family;

/// The families to serve. Both where both work, whatever the node's or the cluster's addresses are.
pub(super) fn families(
    primary: Family,
    tools: impl Fn(Family) -> Result<(), String>,
    kernel: &Kernel,
) -> anyhow::Result<BTreeSet<Family>> {
    let mut working = BTreeSet::new();
    let mut reasons = Vec::new();
    for family in Family::BOTH {
        match kernel.supports(family).and_then(|()| tools(family)) {
            Ok(()) => {
                working.insert(family);
            }
            Err(reason) => {
                tracing::info!(
                    ipFamily = family.as_str(),
                    reason,
                    "No support for this IP family"
                );
                reasons.push(format!("{family}: {reason}"));
            }
        }
    }
    if !working.contains(&primary) {
        bail!(
            "no support for primary IP family \"{primary}\" ({})",
            reasons.join("; ")
        );
    }
    match working.len() {
        2 => tracing::info!(
            primary = primary.as_str(),
            "kube-proxy running in dual-stack mode"
        ),
        _ => {
            working.retain(|family| *family == primary);
            tracing::info!(
                ipFamily = primary.as_str(),
                "kube-proxy running in single-stack mode"
            );
        }
    }
    Ok(working)
}

/// Whether this machine's kernel has a family.
pub(crate) fn supports(family: Family) -> Result<(), String> {
    Kernel::default().supports(family)
}

/// Where the kernel says whether it has IPv6.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    proc: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { proc: "/proc".into() }
    }
}

impl Kernel {
    fn supports(&self, family: Family) -> Result<(), String> {
        if family == Family::V4 {
            return Ok(());
        }
        if !self.proc.join("net/if_inet6").exists() {
            return Err("the kernel has no IPv6; load its module or boot without ipv6.disable=1".into());
        }
        let disabled = std::fs::read_to_string(self.proc.join("sys/net/ipv6/conf/all/disable_ipv6"));
        match disabled {
            Ok(text) if text.trim() == "1" => {
                Err("IPv6 is switched off; to use it: sysctl -w net.ipv6.conf.all.disable_ipv6=0".into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(inet6: bool, disabled: Option<&str>) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("net")).unwrap();
        std::fs::create_dir_all(dir.path().join("sys/net/ipv6/conf/all")).unwrap();
        if inet6 {
            std::fs::write(dir.path().join("net/if_inet6"), "").unwrap();
        }
        if let Some(text) = disabled {
            std::fs::write(dir.path().join("sys/net/ipv6/conf/all/disable_ipv6"), text).unwrap();
        }
        let kernel = Kernel {
            proc: dir.path().to_owned(),
        };
        (dir, kernel)
    }

    #[test]
    fn both_families_are_served_where_both_work() {
        let (_dir, kernel) = kernel(true, Some("0\n"));
        for primary in Family::BOTH {
            assert_eq!(
                families(primary, |_| Ok(()), &kernel).unwrap(),
                BTreeSet::from(Family::BOTH)
            );
        }
    }

    #[test]
    fn without_ipv6_only_ipv4_is_served_and_an_ipv6_node_is_told_what_to_do() {
        for (inet6, disabled) in [(false, None), (true, Some("1\n"))] {
            let (_dir, kernel) = kernel(inet6, disabled);
            assert_eq!(
                families(Family::V4, |_| Ok(()), &kernel).unwrap(),
                BTreeSet::from([Family::V4])
            );
            let error = families(Family::V6, |_| Ok(()), &kernel).unwrap_err().to_string();
            assert!(
                error.starts_with("no support for primary IP family \"IPv6\" (IPv6: "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_family_without_its_program_is_not_served() {
        let (_dir, kernel) = kernel(true, None);
        let no_v4 = |family| match family {
            Family::V4 => Err("no iptables".to_owned()),
            Family::V6 => Ok(()),
        };
        assert_eq!(
            families(Family::V6, no_v4, &kernel).unwrap(),
            BTreeSet::from([Family::V6])
        );
        let error = families(Family::V4, no_v4, &kernel).unwrap_err().to_string();
        assert!(error.contains("no iptables"), "{error}");
    }
}
