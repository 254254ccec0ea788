//! Where the API server is, and the proxies on the way there, as URLs or less.

use std::fmt;

use super::secret::Secret;

/// A URL, or what stands for one, taken apart. Shown without the credentials in it.
#[derive(Clone, PartialEq, Eq)]
pub(in super::super) struct Url {
    /// In lower case.
    pub(super) scheme: String,
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: Option<u16>,
    /// Empty, or begins with a slash and does not end with one.
    pub(super) path: String,
    pub(super) user: Option<UserInfo>,
}

/// The name and password that a URL may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserInfo {
    pub(super) name: Secret,
    pub(super) password: Secret,
}

impl Url {
    /// What has no scheme gets this one, and may then have no path.
    pub(super) fn parse(text: &str, default_scheme: &str) -> Result<Url, String> {
        if text.chars().any(|c| c.is_ascii_control() || c == ' ') {
            return Err("it has a space or a control character".into());
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            None => (default_scheme, text),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        let path = after
            .split(['?', '#'])
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        if !text.contains("://") && !path.is_empty() {
            return Err("it must be a URL or a host and a port".into());
        }
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(UserInfo::parse(user)), place),
            None => (None, authority),
        };
        let (host, port) = split_place(place)?;
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            user,
        })
    }

    pub(super) fn is_https(&self) -> bool {
        self.scheme == "https"
    }

    pub(super) fn port_or_default(&self) -> u16 {
        self.port.unwrap_or(match self.scheme.as_str() {
            "https" => 443,
            "socks5" | "socks5h" => 1080,
            _ => 80,
        })
    }

    /// Host and port as an HTTP request names them.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl UserInfo {
    fn parse(text: &str) -> Self {
        let (name, password) = text.split_once(':').unwrap_or((text, ""));
        UserInfo {
            name: Secret::new(decode(name)),
            password: Secret::new(decode(password)),
        }
    }
}

/// A text with what could be credentials in it taken out, for error messages about URLs that cannot be read.
pub(super) fn without_user(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    match text.rfind('@') {
        Some(at) if at >= start => format!("{}...{}", &text[..start], &text[at..]),
        _ => text.to_owned(),
    }
}

fn split_place(place: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']').ok_or("a bracket is not closed")?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("what stands in brackets is no IPv6 address".into());
            }
            match rest.strip_prefix(':') {
                Some(port) => (host, port),
                None if rest.is_empty() => (host, ""),
                None => return Err("something follows the closing bracket".into()),
            }
        }
        None => place.rsplit_once(':').unwrap_or((place, "")),
    };
    if host.is_empty() {
        return Err("it names no host".into());
    }
    if host.contains(':') && !place.starts_with('[') {
        return Err("an IPv6 address must stand in brackets".into());
    }
    if !place.starts_with('[') && http::uri::Authority::try_from(host).is_err() || host.contains('%') {
        return Err("its host has a character that no host has".into());
    }
    if port.is_empty() {
        return Ok((host, None));
    }
    let number = port.parse().map_err(|_| "its port is no port number")?;
    Ok((host, Some(number)))
}

/// Undoes percent-encoding; what is no such encoding stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = |at: usize| bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (*byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (text, shown, port) in [
            ("10.0.0.1:6443", "http://10.0.0.1:6443", 6443),
            ("localhost", "http://localhost", 80),
            ("HTTPS://api", "https://api", 443),
            ("https://api/", "https://api", 443),
            ("https://api/a/b/?c#d", "https://api/a/b", 443),
            ("https://[2001:db8::1]:6443", "https://[2001:db8::1]:6443", 6443),
            ("https://[::1]", "https://[::1]", 443),
            ("https://u:p%40w@api:1", "https://api:1", 1),
            ("api:", "http://api", 80),
        ] {
            let url = Url::parse(text, "http").unwrap();
            assert_eq!(
                (url.to_string().as_str(), url.port_or_default()),
                (shown, port),
                "{text}"
            );
            assert!(!format!("{url:?}").contains("p@w"));
        }
        let user = Url::parse("https://u:p%40w@api:1", "http").unwrap().user.unwrap();
        assert_eq!((user.name.expose(), user.password.expose()), ("u", "p@w"));
    }

    #[test]
    fn what_is_no_url_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no host"),
            ("https://", "no host"),
            ("https://:6443", "no host"),
            ("::", "brackets"),
            ("2001:db8::1", "brackets"),
            ("https://api:x", "port"),
            ("https://api:65536", "port"),
            ("https://[::1", "bracket"),
            ("https://[::1]x", "bracket"),
            ("https://[api]", "IPv6"),
            ("a b", "space"),
            ("https://a\nb", "control"),
            ("api/path", "host and a port"),
            ("https://a\"b", "character"),
            ("https://a%41b", "character"),
        ] {
            let error = Url::parse(text, "http").unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        assert_eq!(without_user("https://u:s3cret@a b"), "https://...@a b");
        assert_eq!(without_user("u:s3cret@a:x"), "...@a:x");
        assert_eq!(without_user("https://api:x"), "https://api:x");
    }
}
