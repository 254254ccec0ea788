//! Go's `time.Duration`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::quote;

/// A signed span of time with nanosecond steps, in Go's notation (`1h30m0s`, `250ms`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(i64);

const NANOS_PER_SECOND: i64 = 1_000_000_000;

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs * NANOS_PER_SECOND)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * 1_000_000)
    }

    pub const fn nanos(self) -> i64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The span as an unsigned one; negative spans, which validation refuses, become zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Reads Go's notation; the error is Go's message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("time: invalid duration {}", quote(text));
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        // Summed as a magnitude: the most negative duration has no positive counterpart.
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, after) = parse_part(rest, text)?;
            total = total
                .checked_add(part)
                .filter(|&sum| sum <= 1 << 63)
                .ok_or_else(invalid)?;
            rest = after;
        }
        let magnitude = i128::from(total);
        i64::try_from(if negative { -magnitude } else { magnitude })
            .map(Self)
            .map_err(|_| invalid())
    }
}

/// One number with its unit, in nanoseconds, and what follows it.
fn parse_part<'a>(rest: &'a str, whole: &str) -> Result<(u64, &'a str), String> {
    let invalid = || format!("time: invalid duration {}", quote(whole));
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();

    let integer_len = digits(rest);
    let (integer, mut after) = rest.split_at(integer_len);
    let mut fraction = "";
    if let Some(tail) = after.strip_prefix('.') {
        (fraction, after) = tail.split_at(digits(tail));
    }
    if integer.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let unit_len = after
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_len);
    if unit.is_empty() {
        return Err(format!("time: missing unit in duration {}", quote(whole)));
    }
    let scale = unit_nanos(unit)
        .ok_or_else(|| format!("time: unknown unit {} in duration {}", quote(unit), quote(whole)))?;
    let whole_units: u64 = if integer.is_empty() {
        0
    } else {
        integer.parse().map_err(|_| invalid())?
    };
    let nanos = whole_units.checked_mul(scale).ok_or_else(invalid)?;
    nanos
        .checked_add(fraction_nanos(fraction, scale))
        .map(|nanos| (nanos, after))
        .ok_or_else(invalid)
}

/// The nanoseconds of a decimal fraction of a unit, cut off, digits beyond need ignored.
fn fraction_nanos(fraction: &str, scale: u64) -> u64 {
    let (mut value, mut power) = (0_u128, 1_u128);
    for digit in fraction.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        power *= 10;
    }
    u64::try_from(value * u128::from(scale) / power).unwrap_or(u64::MAX)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            ..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => decimal(f, nanos, 1_000).and_then(|()| f.write_str("µs")),
            1_000_000..1_000_000_000 => decimal(f, nanos, 1_000_000).and_then(|()| f.write_str("ms")),
            _ => {
                let (hours, rest) = (nanos / 3_600_000_000_000, nanos % 3_600_000_000_000);
                let (minutes, rest) = (rest / 60_000_000_000, rest % 60_000_000_000);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                decimal(f, rest, 1_000_000_000)?;
                f.write_str("s")
            }
        }
    }
}

/// `value / unit` without trailing zeros; `unit` is a power of ten.
fn decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    let fraction = value % unit;
    if fraction == 0 {
        return Ok(());
    }
    let width = unit.ilog10() as usize;
    write!(f, ".{}", format!("{fraction:0width$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_as_go_does() {
        for (text, nanos, written) in [
            ("0", 0, "0s"),
            ("+0", 0, "0s"),
            ("0s", 0, "0s"),
            ("5s", 5_000_000_000, "5s"),
            ("30s", 30_000_000_000, "30s"),
            ("15m", 900_000_000_000, "15m0s"),
            ("24h", 86_400_000_000_000, "24h0m0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("-1s", -1_000_000_000, "-1s"),
            ("250ms", 250_000_000, "250ms"),
            ("1.25ms", 1_250_000, "1.25ms"),
            ("7us", 7_000, "7µs"),
            ("7µs", 7_000, "7µs"),
            ("3ns", 3, "3ns"),
            ("1m0.000000001s", 60_000_000_001, "1m0.000000001s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let parsed = GoDuration::parse(text);
            assert_eq!(parsed, Ok(GoDuration(nanos)), "{text}");
            assert_eq!(GoDuration(nanos).to_string(), written, "{text}");
        }
    }

    #[test]
    fn refuses_with_gos_words() {
        for (text, error) in [
            ("", r#"time: invalid duration """#),
            ("-", r#"time: invalid duration "-""#),
            ("x", r#"time: invalid duration "x""#),
            (".s", r#"time: invalid duration ".s""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5x", r#"time: unknown unit "x" in duration "5x""#),
            ("1h 5m", r#"time: unknown unit "h " in duration "1h 5m""#),
            (
                "9223372036854775808ns",
                r#"time: invalid duration "9223372036854775808ns""#,
            ),
            ("99999999999h", r#"time: invalid duration "99999999999h""#),
        ] {
            assert_eq!(GoDuration::parse(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn negative_durations_are_zero_for_the_daemon() {
        assert_eq!(GoDuration::from_secs(-3).to_std(), Duration::ZERO);
        assert_eq!(GoDuration::from_secs(3).to_std(), Duration::from_secs(3));
    }
}
