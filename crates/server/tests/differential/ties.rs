//! Takes out of sorted answers what no order decides. etcd sorts more than twelve keys with Go's unstable sort, eddy
//! with a stable one. So keys with equal targets come in another order, and a limit may cut between them elsewhere.

use eddy_proto::{etcdserverpb::*, mvccpb::KeyValue};

use crate::op;

/// Go sorts up to this many keys by insertion, which is stable.
const STABLE_MAX: i64 = 12;

const KEY: i32 = range_request::SortTarget::Key as i32;
const VALUE: i32 = range_request::SortTarget::Value as i32;

/// Makes equal what may differ between two right answers to `request`.
pub fn settle(request: &op::Range, answer: &mut RangeResponse) {
    if request.sort_target == KEY || answer.count <= STABLE_MAX {
        return;
    }
    if request.limit > 0 {
        // Which keys are left is open, what they were sorted by is not.
        for kv in &mut answer.kvs {
            *kv = only_target(request.sort_target, kv);
        }
    } else if request.keys_only && request.sort_target == VALUE {
        answer.kvs.sort_by(|a, b| a.key.cmp(&b.key));
    } else {
        let target = request.sort_target;
        for run in answer.kvs.chunk_by_mut(|a, b| only_target(target, a) == only_target(target, b)) {
            run.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
}

fn only_target(target: i32, kv: &KeyValue) -> KeyValue {
    use range_request::SortTarget;
    let mut only = KeyValue::default();
    match SortTarget::try_from(target) {
        Ok(SortTarget::Version) => only.version = kv.version,
        Ok(SortTarget::Create) => only.create_revision = kv.create_revision,
        Ok(SortTarget::Mod) => only.mod_revision = kv.mod_revision,
        Ok(SortTarget::Value) => only.value = kv.value.clone(),
        Ok(SortTarget::Key) | Err(_) => only.key = kv.key.clone(),
    }
    only
}

/// As [`settle`], for every range of a transaction.
pub fn settle_txn(request: &op::Txn, answer: &mut TxnResponse) {
    use response_op::Response;
    let requests = if answer.succeeded { &request.success } else { &request.failure };
    for (request, response) in requests.iter().zip(&mut answer.responses) {
        match (request, response.response.as_mut()) {
            (op::Inner::Range(request), Some(Response::ResponseRange(answer))) => settle(request, answer),
            (op::Inner::Txn(request), Some(Response::ResponseTxn(answer))) => settle_txn(request, answer),
            _ => {}
        }
    }
}
