//! Rules of the other flavour: both are in force at once, and each program shows only its own.

use std::fmt;
use std::fs;
use std::sync::Arc;

use super::{Error, Flavour, Ip, Iptables, Saved, Table};

/// What the other flavour holds in a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub ip: Ip,
    pub flavour: Flavour,
    /// `table/chain` of every chain asked about that is there, by table.
    pub chains: Vec<String>,
}

/// Chains that are named; more are only counted.
const NAMED: usize = 5;

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.chains.len().min(NAMED);
        write!(
            f,
            "{}-{} has {}",
            self.ip,
            self.flavour,
            self.chains[..named].join(", ")
        )?;
        match self.chains.len() - named {
            0 => Ok(()),
            more => write!(f, " and {more} more chains"),
        }
    }
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
    let saved = Saved::parse(&saved);
    let chains = |table| {
        let ours = saved.chains(table).filter(|chain| ours(chain));
        ours.map(move |chain| format!("{table}/{chain}"))
    };
    let chains: Vec<String> = Table::ALL.into_iter().flat_map(chains).collect();
    Ok((!chains.is_empty()).then_some(Other { ip, flavour, chains }))
}

pub(super) fn has_legacy_tables(ip: Ip) -> bool {
    let names = match ip {
        Ip::V4 => "/proc/thread-self/net/ip_tables_names",
        Ip::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(names).is_ok_and(|names| !names.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_chains_are_named() {
        let other = |count: usize| Other {
            ip: Ip::V6,
            flavour: Flavour::Legacy,
            chains: (0..count).map(|at| format!("nat/C{at}")).collect(),
        };
        assert_eq!(other(1).to_string(), "ip6tables-legacy has nat/C0");
        assert_eq!(
            other(7).to_string(),
            "ip6tables-legacy has nat/C0, nat/C1, nat/C2, nat/C3, nat/C4 and 2 more chains"
        );
    }
}
