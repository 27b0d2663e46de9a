//! Quantities as Kubernetes writes them, to be compared.

use super::super::json::Json;

/// Digits behind the point that count: Kubernetes has no smaller unit.
const DIGITS: u32 = 9;

/// Whether no resource is requested beyond its limit, and of what cannot be overcommitted exactly the limit.
pub fn are_within(resources: &Json) -> bool {
    let (Some(Json::Map(requests)), Some(Json::Map(limits))) = (resources.get("requests"), resources.get("limits"))
    else {
        return true;
    };
    requests.iter().all(|(name, request)| {
        let Some(limit) = limits.get(name) else { return true };
        // What cannot be read is left to those who can.
        let Some((request, limit)) = nanos(request).zip(nanos(limit)) else { return true };
        let is_own = name.contains('/') && !name.contains("kubernetes.io/");
        if is_own || name.starts_with("hugepages-") { request == limit } else { request <= limit }
    })
}

/// A quantity in billionths; `None` for one that is malformed or too large.
fn nanos(quantity: &Json) -> Option<i128> {
    let text = match quantity {
        Json::String(text) | Json::Number(text) => text.as_str(),
        _ => return None,
    };
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(number) => (true, number),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = &fraction[..fraction.len().min(DIGITS as usize)];
    let mut sum: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        let digit = i128::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        sum = sum.checked_mul(10)?.checked_add(digit)?;
    }
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let ten = |power: u32| 10_i128.checked_pow(power);
    let sum = sum.checked_mul(ten(DIGITS - fraction.len() as u32)?)?;
    let sum = match suffix {
        "" => Some(sum),
        "n" => Some(sum / ten(9)?),
        "u" => Some(sum / ten(6)?),
        "m" => Some(sum / ten(3)?),
        "k" => sum.checked_mul(ten(3)?),
        "M" => sum.checked_mul(ten(6)?),
        "G" => sum.checked_mul(ten(9)?),
        "T" => sum.checked_mul(ten(12)?),
        "P" => sum.checked_mul(ten(15)?),
        "E" => sum.checked_mul(ten(18)?),
        "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => {
            let power = 1 + "KMGTPE".find(&suffix[..1])? as u32;
            sum.checked_mul(1024_i128.checked_pow(power)?)
        }
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let scale = ten(power.unsigned_abs())?;
            if power < 0 { Some(sum / scale) } else { sum.checked_mul(scale) }
        }
    }?;
    Some(if negative { -sum } else { sum })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<i128> {
        nanos(&Json::String(text.into()))
    }

    #[test]
    fn quantities_compare_however_they_are_written() {
        for same in
            [["100m", "0.1"], ["1Gi", "1073741824"], ["1e3", "1k"], ["1500Mi", "1572864000"], ["+1.50", "1500m"]]
        {
            assert_eq!(of(same[0]), of(same[1]), "{same:?}");
            assert!(of(same[0]).is_some());
        }
        for [less, more] in [["999m", "1"], ["1G", "1Gi"], ["-1", "0"], ["1n", "1u"]] {
            assert!(of(less) < of(more), "{less} and {more}");
        }
        for none in ["", "m", "1x", "1.2.3", "--1", "1e", "1e99", "99999999999999999999999999999999999999Ei", "é", "1é"]
        {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_requested_lies_within_the_limits() {
        let within = |text: &str| are_within(&Json::parse(text.as_bytes()).expect("JSON"));
        assert!(within(r#"{"requests":{"cpu":"1"},"limits":{"cpu":"1000m","memory":"1"}}"#));
        assert!(!within(r#"{"requests":{"cpu":"1001m"},"limits":{"cpu":"1"}}"#));
        assert!(!within(r#"{"requests":{"a.b/gpu":"1"},"limits":{"a.b/gpu":"2"}}"#));
        assert!(within(r#"{"requests":{"cpu":"9"},"limits":{"memory":"1"}}"#));
    }
}
