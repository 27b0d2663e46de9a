//! Whether two stores hold the same at a revision.

use eddy_crdt::{Key, KeyRange, RangeOp, ReadAt, Refusal, Revision, RevisionBounds};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::mvccpb::KeyValue;

use super::error::MoveError;
use super::remote::Session;
use crate::api::convert;
use crate::node::{Handle, NodeError};

/// Keys that are read first, and at most at once. For each page etcd counts all keys behind it.
const PAGE: usize = 256;
const PAGE_MAX: usize = 8192;

/// About how many bytes a page may have, as far as those before tell.
const PAGE_BYTES: usize = 8 << 20;

/// What was found equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// How many keys there are.
    pub keys: i64,
    /// How many of them differ in nothing but how often they were written.
    pub other_versions: u64,
}

/// A page of keys, and how many there are from its first on.
pub(super) struct Page {
    kvs: Vec<KeyValue>,
    count: i64,
}

/// Reads pages of a store.
pub(super) trait Pages {
    /// The keys from `from` on at a revision that were written at `since` or later, at most so many.
    async fn page(&self, from: &Key, at: i64, since: i64, limit: usize) -> Result<Page, MoveError>;

    /// etcd's hash over all keys and their history at a revision, and how far that history is compacted.
    async fn hash(&self, at: i64) -> Result<(u32, i64), MoveError>;
}

impl Pages for Session {
    async fn page(&self, from: &Key, at: i64, since: i64, limit: usize) -> Result<Page, MoveError> {
        let request = pb::RangeRequest {
            key: from.clone(),
            range_end: "\0".into(),
            revision: at,
            limit: limit as i64,
            min_mod_revision: since,
            serializable: true,
            ..Default::default()
        };
        let answer = self.range(request).await?;
        Ok(Page { kvs: answer.kvs, count: answer.count })
    }

    async fn hash(&self, at: i64) -> Result<(u32, i64), MoveError> {
        self.hash_kv(at).await
    }
}

impl Pages for Handle {
    async fn page(&self, from: &Key, at: i64, since: i64, limit: usize) -> Result<Page, MoveError> {
        let op = RangeOp {
            at: ReadAt::Revision(Revision::new(at)),
            limit: Some(limit),
            bounds: RevisionBounds { min_mod: (since > 0).then(|| Revision::new(since)), ..RevisionBounds::default() },
            ..RangeOp::all(KeyRange::From(from.clone()))
        };
        match self.range(&op).await {
            Ok(reply) => Ok(Page { kvs: reply.kvs.into_iter().map(convert::key_value).collect(), count: reply.count }),
            Err(NodeError::Refused(Refusal::Compacted)) => Err(MoveError::Compacted(at)),
            Err(error) => Err(error.into()),
        }
    }

    async fn hash(&self, at: i64) -> Result<(u32, i64), MoveError> {
        let hash = self.hash_kv(Some(Revision::new(at))).await?;
        Ok((hash.hash, hash.compacted.map_or(0, Revision::get)))
    }
}

/// Compares all keys at a revision, or those that were written at `since` or later.
pub(super) async fn compare(
    source: &impl Pages,
    copy: &impl Pages,
    at: i64,
    since: i64,
) -> Result<Compared, MoveError> {
    let differs = |what| MoveError::Differs { at, what };
    let (mut from, mut compared) = (Key::from_static(b"\0"), Compared::default());
    let mut limit = PAGE;
    loop {
        let theirs = source.page(&from, at, since, limit).await?;
        let ours = copy.page(&from, at, since, limit).await?;
        if compared.keys == 0 {
            compared.keys = theirs.count;
        }
        for (one, other) in theirs.kvs.iter().zip(&ours.kvs) {
            if one == other {
                continue;
            }
            if *one != (KeyValue { version: one.version, ..other.clone() }) {
                return Err(differs(describe(one, other)));
            }
            compared.other_versions += 1;
        }
        if theirs.kvs.len() != ours.kvs.len() || theirs.count != ours.count {
            let missing = theirs.kvs.get(ours.kvs.len()).or_else(|| ours.kvs.get(theirs.kvs.len()));
            let name = missing.map_or(String::new(), |kv| format!(", first of them {}", kv.key.escape_ascii()));
            return Err(differs(format!("{} keys against {}{name}", theirs.count, ours.count)));
        }
        let Some(last) = theirs.kvs.last().filter(|_| theirs.kvs.len() == limit) else { return Ok(compared) };
        let bytes: usize = theirs.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        limit = (PAGE_BYTES * limit / bytes.max(1)).clamp(PAGE / 4, PAGE_MAX);
        from = [&last.key[..], &[0]].concat().into();
    }
}

/// The same for a copy that was found equal before: by one hash, if that can tell. It cannot where the two are compacted
/// differently, or where another version of etcd hashes otherwise.
pub(super) async fn compare_at_end(
    source: &impl Pages,
    copy: &impl Pages,
    at: i64,
    since: i64,
) -> Result<Compared, MoveError> {
    let known = |hash: &(u32, i64)| hash.0 != 0;
    let theirs = source.hash(at).await.ok().filter(known);
    if theirs.is_some() && theirs == copy.hash(at).await.ok() {
        let first = Key::from_static(b"\0");
        let (theirs, ours) = (source.page(&first, at, i64::MAX, 1).await?, copy.page(&first, at, i64::MAX, 1).await?);
        if theirs.count == ours.count {
            return Ok(Compared { keys: theirs.count, ..Compared::default() });
        }
    }
    compare(source, copy, at, since).await
}

/// What differs in two versions of a key. Values are not shown: they may be secret.
fn describe(one: &KeyValue, other: &KeyValue) -> String {
    let (name, theirs) = (one.key.escape_ascii(), other.key.escape_ascii());
    if one.key != other.key {
        return format!("one side has {name}, the other {theirs}");
    }
    let numbers = |kv: &KeyValue| {
        format!(
            "create revision {}, mod revision {}, version {}, lease {:x}, {} bytes",
            kv.create_revision,
            kv.mod_revision,
            kv.version,
            kv.lease,
            kv.value.len()
        )
    };
    format!("{name}: {} against {}", numbers(one), numbers(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store(Vec<KeyValue>);

    impl Pages for Store {
        async fn page(&self, from: &Key, _at: i64, since: i64, limit: usize) -> Result<Page, MoveError> {
            let rest: Vec<_> = self.0.iter().filter(|kv| kv.key >= *from).cloned().collect();
            let kvs = rest.iter().filter(|kv| kv.mod_revision >= since).take(limit).cloned().collect();
            Ok(Page { kvs, count: rest.len() as i64 })
        }

        async fn hash(&self, at: i64) -> Result<(u32, i64), MoveError> {
            Ok((1 + self.0.len() as u32, at))
        }
    }

    fn store() -> Vec<KeyValue> {
        let kv = |n: i64| KeyValue {
            key: format!("k{n:04}").into(),
            value: format!("v{n}").into(),
            create_revision: 2 + n,
            mod_revision: 2 + n,
            version: 1,
            lease: n % 3,
        };
        (0..600).map(kv).collect()
    }

    async fn compared(change: impl FnOnce(&mut Vec<KeyValue>), since: i64) -> Result<Compared, MoveError> {
        let mut other = store();
        change(&mut other);
        compare(&Store(store()), &Store(other), 700, since).await
    }

    #[tokio::test]
    async fn every_difference_is_found_and_named() {
        let equal = Compared { keys: 600, ..Compared::default() };
        assert_eq!(compared(|_| {}, 0).await.unwrap(), equal);
        let counted = compared(|kvs| kvs[300].version = 9, 0).await.unwrap();
        assert_eq!(counted.other_versions, 1);
        let changes: [fn(&mut Vec<KeyValue>); 7] = [
            |kvs| kvs[511].value = "other".into(),
            |kvs| kvs[0].create_revision = 1,
            |kvs| kvs[599].mod_revision = 650,
            |kvs| kvs[256].lease = 77,
            |kvs| drop(kvs.remove(255)),
            |kvs| kvs.push(KeyValue { key: "z".into(), ..KeyValue::default() }),
            |kvs| kvs[3].key = "k0003x".into(),
        ];
        for (place, change) in changes.into_iter().enumerate() {
            let found = compared(change, 0).await;
            assert!(matches!(found, Err(MoveError::Differs { at: 700, .. })), "change {place}: {found:?}");
        }
        // Of what is older only the number counts.
        assert!(compared(|kvs| kvs[3].value = "other".into(), 500).await.is_ok());
        assert!(compared(|kvs| kvs[550].value = "other".into(), 500).await.is_err());
        assert!(compared(|kvs| drop(kvs.remove(3)), 500).await.is_err());
    }
}
