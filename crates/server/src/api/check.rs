//! Checks of requests without the store, in etcd's order.

use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request};

use super::invalid::Invalid;
use super::overlap;

/// Checks a range.
///
/// # Errors
/// When it has no key, or an unknown sort option.
pub fn range(request: &RangeRequest) -> Result<(), Invalid> {
    if request.key.is_empty() {
        return Err(Invalid::EmptyKey);
    }
    if range_request::SortOrder::try_from(request.sort_order).is_err()
        || range_request::SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Invalid::SortOption);
    }
    Ok(())
}

/// Checks a put.
///
/// # Errors
/// When it has no key, or gives a value or lease that it asks to ignore.
pub fn put(request: &PutRequest) -> Result<(), Invalid> {
    if request.key.is_empty() {
        return Err(Invalid::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Invalid::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Invalid::LeaseProvided);
    }
    Ok(())
}

/// Checks a delete.
///
/// # Errors
/// When it has no key.
pub fn delete(request: &DeleteRangeRequest) -> Result<(), Invalid> {
    if request.key.is_empty() { Err(Invalid::EmptyKey) } else { Ok(()) }
}

/// Checks a transaction of at most `max_ops` compares, and as many steps in each branch.
///
/// # Errors
/// When there are too many, one of them is invalid, or two of them write the same key.
pub fn txn(request: &TxnRequest, max_ops: usize) -> Result<(), Invalid> {
    txn_ops(request, max_ops)?;
    // After the limit on operations, which bounds the cost of these checks.
    overlap::check(&request.success)?;
    overlap::check(&request.failure)
}

fn txn_ops(request: &TxnRequest, max_ops: usize) -> Result<(), Invalid> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    // Nested transactions share what this level leaves of the limit.
    let left = max_ops.checked_sub(ops).ok_or(Invalid::TooManyOps)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Invalid::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|step| op(step, left))
}

fn op(op: &RequestOp, max_ops: usize) -> Result<(), Invalid> {
    match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete(request),
        Some(Request::RequestTxn(request)) => txn_ops(request, max_ops),
        None => Err(Invalid::EmptyOp),
    }
}

#[cfg(test)]
mod tests {
    use eddy_proto::etcdserverpb::Compare;

    use super::*;

    const MAX_OPS: usize = 4;

    fn get(key: &'static str) -> RequestOp {
        of(Request::RequestRange(RangeRequest { key: key.into(), ..Default::default() }))
    }

    fn set(key: &'static str) -> RequestOp {
        of(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() }))
    }

    fn nest(success: Vec<RequestOp>) -> RequestOp {
        of(Request::RequestTxn(TxnRequest { success, ..Default::default() }))
    }

    fn of(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    #[test]
    fn single_requests_are_checked_in_etcds_order() {
        let key = || bytes::Bytes::from_static(b"k");
        for (request, expected) in [
            (RangeRequest { sort_order: 9, ..Default::default() }, Err(Invalid::EmptyKey)),
            (RangeRequest { key: key(), sort_order: 3, ..Default::default() }, Err(Invalid::SortOption)),
            (RangeRequest { key: key(), sort_target: 5, ..Default::default() }, Err(Invalid::SortOption)),
            (RangeRequest { key: key(), sort_target: -1, ..Default::default() }, Err(Invalid::SortOption)),
            (RangeRequest { key: key(), sort_target: 4, sort_order: 2, limit: -7, ..Default::default() }, Ok(())),
        ] {
            assert_eq!(range(&request), expected, "{request:?}");
        }
        for (request, expected) in [
            (PutRequest { ignore_value: true, value: key(), ..Default::default() }, Err(Invalid::EmptyKey)),
            (
                PutRequest {
                    key: key(),
                    value: key(),
                    lease: 1,
                    ignore_value: true,
                    ignore_lease: true,
                    ..Default::default()
                },
                Err(Invalid::ValueProvided),
            ),
            (
                PutRequest { key: key(), lease: -1, ignore_lease: true, ..Default::default() },
                Err(Invalid::LeaseProvided),
            ),
            (PutRequest { key: key(), ignore_value: true, ignore_lease: true, ..Default::default() }, Ok(())),
        ] {
            assert_eq!(put(&request), expected, "{request:?}");
        }
        assert_eq!(delete(&DeleteRangeRequest { range_end: key(), ..Default::default() }), Err(Invalid::EmptyKey));
        assert_eq!(delete(&DeleteRangeRequest { key: key(), ..Default::default() }), Ok(()));
    }

    #[test]
    fn transactions_are_checked_in_etcds_order() {
        let compare = |key: &'static str| Compare { key: key.into(), ..Default::default() };
        let txn_of = |compare, success, failure| TxnRequest { compare, success, failure };
        for (case, request, expected) in [
            ("empty", TxnRequest::default(), Ok(())),
            ("at the limit", txn_of(vec![], vec![get("a"); 4], vec![get("a"); 4]), Ok(())),
            ("over it, before anything else", txn_of(vec![compare(""); 5], vec![], vec![]), Err(Invalid::TooManyOps)),
            ("in the failure branch", txn_of(vec![], vec![], vec![get(""); 5]), Err(Invalid::TooManyOps)),
            (
                "compares first",
                txn_of(vec![compare("a"), compare("")], vec![RequestOp::default()], vec![]),
                Err(Invalid::EmptyKey),
            ),
            ("success next", txn_of(vec![], vec![RequestOp::default()], vec![get("")]), Err(Invalid::EmptyOp)),
            ("failure last", txn_of(vec![], vec![get("a")], vec![get("")]), Err(Invalid::EmptyKey)),
            (
                "nested uses the same budget",
                txn_of(vec![], vec![nest(vec![nest(vec![nest(vec![get("a")])])])], vec![]),
                Ok(()),
            ),
            (
                "up to its end",
                txn_of(vec![], vec![nest(vec![nest(vec![nest(vec![nest(vec![get("a")])])])])], vec![]),
                Err(Invalid::TooManyOps),
            ),
            (
                "siblings share it",
                txn_of(vec![], vec![nest(vec![get("a"); 3]), get("b")], vec![]),
                Err(Invalid::TooManyOps),
            ),
            (
                "invalid before duplicate",
                txn_of(vec![], vec![set("a"), set("a")], vec![get("")]),
                Err(Invalid::EmptyKey),
            ),
            ("duplicate in success", txn_of(vec![], vec![set("a"), set("a")], vec![]), Err(Invalid::DuplicateKey)),
            ("duplicate in failure", txn_of(vec![], vec![], vec![set("a"), set("a")]), Err(Invalid::DuplicateKey)),
            ("never both branches", txn_of(vec![], vec![set("a")], vec![set("a")]), Ok(())),
        ] {
            assert_eq!(txn(&request, MAX_OPS), expected, "{case}");
        }
    }
}
