//! What a server answered to one step, freed of what may differ between two servers: ids, terms, addresses, times.

use eddy_proto::etcdserverpb::*;
use tonic::Code;

use crate::streams::Snapshot;

/// Remaining lease times may differ by this many seconds.
const TTL_TOLERANCE: i64 = 2;

/// One member: name, learner, whether it is the answering one, peer and client URLs without ports.
pub type MemberSeen = (String, bool, bool, Vec<String>, Vec<String>);

#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Error(Code, String),
    /// The server did not answer in time.
    NoAnswer,
    Done,
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
    Members(Option<ResponseHeader>, Vec<MemberSeen>),
    Status {
        header: Option<ResponseHeader>,
        version: String,
        storage_version: String,
        quota: i64,
        leads: bool,
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

/// Takes the ids and the raft term out of a header. That they are set at all is compared.
pub fn normal_header(header: &mut ResponseHeader) {
    header.cluster_id = u64::from(header.cluster_id != 0);
    header.member_id = u64::from(header.member_id != 0);
    header.raft_term = u64::from(header.raft_term != 0);
}

/// A message without the numbers in it, for texts that name a member.
pub fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}
