//! Which proxy leads to the API server where the kubeconfig names none: the environment's, as Go reads it.

use std::net::IpAddr;

use ipnet::IpNet;

use super::address::Url;
use super::kubeconfig::{Refused, proxy_url};

/// The proxy that this process's environment names for a server.
pub(in super::super) fn environment_proxy(server: &Url) -> Result<Option<Url>, Refused> {
    from_environment(server, |name| std::env::var(name).ok())
        .map(|proxy| proxy_url("the environment's proxy", &proxy))
        .transpose()
}

/// The proxy that the environment names for a URL, if any. A variable in lower case is as good as one in upper.
fn from_environment(target: &Url, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let lookup = |name: &str| {
        [name.to_owned(), name.to_ascii_lowercase()]
            .iter()
            .find_map(|name| variable(name).filter(|v| !v.is_empty()))
    };
    let name = if target.is_https() {
        "HTTPS_PROXY"
    } else {
        "HTTP_PROXY"
    };
    let proxy = lookup(name)?;
    let host = target.host.as_str();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return None;
    }
    let port = target.port_or_default();
    let excepted =
        lookup("NO_PROXY").is_some_and(|list| list.split(',').any(|rule| covers(rule, host, address, port)));
    // A proxy may be given without its scheme.
    (!excepted).then(|| {
        if proxy.contains("://") {
            proxy
        } else {
            format!("http://{proxy}")
        }
    })
}

/// Whether one entry of NO_PROXY covers a host: `*`, an address, a network, a domain with or without a leading dot,
/// each of which (but networks) may carry a port.
fn covers(rule: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    let rule = rule.trim();
    if rule == "*" {
        return true;
    }
    if let (Ok(net), Some(address)) = (rule.parse::<IpNet>(), address) {
        return net.contains(&address);
    }
    if let Ok(excepted) = rule.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(excepted) == address;
    }
    let (rule, rule_port) = match rule.rsplit_once(':') {
        Some((rule, text)) => (rule, text.parse::<u16>().ok()),
        None => (rule, None),
    };
    if rule_port.is_some_and(|rule_port| rule_port != port) || rule.is_empty() {
        return false;
    }
    if let Ok(excepted) = rule.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(excepted) == address;
    }
    let (rule, host) = (rule.to_ascii_lowercase(), host.to_ascii_lowercase());
    match rule
        .strip_prefix("*.")
        .map(|domain| format!(".{domain}"))
        .unwrap_or(rule)
    {
        rule if rule.starts_with('.') => host.ends_with(&rule),
        rule => host == rule || host.ends_with(&format!(".{rule}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(target: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, v)| (*v).to_owned())
        };
        from_environment(&Url::parse(target, "http").unwrap(), variable)
    }

    #[test]
    fn the_scheme_chooses_the_variable() {
        let both = [("HTTPS_PROXY", "http://s:1"), ("http_proxy", "p:2")];
        assert_eq!(proxy("https://api:6443", &both).as_deref(), Some("http://s:1"));
        assert_eq!(proxy("http://api:8080", &both).as_deref(), Some("http://p:2"));
        assert_eq!(proxy("https://api:6443", &[("HTTP_PROXY", "http://p:2")]), None);
        assert_eq!(proxy("https://api:6443", &[("HTTPS_PROXY", "")]), None);
        assert_eq!(proxy("https://127.0.0.1:6443", &both), None);
        assert_eq!(proxy("http://localhost:6443", &both), None);
    }

    #[test]
    fn no_proxy_excepts_hosts() {
        for (target, no_proxy, excepted) in [
            ("https://api.example.com", "example.com", true),
            ("https://api.example.com", ".example.com", true),
            ("https://api.example.com", "*.example.com", true),
            ("https://example.com", ".example.com", false),
            ("https://badexample.com", "example.com", false),
            ("https://API.example.com", "other, api.EXAMPLE.com", true),
            ("https://api:6443", "api:6443", true),
            ("https://api:6443", "api:443", false),
            ("https://10.96.0.1:443", "10.96.0.0/12", true),
            ("https://10.96.0.1:443", "10.96.0.1", true),
            ("https://10.96.0.1:443", "10.96.0.1:443", true),
            ("https://10.96.0.1:443", "10.96.0.1:80", false),
            ("https://10.96.0.1:443", "10.97.0.0/16,10.96.0.2", false),
            ("https://[2001:db8::1]:443", "2001:db8::/32", true),
            ("https://[2001:db8::1]:443", "2001:db8::1", true),
            ("https://api", "*", true),
            ("https://api", "", false),
            ("https://api", ",", false),
        ] {
            let found = proxy(target, &[("HTTPS_PROXY", "http://p:1"), ("no_proxy", no_proxy)]);
            assert_eq!(found.is_none(), excepted, "{target} with NO_PROXY={no_proxy}");
        }
    }
}
