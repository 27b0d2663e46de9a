//! Fields that come from one side, where that is not just the side that edited them last.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::super::document::Scalar;
use super::super::json::Json;
use super::place::{int, text};

/// A deletion that began, to be compared: the one of the earliest time comes first, of one time the one with less grace. Times of
/// Kubernetes compare as texts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Deletion {
    /// One that says no time is none.
    is_none: bool,
    time: String,
    grace: i64,
}

impl Deletion {
    /// Reads one.
    pub fn read(scalar: &Scalar) -> Self {
        let fields = scalar.json().unwrap_or(Json::Null);
        let time = text(&fields, "deletionTimestamp").to_owned();
        Self { is_none: time.is_empty(), time, grace: grace(&fields) }
    }
}

/// The grace of a deletion, seconds.
pub fn grace(metadata: &Json) -> i64 {
    int(metadata, "deletionGracePeriodSeconds").unwrap_or(0)
}

/// `stands` with all bits that these have set in a range that is the same. A range is what an allocation is of: bits of another one
/// mean other things.
pub fn with_bits<'a>(stands: &Scalar, all: impl Iterator<Item = &'a Scalar>) -> Scalar {
    let bits = |of: &Json| BASE64.decode(text(of, "data")).ok();
    let Some((mut merged, mut sum)) = stands.json().and_then(|of| bits(&of).map(|sum| (of, sum))) else {
        return stands.clone();
    };
    for other in all.filter_map(Scalar::json).filter(|other| other.get("range") == merged.get("range")) {
        let other = bits(&other).unwrap_or_default();
        sum.resize(sum.len().max(other.len()), 0);
        sum.iter_mut().zip(other).for_each(|(byte, other)| *byte |= other);
    }
    if let (Json::Map(map), false) = (&mut merged, sum.is_empty()) {
        map.insert("data".into(), Json::String(BASE64.encode(sum).into()));
    }
    Scalar::Text(merged.canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Scalar {
        Scalar::Text(text.to_owned())
    }

    #[test]
    fn bits_of_one_range_add_up_and_those_of_another_do_not() {
        let (a, b) = (text(r#"{"data":"AQ==","range":"r"}"#), text(r#"{"data":"AoA=","range":"r"}"#));
        let other = text(r#"{"data":"/w==","range":"s"}"#);
        let sum = text(r#"{"data":"A4A=","range":"r"}"#);
        let all = [a.clone(), b.clone(), other.clone()];
        assert_eq!(with_bits(&a, all.iter()), sum);
        assert_eq!(with_bits(&b, all.iter()), sum);
        assert_eq!(with_bits(&other, all.iter()), other);
        let none = text(r#"{"range":"r"}"#);
        assert_eq!(with_bits(&none, [a.clone()].iter()), a);
        assert_eq!(with_bits(&none, [none.clone()].iter()), none);
    }

    #[test]
    fn the_earliest_deletion_comes_first_and_none_comes_last() {
        let deletion = |text: &str| Deletion::read(&Scalar::Text(text.to_owned()));
        let early = deletion(r#"{"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":30}"#);
        let at_once = deletion(r#"{"deletionTimestamp":"2026-01-01T00:00:00Z"}"#);
        let late = deletion(r#"{"deletionTimestamp":"2026-01-01T00:00:01Z"}"#);
        assert!(at_once < early && early < late && late < deletion(r#"{"deletionGracePeriodSeconds":0}"#));
    }
}
