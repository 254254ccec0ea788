//! Go's `strconv`.

use super::quote;

/// Reads a boolean in one of the spellings Go knows.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(refused("ParseBool", text, "invalid syntax")),
    }
}

/// Reads a 32-bit integer; `0x`, `0o`, `0b` and a leading zero choose the base, `_` may separate digits.
pub fn parse_i32(text: &str) -> Result<i32, String> {
    let syntax = || refused("ParseInt", text, "invalid syntax");
    let (negative, magnitude) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (base, digits) = base_and_digits(magnitude).ok_or_else(syntax)?;
    if !digits.chars().all(|c| c.is_digit(base)) || digits.is_empty() {
        return Err(syntax());
    }
    let range = || refused("ParseInt", text, "value out of range");
    let value = i64::from_str_radix(&digits, base).map_err(|_| range())?;
    i32::try_from(if negative { -value } else { value }).map_err(|_| range())
}

/// The base that a Go integer literal is written in, and its bare digits.
fn base_and_digits(literal: &str) -> Option<(u32, String)> {
    let lower = literal.to_ascii_lowercase();
    let (base, rest) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    // An underscore stands between digits, or between the prefix and a digit.
    let misplaced = rest.ends_with('_') || rest.contains("__") || (base == 10 && rest.starts_with('_'));
    (!misplaced).then(|| (base, rest.replace('_', "")))
}

/// Reads a decimal number of at most 31 bits.
pub fn parse_u31(text: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refused("ParseUint", text, "invalid syntax"));
    }
    match text.parse::<u32>() {
        Ok(value) if value <= i32::MAX as u32 => Ok(value),
        _ => Err(refused("ParseUint", text, "value out of range")),
    }
}

/// Reads a 32-bit floating-point number.
pub fn parse_f32(text: &str) -> Result<f32, String> {
    let value: f32 = text
        .parse()
        .map_err(|_| refused("ParseFloat", text, "invalid syntax"))?;
    let names_infinity = text.bytes().any(|b| matches!(b, b'i' | b'I'));
    if value.is_infinite() && !names_infinity {
        return Err(refused("ParseFloat", text, "value out of range"));
    }
    Ok(value)
}

/// Writes a 32-bit floating-point number as Go's JSON encoder does.
pub fn format_f32(value: f32) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-6..1e21).contains(&magnitude) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if !exponent.starts_with('-') => format!("{mantissa}e+{exponent:0>2}"),
        Some((mantissa, exponent)) => format!("{mantissa}e-{}", exponent.trim_start_matches('-')),
        None => text,
    }
}

fn refused(function: &str, text: &str, why: &str) -> String {
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        for text in ["", "yes", "tRUE", "2"] {
            let error = format!("strconv.ParseBool: parsing {text:?}: invalid syntax");
            assert_eq!(parse_bool(text), Err(error));
        }
    }

    #[test]
    fn integers() {
        for (text, value) in [
            ("14", 14),
            ("-999", -999),
            ("+3", 3),
            ("0x1F", 31),
            ("0o17", 15),
            ("017", 15),
            ("0b11", 3),
            ("1_000", 1000),
            ("0", 0),
            ("0_7", 7),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(parse_i32(text), Ok(value), "{text}");
        }
        for text in ["", "x", "1.5", "1e3", "--1", "_1", "1_", "1__0", "08", "0x", "é"] {
            let error = format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
            assert_eq!(parse_i32(text), Err(error));
        }
        for text in ["2147483648", "-2147483649", "99999999999999999999"] {
            let error = format!("strconv.ParseInt: parsing {text:?}: value out of range");
            assert_eq!(parse_i32(text), Err(error));
        }
    }

    #[test]
    fn verbosities() {
        assert_eq!(parse_u31("2147483647"), Ok(2_147_483_647));
        assert_eq!(
            parse_u31("2147483648"),
            Err("strconv.ParseUint: parsing \"2147483648\": value out of range".to_owned())
        );
        assert_eq!(
            parse_u31("-1"),
            Err("strconv.ParseUint: parsing \"-1\": invalid syntax".to_owned())
        );
    }

    #[test]
    fn floats() {
        assert_eq!(parse_f32("0.5"), Ok(0.5));
        assert_eq!(parse_f32("-1"), Ok(-1.0));
        assert_eq!(
            parse_f32("x"),
            Err("strconv.ParseFloat: parsing \"x\": invalid syntax".to_owned())
        );
        assert_eq!(
            parse_f32("1e99"),
            Err("strconv.ParseFloat: parsing \"1e99\": value out of range".to_owned())
        );
        for (value, text) in [
            (5.0, "5"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
        ] {
            assert_eq!(format_f32(value), text);
        }
    }
}
