//! Checks whether a transaction could write a key twice, by etcd's rules.
//!
//! Branches that can be taken together form a combination. No combination may hold two puts of a key, or a put and a
//! delete that covers its key. Two deletes may overlap. Two quirks of etcd are part of the contract. A put in a nested
//! transaction is compared with the deletes of earlier siblings only. A delete "from this key on" (`range_end` is one
//! zero byte) is compared with nothing.
//!
//! Small sets are merged into large ones, so that deep nesting costs a logarithm and not a factor.

use std::collections::{BTreeMap, BTreeSet};

use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::{DeleteRangeRequest, RequestOp};

use super::invalid::Invalid;

/// Checks one branch of a transaction.
///
/// # Errors
/// [`Invalid::DuplicateKey`] when two steps write the same key.
pub fn check(ops: &[RequestOp]) -> Result<(), Invalid> {
    match ops {
        // Almost all transactions of Kubernetes have one step.
        [] => Ok(()),
        [op] if !matches!(op.request, Some(Request::RequestTxn(_))) => Ok(()),
        ops => writes(ops).map(|_| ()),
    }
}

type Puts<'a> = BTreeSet<&'a [u8]>;

fn writes(ops: &[RequestOp]) -> Result<(Puts<'_>, Spans<'_>), Invalid> {
    let mut deletes = Spans::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            deletes.insert_request(delete);
        }
    }
    let mut puts = Puts::new();
    for op in ops {
        let Some(Request::RequestTxn(txn)) = &op.request else { continue };
        let (then_puts, then_deletes) = writes(&txn.success)?;
        let (else_puts, else_deletes) = writes(&txn.failure)?;
        // The two branches exclude each other, so a key in both is no conflict.
        for branch in [&then_puts, &else_puts] {
            if meet(branch, &puts) || deletes.cover_any(branch) {
                return Err(Invalid::DuplicateKey);
            }
        }
        puts = merge(merge(puts, then_puts), else_puts);
        deletes = deletes.merge(then_deletes).merge(else_deletes);
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request
            && (deletes.cover(&put.key) || !puts.insert(&put.key))
        {
            return Err(Invalid::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}

fn meet(a: &Puts<'_>, b: &Puts<'_>) -> bool {
    let (small, large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    small.iter().any(|key| large.contains(key))
}

fn merge<'a>(a: Puts<'a>, b: Puts<'a>) -> Puts<'a> {
    let (small, mut large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    large.extend(small);
    large
}

/// A boundary between two keys: just before the key, or just behind it.
type Boundary<'a> = (&'a [u8], bool);

/// Disjoint stretches of keys, by start, with their ends.
#[derive(Default)]
struct Spans<'a>(BTreeMap<Boundary<'a>, Boundary<'a>>);

impl<'a> Spans<'a> {
    fn insert_request(&mut self, delete: &'a DeleteRangeRequest) {
        let start = &delete.key[..];
        match &delete.range_end[..] {
            [] => self.insert((start, false), (start, true)),
            [0] => {}
            end if start < end => self.insert((start, false), (end, false)),
            _ => {}
        }
    }

    fn insert(&mut self, mut start: Boundary<'a>, mut end: Boundary<'a>) {
        // Absorbs the stretches that begin within it, and the one that reaches into it from before.
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    fn cover(&self, key: &[u8]) -> bool {
        self.0.range::<Boundary<'_>, _>(..=(key, false)).next_back().is_some_and(|(_, &end)| end > (key, false))
    }

    fn cover_any(&self, keys: &Puts<'a>) -> bool {
        if keys.len() <= self.0.len() {
            return keys.iter().any(|key| self.cover(key));
        }
        // A start is always just before its key, so no key lies between the two.
        self.0.iter().any(|(start, end)| keys.range(start.0..).next().is_some_and(|&key| (key, false) < *end))
    }

    fn merge(self, other: Self) -> Self {
        let (small, mut large) = if self.0.len() <= other.0.len() { (self, other) } else { (other, self) };
        for (start, end) in small.0 {
            large.insert(start, end);
        }
        large
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use eddy_proto::etcdserverpb::{PutRequest, RangeRequest, TxnRequest};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn of(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put(key: &str) -> RequestOp {
        of(Request::RequestPut(PutRequest { key: key.to_owned().into(), ..Default::default() }))
    }

    fn delete(key: &str, end: &str) -> RequestOp {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        of(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        of(Request::RequestTxn(TxnRequest { compare: vec![], success, failure }))
    }

    #[test]
    fn overlaps_are_found_where_etcd_finds_them() {
        let range = || of(Request::RequestRange(RangeRequest { key: "a".into(), ..Default::default() }));
        for (allowed, case, ops) in [
            (true, "reads are free", vec![put("a"), range(), range()]),
            (false, "put twice", vec![put("a"), put("b"), put("a")]),
            (false, "put and delete", vec![put("a"), delete("a", "")]),
            (true, "another key", vec![put("a"), delete("b", "")]),
            (true, "the key right behind", vec![put("a\0"), delete("a", "")]),
            (false, "put in a deleted range", vec![delete("a", "c"), put("b")]),
            (false, "at its start", vec![delete("a", "c"), put("a")]),
            (true, "at its end", vec![delete("a", "c"), put("c")]),
            (true, "wrong way round", vec![delete("c", "a"), put("b")]),
            (true, "from a key on", vec![delete("a", "\0"), put("b")]),
            (true, "deletes overlap", vec![delete("a", "d"), delete("b", "c"), delete("b", "")]),
            (false, "adjacent deletes", vec![delete("a", "b"), delete("b", "c"), put("b")]),
            (true, "between deletes", vec![delete("a", "b"), delete("c", "d"), put("b")]),
            (true, "in exclusive branches", vec![txn(vec![put("a")], vec![put("a")])]),
            (true, "put and delete in exclusive branches", vec![txn(vec![put("a")], vec![delete("a", "c")])]),
            (false, "nested and outer put", vec![put("a"), txn(vec![], vec![put("a")])]),
            (false, "two nested ones", vec![txn(vec![put("a")], vec![]), txn(vec![], vec![put("a")])]),
            (false, "in a nested branch", vec![txn(vec![], vec![put("a"), put("a")])]),
            (false, "outer delete, nested put", vec![txn(vec![put("b")], vec![]), delete("a", "c")]),
            (false, "nested delete, outer put", vec![put("b"), txn(vec![], vec![delete("a", "c")])]),
            (
                false,
                "delete, then put, in siblings",
                vec![txn(vec![delete("a", "")], vec![]), txn(vec![put("a")], vec![])],
            ),
            (
                true,
                "put, then delete, in siblings",
                vec![txn(vec![put("a")], vec![]), txn(vec![delete("a", "")], vec![])],
            ),
        ] {
            assert_eq!(check(&ops).is_ok(), allowed, "{case}");
        }
    }

    /// The rules word by word, with sets of the few keys that the random transactions use.
    fn naive(ops: &[RequestOp]) -> Result<(HashSet<Vec<u8>>, Vec<DeleteRangeRequest>), ()> {
        let covers = |deletes: &[DeleteRangeRequest], key: &[u8]| {
            deletes.iter().any(|d| match &d.range_end[..] {
                [] => d.key == key,
                end => &d.key[..] <= key && key < end,
            })
        };
        let mut deletes = Vec::new();
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                deletes.push(delete.clone());
            }
        }
        let mut puts = HashSet::new();
        for op in ops {
            let Some(Request::RequestTxn(txn)) = &op.request else { continue };
            let (then_puts, then_deletes) = naive(&txn.success)?;
            let (else_puts, else_deletes) = naive(&txn.failure)?;
            for key in then_puts.union(&else_puts) {
                if puts.contains(key) || covers(&deletes, key) {
                    return Err(());
                }
            }
            puts.extend(then_puts.into_iter().chain(else_puts));
            deletes.extend(then_deletes.into_iter().chain(else_deletes));
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request
                && (covers(&deletes, &put.key) || !puts.insert(put.key.to_vec()))
            {
                return Err(());
            }
        }
        Ok((puts, deletes))
    }

    fn random_ops(rng: &mut SmallRng, depth: u32) -> Vec<RequestOp> {
        let key = |rng: &mut SmallRng| {
            let mut key = String::from(char::from(b'a' + rng.random_range(0..12)));
            key.push_str(["", "", "\0", "x"][rng.random_range(0..4)]);
            key
        };
        (0..rng.random_range(0..5))
            .map(|_| match rng.random_range(0..if depth == 0 { 3 } else { 5 }) {
                0 => put(&key(rng)),
                1 => delete(&key(rng), ""),
                2 => delete(&key(rng), &key(rng)),
                _ => txn(random_ops(rng, depth - 1), random_ops(rng, depth - 1)),
            })
            .collect()
    }

    #[test]
    fn random_transactions_agree_with_the_rules() {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut allowed = 0;
        for round in 0..20_000 {
            let ops = random_ops(&mut rng, 3);
            let expected = naive(&ops).is_ok();
            assert_eq!(check(&ops).is_ok(), expected, "round {round}: {ops:?}");
            allowed += usize::from(expected && ops.len() > 2);
        }
        assert!(allowed > 500, "the random transactions hardly ever pass: {allowed}");
    }

    #[test]
    fn deep_nesting_is_cheap() {
        // 40 levels, each with 1,000 puts and deletes of its own below the level above: quadratic work would take minutes.
        let mut ops = vec![];
        for level in 0..40 {
            let mut outer = vec![txn(ops, vec![])];
            for n in 0..500 {
                outer.push(put(&format!("p{level:03}-{n:05}")));
                outer.push(delete(&format!("d{level:03}-{n:05}"), ""));
            }
            ops = outer;
        }
        assert_eq!(check(&ops), Ok(()));
        ops.push(put("d000-00499"));
        assert_eq!(check(&ops), Err(Invalid::DuplicateKey));
    }
}
