//! Small texts inside objects: names, protocols, port numbers, durations.

use std::time::Duration;

use ferry_model::Protocol;

use crate::bounded::quote;

/// Names end up in rules, chain comments and file names, so what the API server would refuse is refused here too.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    match name {
        "" => Err("is empty".into()),
        name if name.len() > 253 => Err("is longer than 253 characters".into()),
        name if name.bytes().all(legal) => Ok(()),
        name => Err(format!("{} is not a DNS name", quote(name))),
    }
}

/// The name of a port, which may be empty.
pub(super) fn check_port_name(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Ok(()),
        64.. => Err("is longer than 63 characters".into()),
        _ => check_name(name),
    }
}

/// `TCP` where nothing is said, as the API server fills in.
pub(super) fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "" | "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(format!("{} is not TCP, UDP or SCTP", quote(other))),
    }
}

pub(super) fn port_number(number: i64) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{number} is not a port number (1-65535)")),
    }
}

/// A duration as Go writes it: `1h30m`, `250ms`, `0`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        nanos += number.parse::<f64>().ok()? * unit_nanos(unit)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(nanos / 1e9).ok())?
}

fn unit_nanos(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, want) in [
            ("30s", Some(Duration::from_secs(30))),
            ("1h30m", Some(Duration::from_secs(5400))),
            ("250ms", Some(Duration::from_millis(250))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("1m0.5s", Some(Duration::from_millis(60_500))),
            ("0", Some(Duration::ZERO)),
            ("0s", Some(Duration::ZERO)),
            ("", None),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("5x", None),
            ("5 s", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(duration(text), want, "{text:?}");
        }
    }

    #[test]
    fn names() {
        for good in ["web", "a.b-c", "0", &"a".repeat(253)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "Web", "a/b", "a b", "a\nb", "\"", "ü", &"a".repeat(254)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(check_port_name(""), Ok(()));
        assert!(check_port_name(&"a".repeat(64)).is_err());
    }
}
