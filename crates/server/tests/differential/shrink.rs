//! Makes a failing sequence short: fewer steps, then simpler transactions.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{
    op::{Inner, Op, Txn},
    pair::{Difference, Pair},
};

/// Shrinking stops after this time, with the shortest sequence so far.
const SHRINK_WITHIN: Duration = Duration::from_secs(90);

/// The shortest failing sequence found, and how it fails; `None` when `ops` does not fail on emptied servers.
///
/// # Errors
/// The servers cannot be started.
pub async fn shrink(pair: &mut Pair, ops: &[Op]) -> Result<Option<(Vec<Op>, Difference)>> {
    let deadline = Instant::now() + SHRINK_WITHIN;
    let Some(mut difference) = attempt(pair, ops).await? else {
        return Ok(None);
    };
    let mut ops = ops[..=difference.step].to_vec();
    let mut chunk = ops.len().div_ceil(2);
    while chunk > 0 && Instant::now() < deadline {
        let mut at = 0;
        while at < ops.len() && Instant::now() < deadline {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(ops.len()));
            match attempt(pair, &fewer).await? {
                Some(found) => {
                    fewer.truncate(found.step + 1);
                    (ops, difference) = (fewer, found);
                }
                None => at += chunk,
            }
        }
        chunk /= 2;
    }
    let mut at = 0;
    while at < ops.len() && Instant::now() < deadline {
        let mut simpler = simpler(&ops[at]).into_iter();
        let next = loop {
            let Some(op) = simpler.next() else { break None };
            let mut changed = ops.clone();
            changed[at] = op;
            if let Some(found) = attempt(pair, &changed).await? {
                changed.truncate(found.step + 1);
                break Some((changed, found));
            }
        };
        match next {
            Some(better) => (ops, difference) = better,
            None => at += 1,
        }
    }
    Ok(Some((ops, difference)))
}

async fn attempt(pair: &mut Pair, ops: &[Op]) -> Result<Option<Difference>> {
    pair.reset().await?;
    Ok(pair.run(ops).await)
}

/// Steps that are like `op` with one part less.
fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::Txn(txn) => simpler_txns(txn).into_iter().map(Op::Txn).collect(),
        _ => Vec::new(),
    }
}

fn simpler_txns(txn: &Txn) -> Vec<Txn> {
    let mut all = Vec::new();
    for i in 0..txn.compare.len() {
        let mut less = txn.clone();
        less.compare.remove(i);
        all.push(less);
    }
    fn success(txn: &mut Txn) -> &mut Vec<Inner> {
        &mut txn.success
    }
    fn failure(txn: &mut Txn) -> &mut Vec<Inner> {
        &mut txn.failure
    }
    for which in [success, failure] {
        let list = which(&mut txn.clone()).clone();
        for (i, inner) in list.iter().enumerate() {
            let mut less = txn.clone();
            which(&mut less).remove(i);
            all.push(less);
            if let Inner::Txn(nested) = inner {
                for simpler in simpler_txns(nested) {
                    let mut less = txn.clone();
                    which(&mut less)[i] = Inner::Txn(simpler);
                    all.push(less);
                }
            }
        }
    }
    all
}
