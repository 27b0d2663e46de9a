//! Errors as gRPC statuses: the only place that knows etcd's codes and texts. Clients match both.

use eddy_crdt::{AuthRefusal, Refusal};
use tonic::{Code, Status};

use super::invalid::Invalid;
use crate::auth::AuthError;
use crate::backup::give::GiveError;
use crate::node::NodeError;
use crate::node::watch::WatchRefusal;

/// Maps a node error to a gRPC status.
pub fn node(error: NodeError) -> Status {
    let (code, text) = match error {
        NodeError::Refused(refusal) => return refused(refusal),
        // etcd forgets to give this error a code; its clients go by the text.
        NodeError::TooManyRequests => (Code::Unknown, "etcdserver: too many requests"),
        NodeError::NoSpace => (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        NodeError::Corrupt => (Code::DataLoss, "etcdserver: corrupt cluster"),
        NodeError::TimedOut => (Code::Unavailable, "etcdserver: request timed out"),
        NodeError::Stopped => return stopped(),
        NodeError::WritesStopped(_) => return Status::unavailable(format!("etcdserver: {error}")),
        NodeError::Storage(_) => return Status::unknown(format!("etcdserver: {error}")),
        NodeError::Mismatched => return Status::internal(format!("eddy: {error}")),
    };
    Status::new(code, text)
}

/// The text for a call that the server's stop has ended; its code is UNAVAILABLE.
pub const STOPPED: &str = "etcdserver: server stopped";

/// The status of a call that the server's stop has ended.
pub fn stopped() -> Status {
    Status::unavailable(STOPPED)
}

/// The status of a client's call before the node has opened. Kubernetes and etcd's own clients try again upon it.
pub fn not_joined() -> Status {
    Status::unavailable("etcdserver: not joined yet: a new member takes no requests before it has met another")
}

/// Maps the end of a backup that is not whole.
pub fn backup(error: &GiveError) -> Status {
    Status::unavailable(format!("etcdserver: {error}; try again"))
}

/// Maps a malformed request to a gRPC status.
pub fn invalid(invalid: Invalid) -> Status {
    Status::invalid_argument(match invalid {
        Invalid::EmptyKey => "etcdserver: key is not provided",
        // The text is etcd's.
        Invalid::EmptyOp => "etcdserver: key not found",
        Invalid::ValueProvided => "etcdserver: value is provided",
        Invalid::LeaseProvided => "etcdserver: lease is provided",
        Invalid::TooManyOps => "etcdserver: too many operations in txn request",
        Invalid::DuplicateKey => "etcdserver: duplicate key given in txn request",
        Invalid::SortOption => "etcdserver: invalid sort option",
        Invalid::TooLarge => "etcdserver: request is too large",
    })
}

/// Why a watcher is cancelled at once, as etcd words it. `None` stands for a start before all history.
pub fn cancel_reason(refusal: Option<WatchRefusal>) -> &'static str {
    match refusal {
        None => COMPACTED,
        Some(WatchRefusal::EmptyRange) => "mvcc: watcher range is empty",
        Some(WatchRefusal::DuplicateId) => "mvcc: duplicate watch ID provided on the WatchStream",
    }
}

/// How etcd words that a revision is gone.
pub const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

/// Maps a refusal of the replica to a gRPC status.
pub fn refused(refusal: Refusal) -> Status {
    let (code, text) = match refusal {
        Refusal::Compacted => (Code::OutOfRange, COMPACTED),
        Refusal::FutureRevision => (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
        Refusal::KeyNotFound => (Code::InvalidArgument, "etcdserver: key not found"),
        Refusal::LeaseNotFound => (Code::NotFound, "etcdserver: requested lease not found"),
        Refusal::LeaseExists => (Code::FailedPrecondition, "etcdserver: lease already exists"),
        Refusal::LeaseTtlTooLarge => (Code::OutOfRange, "etcdserver: too large lease TTL"),
        Refusal::MemberNotFound | Refusal::MemberRemoved => return denied(Denied::MemberNotFound),
        Refusal::MemberExists => return denied(Denied::MemberExists),
        Refusal::PeerUrlExists => return denied(Denied::PeerUrlExists),
        Refusal::MemberNotLearner => return denied(Denied::MemberNotLearner),
        Refusal::LastMember => return denied(Denied::NotEnoughStarted),
        Refusal::TooManyMembers => (Code::ResourceExhausted, "eddy: too many members"),
        Refusal::SpacesExhausted => (Code::ResourceExhausted, "eddy: no revision space is left"),
        Refusal::Auth(refusal) => return auth(&refusal.into()),
        Refusal::RulesMoving => {
            (Code::FailedPrecondition, "eddy: the rules that were declared last wait for members, see `eddy status`")
        }
    };
    Status::new(code, text)
}

/// Maps why a call is not let through to a gRPC status.
pub fn auth(error: &AuthError) -> Status {
    let code = match error {
        AuthError::Refused(refusal) => match refusal {
            AuthRefusal::UserEmpty
            | AuthRefusal::RoleEmpty
            | AuthRefusal::PermissionNotGiven
            | AuthRefusal::InvalidManagement
            | AuthRefusal::OldRevision => Code::InvalidArgument,
            AuthRefusal::PermissionDenied => Code::PermissionDenied,
            AuthRefusal::RootUserNotExist
            | AuthRefusal::RootRoleNotExist
            | AuthRefusal::UserExists
            | AuthRefusal::UserNotFound
            | AuthRefusal::RoleExists
            | AuthRefusal::RoleNotFound
            | AuthRefusal::RoleNotGranted
            | AuthRefusal::PermissionNotGranted => Code::FailedPrecondition,
        },
        AuthError::InvalidToken => Code::Unauthenticated,
        AuthError::Failed => Code::InvalidArgument,
        AuthError::NotEnabled => Code::FailedPrecondition,
        // etcd forgets to give these errors a code and a text for clients.
        AuthError::NoPasswordUser | AuthError::VerifyOnly => return Status::unknown(format!("auth: {error}")),
        AuthError::Impossible(text) => return Status::unknown(text.clone()),
        AuthError::TooMany => return node(NodeError::TooManyRequests),
    };
    Status::new(code, format!("etcdserver: {error}"))
}

/// Maps why a user's call is not let through to a gRPC status.
pub fn denied_user(refusal: AuthRefusal) -> Status {
    auth(&refusal.into())
}

/// Why a watcher is cancelled at once that its user may not have, as etcd words it.
pub fn watch_denied(error: &AuthError) -> String {
    let told = match error {
        AuthError::InvalidToken | AuthError::Refused(AuthRefusal::OldRevision | AuthRefusal::UserEmpty) => auth(error),
        _ => auth(&AuthRefusal::PermissionDenied.into()),
    };
    // The text of a status as Go prints it.
    let code = match told.code() {
        Code::Unauthenticated => "Unauthenticated",
        Code::InvalidArgument => "InvalidArgument",
        _ => "PermissionDenied",
    };
    format!("rpc error: code = {code} desc = {}", told.message())
}

/// Why a call about members, users or versions fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// No such member.
    MemberNotFound,
    /// The URLs of a new member are no URLs.
    MemberBadUrls,
    /// The member is no learner.
    MemberNotLearner,
    /// The learner has never started.
    LearnerNotReady,
    /// Another member has that peer URL.
    PeerUrlExists,
    /// There is a member of that id already.
    MemberExists,
    /// There are as many learners as are allowed.
    TooManyLearners,
    /// It is the last member.
    NotEnoughStarted,
    /// No such member to lead.
    BadLeaderTransferee,
    /// Not a version.
    WrongDowngradeVersion,
    /// Not the version before this one.
    InvalidDowngradeVersion,
    /// The RPC is known, the action it names is not.
    UnknownMethod,
}

/// Maps such a failure to a gRPC status.
pub fn denied(denied: Denied) -> Status {
    let (code, text) = match denied {
        Denied::MemberNotFound => (Code::NotFound, "etcdserver: member not found"),
        Denied::MemberBadUrls => (Code::InvalidArgument, "etcdserver: given member URLs are invalid"),
        Denied::MemberNotLearner => (Code::FailedPrecondition, "etcdserver: can only promote a learner member"),
        Denied::LearnerNotReady => {
            (Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader")
        }
        Denied::PeerUrlExists => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
        Denied::MemberExists => (Code::FailedPrecondition, "etcdserver: member ID already exist"),
        Denied::TooManyLearners => (Code::FailedPrecondition, "etcdserver: too many learner members in cluster"),
        Denied::NotEnoughStarted => {
            (Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members")
        }
        Denied::BadLeaderTransferee => (Code::FailedPrecondition, "etcdserver: bad leader transferee"),
        Denied::WrongDowngradeVersion => (Code::InvalidArgument, "etcdserver: wrong downgrade target version format"),
        Denied::InvalidDowngradeVersion => (Code::InvalidArgument, "etcdserver: invalid downgrade target version"),
        Denied::UnknownMethod => (Code::Unknown, "etcdserver: unknown method"),
    };
    Status::new(code, text)
}

/// The status of a message that is too large to decode, in the words of etcd's gRPC library.
pub fn message_too_large(found: usize, limit: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({found} vs. {limit})"))
}

/// The status of a message that is too large once it is decompressed.
pub fn inflated_message_too_large(limit: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message after decompression larger than max {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_etcds() {
        for (status, code, text) in [
            (node(NodeError::TooManyRequests), Code::Unknown, "etcdserver: too many requests"),
            (node(NodeError::NoSpace), Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (node(NodeError::Corrupt), Code::DataLoss, "etcdserver: corrupt cluster"),
            (node(NodeError::TimedOut), Code::Unavailable, "etcdserver: request timed out"),
            (node(NodeError::Stopped), Code::Unavailable, "etcdserver: server stopped"),
            (
                node(NodeError::WritesStopped("no".into())),
                Code::Unavailable,
                "etcdserver: writes stopped until restart: no",
            ),
            (node(NodeError::Storage("no".to_owned())), Code::Unknown, "etcdserver: no"),
            (
                node(NodeError::Refused(Refusal::FutureRevision)),
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (invalid(Invalid::EmptyKey), Code::InvalidArgument, "etcdserver: key is not provided"),
            (invalid(Invalid::EmptyOp), Code::InvalidArgument, "etcdserver: key not found"),
            (invalid(Invalid::ValueProvided), Code::InvalidArgument, "etcdserver: value is provided"),
            (invalid(Invalid::LeaseProvided), Code::InvalidArgument, "etcdserver: lease is provided"),
            (invalid(Invalid::TooManyOps), Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            (invalid(Invalid::DuplicateKey), Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
            (invalid(Invalid::SortOption), Code::InvalidArgument, "etcdserver: invalid sort option"),
            (invalid(Invalid::TooLarge), Code::InvalidArgument, "etcdserver: request is too large"),
            (refused(Refusal::Compacted), Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (refused(Refusal::LeaseNotFound), Code::NotFound, "etcdserver: requested lease not found"),
            (message_too_large(9, 8), Code::ResourceExhausted, "grpc: received message larger than max (9 vs. 8)"),
        ] {
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }
}
