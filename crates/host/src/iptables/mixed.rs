//! Rules of the other flavour: both are in force at once, and each program shows only its own.

use std::fs;
use std::sync::Arc;

use super::{Error, Flavour, Ip, Iptables};

/// What the other flavour holds in a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub ip: Ip,
    pub flavour: Flavour,
    /// `table/chain` of every chain asked about that is there, in the order found.
    pub chains: Vec<String>,
}

/// The chains of the flavour that `tool` does not speak whose names satisfy `ours`. Nothing is reported where the
/// other flavour's programs are missing, and the legacy ones are not started where the kernel has no legacy tables,
/// because merely asking would create them.
pub fn other_flavour(tool: &Iptables, ours: impl Fn(&str) -> bool) -> Result<Option<Other>, Error> {
    let (ip, flavour) = (tool.ip(), tool.flavour().other());
    if flavour == Flavour::Legacy && !has_legacy_tables(ip) {
        return Ok(None);
    }
    let saved = match Iptables::of_flavour(ip, flavour, Arc::default()) {
        Ok(other) => other.save()?,
        Err(Error::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (mut table, mut chains) = ("", Vec::new());
    for line in saved.lines() {
        match line.split_at_checked(1) {
            Some(("*", name)) => table = name,
            Some((":", rest)) => {
                let chain = rest.split(' ').next().unwrap_or_default();
                if ours(chain) {
                    chains.push(format!("{table}/{chain}"));
                }
            }
            _ => {}
        }
    }
    Ok((!chains.is_empty()).then_some(Other { ip, flavour, chains }))
}

fn has_legacy_tables(ip: Ip) -> bool {
    let names = match ip {
        Ip::V4 => "/proc/thread-self/net/ip_tables_names",
        Ip::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(names).is_ok_and(|names| !names.trim().is_empty())
}
