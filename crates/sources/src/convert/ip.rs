//! Addresses and networks as Kubernetes accepts them.
//!
//! IPv4 octets may carry leading zeros and are decimal all the same; an IPv4-mapped IPv6 address is IPv4. All
//! else is as strict as `std`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// An address, `None` where the text is not one.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        parse_v6(text).map(|address| address.to_canonical())
    } else {
        parse_v4(text).map(IpAddr::V4)
    }
}

/// A network with its host bits cleared, `None` where the text is not one.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = parse_decimal(prefix)?;
    if !address.contains(':') {
        return Some(Ipv4Net::new(parse_v4(address)?, prefix).ok()?.trunc().into());
    }
    let net = Ipv6Net::new(parse_v6(address)?, prefix).ok()?.trunc();
    match (net.addr().to_ipv4_mapped(), prefix.checked_sub(96)) {
        (Some(address), Some(prefix)) => Some(Ipv4Net::new(address, prefix).ok()?.into()),
        _ => Some(net.into()),
    }
}

/// The addresses that the API server refuses for endpoints and external IPs: loopback, link-local, multicast and
/// unspecified ones. To send traffic there, or to take it over, would harm the node.
pub(super) fn is_special(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast()
}

fn parse_decimal(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parse_decimal(parts.next()?)?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    let embedded = text.rsplit_once(':').filter(|(_, tail)| tail.contains('.'));
    match embedded {
        Some((head, tail)) => format!("{head}:{}", parse_v4(tail)?).parse().ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, want) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("172.30.0.041", Some("172.30.0.41")),
            ("010.000.0008.1", Some("10.0.8.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("::ffff:1.2.3.004", Some("1.2.3.4")),
            ("0:0:0:0:0:ffff:102:304", Some("1.2.3.4")),
            ("2001:DB8:0:0::1", Some("2001:db8::1")),
            ("64:ff9b::010.0.0.1", Some("64:ff9b::a00:1")),
            ("::", Some("::")),
            ("", None),
            (" 10.0.0.1", None),
            ("10.0.0.1 ", None),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.", None),
            ("10..0.1", None),
            ("256.0.0.1", None),
            ("+1.0.0.1", None),
            ("0x0a.0.0.1", None),
            ("fe80::1%eth0", None),
            ("1::2::3", None),
            ("[::1]", None),
            ("None", None),
        ] {
            assert_eq!(
                parse_ip(text).map(|ip| ip.to_string()).as_deref(),
                want,
                "{text:?}"
            );
        }
    }

    #[test]
    fn networks() {
        for (text, want) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            ("1.2.3.4/28", Some("1.2.3.0/28")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::/0", Some("::/0")),
            ("2001:db8::1/64", Some("2001:db8::/64")),
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("::ffff:10.1.2.3/128", Some("10.1.2.3/32")),
            ("::ffff:10.0.0.0/64", Some("::/64")),
            ("10.0.0.0/33", None),
            ("::/129", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0/-1", None),
            ("10.0.0.0/256", None),
            ("10.0.0.0", None),
            ("/8", None),
            ("10.0.0.0/8/8", None),
            (" 10.0.0.0/8", None),
            ("", None),
        ] {
            assert_eq!(
                parse_cidr(text).map(|net| net.to_string()).as_deref(),
                want,
                "{text:?}"
            );
        }
    }
}
