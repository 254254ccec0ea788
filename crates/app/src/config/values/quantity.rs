//! Kubernetes resource quantities (`512`, `2Ki`, `3M`), as far as buffer sizes need them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::yaml::Scalar;

/// An amount with a suffix, kept in the canonical form that Kubernetes would print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    zero: bool,
}

impl Default for Quantity {
    fn default() -> Self {
        Self {
            text: "0".to_owned(),
            zero: true,
        }
    }
}

const DECIMAL: [(&str, i32); 10] = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", -3),
    ("u", -6),
    ("n", -9),
];
const BINARY: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];
/// Amounts are held in billionths: the smallest suffix is nano.
const NANO_DIGITS: i32 = 9;

impl Quantity {
    pub fn is_zero(&self) -> bool {
        self.zero
    }

    /// Reads a quantity; the error is Kubernetes' message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let syntax = || {
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                .to_owned()
        };
        if text.is_empty() {
            return Err(syntax());
        }
        let unsigned = text.trim_start_matches(['+', '-']);
        if text.len() - unsigned.len() > 1 {
            return Err(syntax());
        }
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{integer}{fraction}");
        if digits.is_empty() || fraction.contains('.') {
            return Err(syntax());
        }
        let scale = Scale::parse(suffix).ok_or("unable to parse quantity's suffix")?;
        let nanos = scale
            .nanos(digits.trim_start_matches('0'), fraction.len())
            .ok_or("quantity is out of range")?;
        let sign = if text.starts_with('-') && nanos != 0 {
            "-"
        } else {
            ""
        };
        Ok(Self {
            text: format!("{sign}{}", scale.canonical(nanos)),
            zero: nanos == 0,
        })
    }
}

/// What a suffix multiplies by, and the notation it asks for.
#[derive(Clone, Copy)]
enum Scale {
    Decimal(i32),
    Exponent(i32),
    Binary(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        if let Some(&(_, bits)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            return Some(Self::Binary(bits));
        }
        if let Some(&(_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            return Some(Self::Decimal(power));
        }
        suffix.strip_prefix(['e', 'E'])?.parse().ok().map(Self::Exponent)
    }

    /// The amount in billionths, rounded up as Kubernetes does.
    fn nanos(self, digits: &str, fraction: usize) -> Option<u128> {
        let mantissa: u128 = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        let (mantissa, power) = match self {
            Self::Decimal(power) | Self::Exponent(power) => (mantissa, power),
            Self::Binary(bits) => (mantissa.checked_mul(1_u128 << bits)?, 0),
        };
        let shift = power
            .checked_add(NANO_DIGITS)?
            .checked_sub(i32::try_from(fraction).ok()?)?;
        let factor = 10_u128.checked_pow(shift.unsigned_abs());
        if mantissa == 0 {
            return Some(0);
        }
        if shift >= 0 {
            mantissa.checked_mul(factor?)
        } else {
            Some(factor.map_or(1, |f| mantissa.div_ceil(f)))
        }
    }

    fn canonical(self, nanos: u128) -> String {
        const ONE: u128 = 1_000_000_000;
        if nanos == 0 {
            return "0".to_owned();
        }
        if let Self::Binary(_) = self
            && nanos.is_multiple_of(ONE)
            && nanos / ONE >= 1024
        {
            let units = nanos / ONE;
            return match BINARY
                .iter()
                .find(|(_, bits)| units.is_multiple_of(1_u128 << bits))
            {
                Some((name, bits)) => format!("{}{name}", units >> bits),
                None => units.to_string(),
            };
        }
        for (name, power) in DECIMAL {
            let unit = 10_u128.pow((power + NANO_DIGITS).unsigned_abs());
            if nanos.is_multiple_of(unit) {
                let suffix = match self {
                    Self::Exponent(_) if power != 0 => format!("e{power}"),
                    _ => name.to_owned(),
                };
                return format!("{}{suffix}", nanos / unit);
            }
        }
        nanos.to_string()
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "resource.Quantity")]
        struct Raw(Scalar);
        let (Scalar::Text(text) | Scalar::Number(text)) = Raw::deserialize(deserializer)?.0;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, canonical) in [
            ("0", "0"),
            ("-0", "0"),
            ("512", "512"),
            ("1000", "1k"),
            ("1K", ""),
            ("1k", "1k"),
            ("1Ki", "1Ki"),
            ("2048Ki", "2Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("3M", "3M"),
            ("12e3", "12e3"),
            ("1e-3", "1e-3"),
            ("-5G", "-5G"),
            ("0.1n", "1n"),
        ] {
            match Quantity::parse(text) {
                Ok(quantity) => assert_eq!(quantity.to_string(), canonical, "{text}"),
                Err(_) => assert_eq!(canonical, "", "{text}"),
            }
        }
    }

    #[test]
    fn zero_is_known_whatever_its_form() {
        for text in ["0", "0Ki", "0.00", "0e9", "+0"] {
            assert_eq!(Quantity::parse(text).map(|q| q.is_zero()), Ok(true), "{text}");
        }
        assert_eq!(Quantity::parse("1n").map(|q| q.is_zero()), Ok(false));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "x", "--1", ".", "1.2.3"] {
            let error = Quantity::parse(text).err().unwrap_or_default();
            assert!(error.starts_with("quantities must match"), "{text}: {error}");
        }
        for text in ["1x", "1Kii", "1e", "1 "] {
            assert_eq!(
                Quantity::parse(text),
                Err("unable to parse quantity's suffix".to_owned()),
                "{text}"
            );
        }
        assert!(Quantity::parse("1e99").is_err());
        assert!(Quantity::parse("1e-2147483648").is_ok_and(|q| q.to_string() == "1e-9"));
    }
}
