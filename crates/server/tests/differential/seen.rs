//! What a server answered to one step, freed of what may differ between two servers: raft's numbers, sizes, times.

use eddy_proto::etcdserverpb::*;
use tonic::Code;

use crate::streams::Snapshot;

/// Remaining lease times may differ by this many seconds.
const TTL_TOLERANCE: i64 = 2;

#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Error(Code, String),
    /// The server did not answer in time.
    NoAnswer,
    Done,
    /// The server did not stop, or did not start again.
    NoStart(String),
    Range(RangeResponse),
    /// The chunks as one, and how many of them had a header.
    RangeStream {
        whole: RangeResponse,
        headers: usize,
    },
    Put(PutResponse),
    Delete(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    /// Answers to a create or cancel request, in order.
    Control(Vec<WatchResponse>),
    /// Answers to a progress request: watch id and revision.
    Progress(Vec<(i64, i64)>),
    /// All that the watchers of all streams got so far.
    Streams(Vec<Snapshot>),
    Grant(LeaseGrantResponse),
    Revoke(LeaseRevokeResponse),
    KeepAlive(Vec<LeaseKeepAliveResponse>),
    /// The answer without its remaining time, and that.
    TimeToLive(LeaseTimeToLiveResponse, i64),
    Leases(LeaseLeasesResponse),
    Members(MemberListResponse),
    Status {
        header: Option<ResponseHeader>,
        version: String,
        storage_version: String,
        quota: i64,
        leader: u64,
        learner: bool,
        errors: Vec<String>,
        sizes: bool,
        indexes: bool,
    },
    Hash(Option<ResponseHeader>),
    HashKv(HashKvResponse),
    Alarm(AlarmResponse),
    AuthStatus(AuthStatusResponse),
    Defragment(DefragmentResponse),
}

impl Seen {
    /// Whether two servers may answer so to the same step.
    pub fn agrees_with(&self, other: &Seen) -> bool {
        match (self, other) {
            (Seen::TimeToLive(a, left_a), Seen::TimeToLive(b, left_b)) => {
                a == b && (left_a - left_b).abs() <= TTL_TOLERANCE
            }
            _ => self == other,
        }
    }
}

/// Takes the raft term out of a header. That it is set at all is compared.
pub fn normal_header(header: &mut ResponseHeader) {
    header.raft_term = u64::from(header.raft_term != 0);
}
