//! etcd 3.7.3's feature gates: names, defaults and the syntax of `--feature-gates`.

use std::collections::BTreeMap;

use super::value::{ValueError, parse_bool};

/// Name, stage, default. eddy keeps all gates, and acts on those that concern it.
pub const GATES: &[(&str, &str, bool)] = &[
    ("AllAlpha", "ALPHA", false),
    ("AllBeta", "BETA", false),
    ("CompactHashCheck", "ALPHA", false),
    ("FastLeaseKeepAlive", "BETA", true),
    ("InitialCorruptCheck", "ALPHA", false),
    ("LeaseCheckpoint", "ALPHA", false),
    ("LeaseCheckpointPersist", "ALPHA", false),
    ("PriorityRequest", "ALPHA", false),
    ("SetMemberLocalAddr", "ALPHA", false),
    ("StopGRPCServiceOnDefrag", "ALPHA", false),
    ("TxnModeWriteWithSharedBuffer", "BETA", true),
];

/// All gates at their defaults.
pub fn defaults() -> BTreeMap<String, bool> {
    GATES.iter().map(|(name, _, on)| ((*name).to_owned(), *on)).collect()
}

/// Applies `Name=bool,...`. A stage's gate (`AllAlpha`) sets all of that stage that the list does not name.
///
/// # Errors
/// A gate without a value, with a value that is not a bool, or that does not exist.
pub fn apply(gates: &mut BTreeMap<String, bool>, text: &str) -> Result<(), ValueError> {
    let mut given = BTreeMap::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (name, value) =
            item.split_once('=').ok_or_else(|| ValueError::new(format!("missing bool value for {}", item.trim())))?;
        let (name, value) = (name.trim(), value.trim());
        let on =
            parse_bool(value).map_err(|err| ValueError::new(format!("invalid value of {name}={value}, err: {err}")))?;
        if !gates.contains_key(name) {
            return Err(ValueError::new(format!("unrecognized feature gate: {name}")));
        }
        given.insert(name.to_owned(), on);
    }
    for (all, stage) in [("AllAlpha", "ALPHA"), ("AllBeta", "BETA")] {
        if let Some(on) = given.get(all).copied() {
            for (name, _, _) in GATES.iter().filter(|(_, of, _)| *of == stage) {
                gates.insert((*name).to_owned(), on);
            }
        }
    }
    gates.extend(given);
    Ok(())
}
