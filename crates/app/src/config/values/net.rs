//! Addresses as kube-proxy reads them: leading zeros in an IPv4 octet are decimal.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::quote;

/// Reads an address; an IPv4 address mapped into IPv6 is the IPv4 address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        parse_v6(text).map(|ip| IpAddr::V6(ip).to_canonical())
    } else {
        parse_v4(text).map(IpAddr::V4)
    }
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = decimal(parts.next()?, 255).and_then(|value| u8::try_from(value).ok())?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    let Some((head, tail)) = text.rsplit_once(':').filter(|(_, tail)| tail.contains('.')) else {
        return text.parse().ok();
    };
    let [a, b, c, d] = parse_v4(tail)?.octets();
    format!("{head}:{a:02x}{b:02x}:{c:02x}{d:02x}").parse().ok()
}

/// Reads decimal digits up to a maximum; leading zeros do not matter.
fn decimal(text: &str, max: u32) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let significant = text.trim_start_matches('0');
    let value = if significant.is_empty() {
        0
    } else {
        significant.parse().ok()?
    };
    (value <= max).then_some(value)
}

/// Reads a network in CIDR notation, its host bits cleared.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let (ip, max) = if address.contains(':') {
        (IpAddr::V6(parse_v6(address)?), 128)
    } else {
        (IpAddr::V4(parse_v4(address)?), 32)
    };
    let length = u8::try_from(decimal(length, max)?).ok()?;
    IpNet::new(ip, length).ok().map(|net| net.trunc())
}

/// Splits `host:port` or `[host]:port` as Go's `net.SplitHostPort` does, with its messages.
pub fn split_host_port(text: &str) -> Result<(&str, &str), String> {
    let wrong = |why: &str| Err(format!("address {text}: {why}"));
    let Some(colon) = text.rfind(':') else {
        return wrong("missing port in address");
    };
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let Some(end) = bracketed.find(']') else {
            return wrong("missing ']' in address");
        };
        let after = &bracketed[end + 1..];
        if after.is_empty() {
            return wrong("missing port in address");
        }
        let Some(port) = after.strip_prefix(':') else {
            return wrong("missing port in address");
        };
        if port.contains(':') {
            return wrong("too many colons in address");
        }
        (&bracketed[..end], port)
    } else {
        let (host, port) = (&text[..colon], &text[colon + 1..]);
        if host.contains(':') {
            return wrong("too many colons in address");
        }
        (host, port)
    };
    if host.contains('[') || port.contains('[') {
        return wrong("unexpected '[' in address");
    }
    if host.contains(']') || port.contains(']') {
        return wrong("unexpected ']' in address");
    }
    Ok((host, port))
}

/// Why a flag's value is no address.
pub fn ip_error(text: &str) -> Option<String> {
    parse_ip(text)
        .is_none()
        .then(|| format!("{} is not a valid IP address", quote(text)))
}

/// Why a flag's value is neither an address nor an address with a port.
pub fn host_port_error(text: &str) -> Option<String> {
    if parse_ip(text).is_some() {
        return None;
    }
    match split_host_port(text) {
        Err(why) => Some(format!(
            "{} is not in a valid format (ip or ip:port): {why}",
            quote(text)
        )),
        Ok((host, port)) => ip_error(host).or_else(|| {
            port.parse::<u16>()
                .is_err()
                .then(|| format!("{} is not a valid number", quote(port)))
        }),
    }
}

/// Gives a bare address a port; anything else stays as it is.
pub fn append_port(address: &str, port: i32) -> String {
    match parse_ip(address) {
        Some(_) if address.contains(':') => format!("[{address}]:{port}"),
        Some(_) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, address) in [
            ("10.0.0.1", "10.0.0.1"),
            ("010.000.0.001", "10.0.0.1"),
            ("::", "::"),
            ("fd00::1", "fd00::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("64:ff9b::192.000.2.1", "64:ff9b::c000:201"),
        ] {
            assert_eq!(parse_ip(text), address.parse().ok(), "{text}");
        }
        for text in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.256",
            "1.2.3.x",
            "fe80::1%eth0",
            "::g",
            "1.2.3.4:80",
            "[::1]",
        ] {
            assert_eq!(parse_ip(text), None, "{text}");
        }
    }

    #[test]
    fn networks() {
        for (text, network) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("010.0.0.0/08", "10.0.0.0/8"),
            ("fd00:1::5/32", "fd00:1::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(parse_cidr(text), network.parse().ok(), "{text}");
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "::/129",
            " 10.0.0.0/8",
        ] {
            assert_eq!(parse_cidr(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(split_host_port("1.2.3.4:80"), Ok(("1.2.3.4", "80")));
        assert_eq!(split_host_port("[::1]:80"), Ok(("::1", "80")));
        assert_eq!(split_host_port(":80"), Ok(("", "80")));
        for (text, why) in [
            ("", "address : missing port in address"),
            ("1.2.3.4", "address 1.2.3.4: missing port in address"),
            ("::1", "address ::1: too many colons in address"),
            ("[::1", "address [::1: missing ']' in address"),
            ("[::1]", "address [::1]: missing port in address"),
            ("[::1]80:", "address [::1]80:: missing port in address"),
            ("[::1]:80:81", "address [::1]:80:81: too many colons in address"),
            ("a]:80", "address a]:80: unexpected ']' in address"),
        ] {
            assert_eq!(split_host_port(text), Err(why.to_owned()));
        }
    }

    #[test]
    fn flags_of_addresses() {
        assert_eq!(host_port_error("0.0.0.0"), None);
        assert_eq!(host_port_error("0.0.0.0:0"), None);
        assert_eq!(host_port_error("[::]:10256"), None);
        assert_eq!(
            host_port_error("x:1").as_deref(),
            Some(r#""x" is not a valid IP address"#)
        );
        assert_eq!(
            host_port_error("1.1.1.1:x").as_deref(),
            Some(r#""x" is not a valid number"#)
        );
        assert_eq!(
            host_port_error("x").as_deref(),
            Some(r#""x" is not in a valid format (ip or ip:port): address x: missing port in address"#)
        );
    }

    #[test]
    fn ports_are_added_to_bare_addresses_only() {
        assert_eq!(append_port("1.2.3.4", 80), "1.2.3.4:80");
        assert_eq!(append_port("::1", 80), "[::1]:80");
        assert_eq!(append_port("1.2.3.4:5", 80), "1.2.3.4:5");
        assert_eq!(append_port("", 80), "");
    }
}
