//! The value syntaxes of etcd's flags, which are those of Go's standard library.

use std::time::Duration;

/// Why a value was refused, in words that follow `invalid value "..." for flag --name: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub String);

impl ValueError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        ValueError(text.into())
    }
}

/// Go's `strconv.ParseBool`.
///
/// # Errors
/// Anything but the spellings Go knows.
pub fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::new("expected true or false")),
    }
}

/// An unsigned number in Go's base-0 syntax (decimal, 0x, 0o, 0b, `_` between digits).
///
/// # Errors
/// Not a number, negative, or above `max`.
pub fn parse_uint(text: &str, max: u64) -> Result<u64, ValueError> {
    let number = parse_digits(text).ok_or_else(|| ValueError::new("expected a number of 0 or more"))?;
    if number > u128::from(max) {
        return Err(ValueError::new(format!("value out of range (at most {max})")));
    }
    u64::try_from(number).map_err(|_| ValueError::new("value out of range"))
}

/// A signed 64-bit number in Go's base-0 syntax.
///
/// # Errors
/// Not a number, or out of range.
pub fn parse_int(text: &str) -> Result<i64, ValueError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = parse_digits(digits)
        .and_then(|number| i128::try_from(number).ok())
        .ok_or_else(|| ValueError::new("expected a whole number"))?;
    i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| ValueError::new("value out of range"))
}

fn parse_digits(text: &str) -> Option<u128> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = if let Some(rest) = lower.strip_prefix("0x") {
        (rest, 16)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (rest, 2)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (rest, 8)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (&lower[..], 10)
    };
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    if !plain.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    u128::from_str_radix(&plain, radix).ok()
}

/// Go's `time.ParseDuration`: `1h0m0s`, `1.5s`, `100ms`, `1µs`. Negative durations mean "off" to every flag that
/// takes one, so they become zero here.
///
/// # Errors
/// A missing or unknown unit, or anything that is not a number with a unit.
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let invalid = || ValueError::new(format!("time: invalid duration {text:?}"));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total_ns: u128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        if number.is_empty() {
            return Err(invalid());
        }
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        let unit_ns: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(ValueError::new(format!("time: missing unit in duration {text:?}"))),
            _ => return Err(ValueError::new(format!("time: unknown unit {unit:?} in duration {text:?}"))),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let mut part_ns = whole.checked_mul(unit_ns).ok_or_else(invalid)?;
        let mut scale = unit_ns;
        for digit in fraction.chars() {
            scale /= 10;
            part_ns += scale * u128::from(digit.to_digit(10).ok_or_else(invalid)?);
        }
        total_ns = total_ns.checked_add(part_ns).ok_or_else(invalid)?;
        rest = next;
    }
    if total_ns > i64::MAX as u128 {
        return Err(invalid());
    }
    if negative {
        return Ok(Duration::ZERO);
    }
    Ok(Duration::from_nanos(u64::try_from(total_ns).map_err(|_| invalid())?))
}

/// A comma-separated list in the order given; empty text is an empty list.
pub fn parse_list(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

/// A comma-separated set, sorted, as etcd keeps its "unique strings" flags.
pub fn parse_set(text: &str) -> Vec<String> {
    let mut values: Vec<String> = text.split(',').map(str::to_owned).collect();
    values.sort();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_reads_them() {
        let ok = [
            ("1h0m0s", 3_600_000_000_000),
            ("1µs", 1_000),
            ("1us", 1_000),
            ("100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("2h45m30.5s", 9_930_500_000_000),
            ("0", 0),
            ("-5s", 0),
            ("600000000000ns", 600_000_000_000),
        ];
        for (text, ns) in ok {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "s", "1x", "1..5s", "1h2", "99999999999h", "1s ", "--1s"] {
            assert!(parse_duration(text).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn numbers_read_as_go_reads_them() {
        for (text, number) in [("0", 0), ("10000", 10_000), ("0x10", 16), ("1_000", 1_000), ("0b11", 3), ("017", 15)] {
            assert_eq!(parse_uint(text, u64::MAX), Ok(number), "{text}");
        }
        for text in ["", "-1", "1.5", "ten", "0x", "18446744073709551616"] {
            assert!(parse_uint(text, u64::MAX).is_err(), "{text:?} must be refused");
        }
        assert_eq!(parse_int("-5"), Ok(-5));
        assert!(parse_uint("4294967296", u64::from(u32::MAX)).is_err());
    }
}
