//! The names that an authority may vouch for.

use std::net::IpAddr;

use super::certificate::{Certificate, ascii};
use super::der::{Reader, constructed, context};

/// What a certificate permits and excludes for everything that it signs, directly or not.
#[derive(Debug, Default)]
pub(super) struct Constraints<'a> {
    permitted: Trees<'a>,
    excluded: Trees<'a>,
}

#[derive(Debug, Default)]
struct Trees<'a> {
    dns: Vec<&'a str>,
    /// Address and mask, one after the other.
    addresses: Vec<&'a [u8]>,
    /// Of mail addresses and URIs, which a server's certificate has no business having.
    others: usize,
    unknown: usize,
}

impl<'a> Constraints<'a> {
    pub(super) fn read(mut value: Reader<'a>) -> Option<Self> {
        let permitted = Trees::read(value.take(constructed(0)).unwrap_or_default())?;
        let excluded = Trees::read(value.take(constructed(1)).unwrap_or_default())?;
        value.is_empty().then_some(Constraints { permitted, excluded })
    }

    pub(super) fn are_understood(&self) -> bool {
        self.permitted.unknown + self.excluded.unknown == 0
    }

    /// Whether every name of a certificate is one that it may have.
    pub(super) fn allow(&self, certificate: &Certificate<'_>) -> bool {
        let names = &certificate.names;
        let dns = |name: &&str| {
            let permitted = &self.permitted.dns;
            (permitted.is_empty() || permitted.iter().any(|tree| is_below(name, tree)))
                && !self.excluded.dns.iter().any(|tree| touches(name, tree))
        };
        let address = |bytes: &&[u8]| {
            let permitted = &self.permitted.addresses;
            (permitted.is_empty() || permitted.iter().any(|net| holds(net, bytes)))
                && !self.excluded.addresses.iter().any(|net| holds(net, bytes))
        };
        let others = self.permitted.others + self.excluded.others == 0 || names.others == 0;
        others && names.dns.iter().all(dns) && names.addresses.iter().all(address)
    }
}

impl<'a> Trees<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        const MAIL: u8 = context(1);
        const DNS: u8 = context(2);
        const URI: u8 = context(6);
        const ADDRESS: u8 = context(7);
        let mut list = Reader::new(bytes);
        let mut trees = Trees::default();
        while !list.is_empty() {
            let base = list.sequence()?.any()?;
            match base.tag {
                DNS => trees.dns.push(ascii(base.content)?),
                ADDRESS if matches!(base.content.len(), 8 | 32) => trees.addresses.push(base.content),
                ADDRESS => return None,
                MAIL | URI => trees.others += 1,
                _ => trees.unknown += 1,
            }
        }
        Some(trees)
    }
}

/// Whether a name is a tree's root or below it; a tree that begins with a dot excludes its root.
fn is_below(name: &str, tree: &str) -> bool {
    let (name, tree) = (name.to_ascii_lowercase(), tree.to_ascii_lowercase());
    let name = name.strip_suffix('.').unwrap_or(&name);
    let root = tree.strip_prefix('.').unwrap_or(&tree);
    if root.is_empty() || (name == root && root.len() == tree.len()) {
        return true;
    }
    name.strip_suffix(root).is_some_and(|rest| rest.ends_with('.'))
}

/// Whether a name, or any that its asterisk may stand for, is in a tree.
fn touches(name: &str, tree: &str) -> bool {
    let sibling = name.strip_prefix('*').is_some_and(|parent| {
        tree.split_once('.').is_some_and(|(_, above)| {
            parent
                .strip_prefix('.')
                .is_some_and(|p| p.eq_ignore_ascii_case(above))
        })
    });
    sibling || is_below(name, tree)
}

fn holds(net: &[u8], address: &[u8]) -> bool {
    let (base, mask) = net.split_at(net.len() / 2);
    // A mapped address is the address it stands for.
    let mapped = super::name::read_address(address).map(|address| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    });
    mapped.is_some_and(|bytes| {
        bytes.len() == base.len() && (0..bytes.len()).all(|at| (bytes[at] ^ base[at]) & mask[at] == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_hold_names_and_networks() {
        for (name, tree, below) in [
            ("example.com", "example.com", true),
            ("api.Example.com", "example.COM", true),
            ("badexample.com", "example.com", false),
            ("example.com", ".example.com", false),
            ("api.example.com", ".example.com", true),
            ("anything", "", true),
        ] {
            assert_eq!(is_below(name, tree), below, "{name} below {tree}");
        }
        assert!(touches("*.example.com", "api.example.com") && !is_below("*.example.com", "api.example.com"));
        assert!(!touches("*.example.com", "api.example.org"));
        assert!(holds(&[10, 0, 0, 0, 255, 0, 0, 0], &[10, 9, 8, 7]));
        assert!(!holds(&[10, 0, 0, 0, 255, 0, 0, 0], &[11, 9, 8, 7]));
    }
}
