//! Whether a certificate is for a host, by its alternative names alone: the common name does not count.

use std::net::IpAddr;

use super::certificate::Certificate;

/// How many names an error message repeats.
const MAX_SHOWN: usize = 8;

impl Certificate<'_> {
    /// `host` is an address or a name, as it stands in a URL but without brackets.
    pub(super) fn is_for(&self, host: &str) -> bool {
        if let Ok(address) = host.parse::<IpAddr>() {
            let wanted = address.to_canonical();
            return self
                .names
                .addresses
                .iter()
                .any(|bytes| read_address(bytes) == Some(wanted));
        }
        let host = host.to_ascii_lowercase();
        let host_is_plain = is_plain(host.strip_suffix('.').unwrap_or(&host));
        self.names.dns.iter().any(|pattern| {
            let pattern = pattern.to_ascii_lowercase();
            if host_is_plain && is_plain(pattern.strip_prefix("*.").unwrap_or(&pattern)) {
                fits(&pattern, host.strip_suffix('.').unwrap_or(&host))
            } else {
                !host.is_empty() && host != "." && pattern == host
            }
        })
    }

    /// The first few names, for a person.
    pub(in super::super) fn names_in_words(&self) -> String {
        let addresses = self
            .names
            .addresses
            .iter()
            .filter_map(|bytes| read_address(bytes));
        let dns = self.names.dns.iter().map(|name| name.escape_debug().to_string());
        let mut names: Vec<String> = dns.chain(addresses.map(|address| address.to_string())).collect();
        let all = names.len();
        names.truncate(MAX_SHOWN);
        match all {
            0 => "no name at all".into(),
            _ if all > MAX_SHOWN => format!("{} and {} more", names.join(", "), all - MAX_SHOWN),
            _ => names.join(", "),
        }
    }
}

/// An address of a certificate; a mapped IPv4 address is the IPv4 address.
pub(super) fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(address.to_canonical())
}

/// Whether each label is made of letters, digits, hyphens (but not first) and underscores.
fn is_plain(name: &str) -> bool {
    name.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    })
}

/// An asterisk stands for the whole first label and for nothing else.
fn fits(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(parent) => host.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => pattern == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate<'a>(dns: &[&'a str], addresses: &[&'a [u8]]) -> Certificate<'a> {
        let mut certificate = Certificate::default();
        certificate.names.dns = dns.to_vec();
        certificate.names.addresses = addresses.to_vec();
        certificate
    }

    #[test]
    fn names_fit_as_in_go() {
        for (pattern, host, fit) in [
            ("api.example.com", "api.example.com", true),
            ("API.example.com", "api.EXAMPLE.com", true),
            ("api.example.com", "api.example.com.", true),
            ("api.example.com", "example.com", false),
            ("*.example.com", "api.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "a.b.example.com", false),
            ("a*.example.com", "api.example.com", false),
            ("*", "api", false),
            ("api_1", "api_1", true),
            ("-api", "-api", true),
            ("api.example.com.", "api.example.com", false),
            ("", "", false),
            ("10.0.0.1", "10.0.0.1", false),
        ] {
            assert_eq!(
                certificate(&[pattern], &[]).is_for(host),
                fit,
                "{pattern} for {host}"
            );
        }
    }

    #[test]
    fn addresses_fit_in_either_form() {
        let v4 = certificate(&[], &[&[10, 0, 0, 1]]);
        assert!(v4.is_for("10.0.0.1") && v4.is_for("::ffff:10.0.0.1"));
        assert!(!v4.is_for("10.0.0.2") && !v4.is_for("api"));
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert!(certificate(&[], &[&v6]).is_for("2001:db8::1"));
    }
}
