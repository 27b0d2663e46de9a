//! RangeStream: one range in parts, all as of the same revision.

use eddy_crdt::{KeyRange, KeyValue, RangeOp, ReadAt, Revision, SortOrder, SortTarget};
use eddy_proto::etcdserverpb::{RangeResponse, RangeStreamResponse, ResponseHeader};
use futures::{Stream, stream};
use prost::Message;
use tonic::Status;

use super::{convert, header, status};
use crate::node::Handle;

/// Keys in the first part, as in etcd.
const FIRST_PART: usize = 10;

/// Checks that the range can be read in parts.
///
/// # Errors
/// When it is sorted or filters revisions, as in etcd: these need the whole range.
pub fn check(op: &RangeOp) -> Result<(), Status> {
    if op.sort.1 != SortOrder::Unspecified && op.sort != (SortTarget::Key, SortOrder::Ascend) {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    if !op.bounds.is_empty() {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

/// The range in parts of about `target_bytes`, or in one part if `whole`. Each part is read when the client has room for it.
pub fn parts(
    node: Handle,
    op: RangeOp,
    whole: bool,
    target_bytes: usize,
) -> impl Stream<Item = Result<RangeStreamResponse, Status>> + Send {
    let part = if whole { usize::MAX } else { FIRST_PART };
    let reader = Reader { node, limit: op.limit, op, sent: 0, revision: None, part, target_bytes };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok((part, done)) => Some((Ok(part), (!done).then_some(reader))),
            Err(status) => Some((Err(status), None)),
        }
    })
}

struct Reader {
    node: Handle,
    op: RangeOp,
    /// The most keys that the client wants; none for all.
    limit: Option<usize>,
    sent: usize,
    /// The newest revision when the first part was read.
    revision: Option<Revision>,
    /// Keys of the next part.
    part: usize,
    target_bytes: usize,
}

impl Reader {
    async fn next(&mut self) -> Result<(RangeStreamResponse, bool), Status> {
        if self.op.count_only {
            let reply = self.node.range(&self.op).await.map_err(status::node)?;
            let header = Some(self.header(reply.revision));
            return Ok((part(RangeResponse { header, count: reply.count, ..Default::default() }), true));
        }
        let most = self.part.min(self.limit.map_or(usize::MAX, |limit| limit - self.sent));
        self.op.limit = Some(most);
        self.op.total_count = false;
        let reply = self.node.range(&self.op).await.map_err(status::node)?;
        let revision = *self.revision.get_or_insert(reply.revision);
        if self.op.at == ReadAt::Latest {
            self.op.at = ReadAt::Revision(revision);
        }
        self.sent += reply.kvs.len();
        let next = if reply.more { reply.kvs.last().map(behind) } else { None };
        let Some(next) = next.filter(|_| self.limit.is_none_or(|limit| self.sent < limit)) else {
            return self.last(reply.kvs, reply.more, revision).await;
        };
        self.op.range = starting_at(&self.op.range, next);
        let kvs = reply.kvs.into_iter().map(convert::key_value).collect();
        let response = RangeResponse { kvs, ..Default::default() };
        // etcd measures what it read, not what it sends.
        let header = Some(ResponseHeader { revision: reply.revision.get(), ..Default::default() });
        let rest = RangeResponse { header, more: true, count: reply.count, ..Default::default() };
        let size = response.encoded_len() + rest.encoded_len();
        if size < self.target_bytes / 2 {
            self.part = most.saturating_mul(2);
        } else if size > self.target_bytes.saturating_mul(2) {
            self.part = (most / 2).max(1);
        } else {
            self.part = most;
        }
        Ok((part(response), false))
    }

    /// The last part. It alone has a header and the count of all keys.
    async fn last(
        &self,
        kvs: Vec<KeyValue>,
        more: bool,
        revision: Revision,
    ) -> Result<(RangeStreamResponse, bool), Status> {
        let mut count = self.sent as i64;
        if let Some(next) = kvs.last().filter(|_| more).map(behind) {
            let mut rest = RangeOp::all(starting_at(&self.op.range, next));
            (rest.at, rest.count_only) = (self.op.at, true);
            count += self.node.range(&rest).await.map_err(status::node)?.count;
        }
        let kvs = kvs.into_iter().map(convert::key_value).collect();
        Ok((part(RangeResponse { header: Some(self.header(revision)), kvs, more, count }), true))
    }

    fn header(&self, revision: Revision) -> ResponseHeader {
        header::at(&self.node.identity(), revision)
    }
}

fn part(response: RangeResponse) -> RangeStreamResponse {
    RangeStreamResponse { range_response: Some(response) }
}

/// The smallest key after that one.
fn behind(kv: &KeyValue) -> bytes::Bytes {
    let mut key = Vec::with_capacity(kv.key.len() + 1);
    key.extend_from_slice(&kv.key);
    key.push(0);
    key.into()
}

fn starting_at(range: &KeyRange, start: bytes::Bytes) -> KeyRange {
    match range {
        KeyRange::Span(_, end) => KeyRange::Span(start, end.clone()),
        // There is only one key, so the rest is empty.
        KeyRange::Key(_) => KeyRange::Span(start.clone(), start),
        KeyRange::From(_) => KeyRange::From(start),
    }
}

#[cfg(test)]
mod tests {
    use eddy_crdt::RevisionBounds;

    use super::*;

    #[test]
    fn what_needs_the_whole_range_is_refused_as_in_etcd() {
        let all = || RangeOp::all(KeyRange::From("a".into()));
        let text = |op: RangeOp| check(&op).err().map(|status| (status.code(), status.message().to_owned()));
        let no = |text: &str| Some((tonic::Code::Unimplemented, text.to_owned()));
        assert_eq!(text(all()), None);
        assert_eq!(text(RangeOp { sort: (SortTarget::Mod, SortOrder::Unspecified), ..all() }), None);
        assert_eq!(text(RangeOp { sort: (SortTarget::Key, SortOrder::Ascend), ..all() }), None);
        let sorted = RangeOp { sort: (SortTarget::Key, SortOrder::Descend), ..all() };
        assert_eq!(text(sorted), no("RangeStream does not support custom sort orders"));
        let bounds = RevisionBounds { min_mod: Some(Revision::new(1)), ..Default::default() };
        assert_eq!(text(RangeOp { bounds, ..all() }), no("RangeStream does not support revision filters"));
    }
}
