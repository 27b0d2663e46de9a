//! A walk over all versions of client keys up to a revision, slice by slice.
//!
//! Versions are only ever added behind that revision. Who walks keeps sweeps from dropping any meanwhile, so each slice may be
//! looked at under a lock of its own.

use std::ops::Bound;

use crate::store::index::{Index, KeyVersion};
use crate::words::key::Key;
use crate::words::revision::Revision;

/// Where a walk over all versions goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionCursor {
    key: Key,
    /// The last version of the key that was shown; `None` when all were.
    within: Option<(Revision, u32)>,
}

/// Shows the next versions up to `upto`, behind a place or from the first key on, and whether each is the last one of its key up
/// to there. Of what lies at or below `compacted` only the newest of each key is shown. Looks at about `max` of them. Tells where to
/// go on, or `None` when there are no more.
pub fn slice(
    index: &Index,
    (upto, compacted): (Revision, Option<Revision>),
    cursor: Option<&VersionCursor>,
    max: usize,
    mut visit: impl FnMut(&Key, &KeyVersion, bool),
) -> Option<VersionCursor> {
    let mut within = cursor.and_then(|cursor| cursor.within);
    let from = cursor.map_or(Bound::Unbounded, |cursor| match within {
        Some(_) => Bound::Included(&cursor.key),
        None => Bound::Excluded(&cursor.key),
    });
    let mut looked = 0;
    for (key, versions) in index.iter_from(from) {
        let end = versions.partition_point(|version| version.revision <= upto);
        let hidden = versions.partition_point(|version| Some(version.revision) <= compacted);
        let shown = within.take().map_or(0, |last| versions.partition_point(|v| (v.revision, v.sub) <= last));
        let mut last = None;
        for (place, version) in versions.iter().enumerate().take(end).skip(hidden.saturating_sub(1).max(shown)) {
            if looked >= max && last.is_some() {
                return Some(VersionCursor { key: key.clone(), within: last });
            }
            visit(key, version, place + 1 == end);
            (last, looked) = (Some((version.revision, version.sub)), looked + 1);
        }
        looked += 1;
        if looked >= max {
            return Some(VersionCursor { key: key.clone(), within: None });
        }
    }
    None
}
