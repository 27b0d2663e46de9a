//! Which of several values of one leaf stands.

use super::document::Scalar;
use super::json::Json;
use super::meaning::place::int;
use super::meaning::together::{Deletion, with_bits};
use super::schema::Resolution;
use crate::words::clock::Stamp;
use crate::words::id::Dot;

/// When and in which entry a leaf was written; `None`: it is the base's.
pub type Written = Option<(Stamp, Dot)>;

/// One of several concurrent values.
pub fn resolve(mut values: Vec<(Written, Scalar)>, resolution: Resolution) -> Option<(Written, Scalar)> {
    let counter = |scalar: &Scalar| match scalar {
        Scalar::Counter(number) => Some(*number),
        Scalar::Text(_) => None,
    };
    if values.iter().all(|(_, scalar)| counter(scalar).is_some()) {
        return values.into_iter().max_by_key(|(_, scalar)| counter(scalar));
    }
    values.retain(|(_, scalar)| counter(scalar).is_none());
    match resolution {
        Resolution::LastWriter | Resolution::Counter { .. } => values.into_iter().max_by_key(|(written, _)| *written),
        Resolution::Earliest => {
            values.into_iter().min_by_key(|(written, scalar)| (Deletion::read(scalar), std::cmp::Reverse(*written)))
        }
        Resolution::Bits => {
            let (written, last) = values.iter().max_by_key(|(written, _)| *written)?;
            Some((*written, with_bits(last, values.iter().map(|(_, scalar)| scalar))))
        }
        Resolution::FirstWriter => values.into_iter().min_by_key(|(written, _)| *written),
        Resolution::LeaderElection => {
            values.into_iter().max_by_key(|(written, scalar)| (Claim::read(scalar), *written))
        }
    }
}

/// A claim to be leader, as `spec` of a Lease; the greatest stands.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// How often leadership changed hands: the one with more transitions is the later one.
    transitions: i64,
    /// When it was acquired: the earlier claim stands.
    acquired: std::cmp::Reverse<String>,
    /// Only to tell claims apart that are equal otherwise.
    holder: std::cmp::Reverse<String>,
    /// Of one and the same claim the one renewed last.
    renewed: String,
}

impl Claim {
    fn read(scalar: &Scalar) -> Option<Self> {
        let spec = scalar.json()?;
        let text = |field: &str| spec.get(field).and_then(Json::as_str).map(str::to_owned);
        Some(Self {
            transitions: int(&spec, "leaseTransitions").unwrap_or(0),
            // A claim that does not say since when is the latest.
            acquired: std::cmp::Reverse(text("acquireTime").unwrap_or_else(|| char::MAX.to_string())),
            holder: std::cmp::Reverse(text("holderIdentity").unwrap_or_default()),
            renewed: text("renewTime").unwrap_or_default(),
        })
    }
}
