//! The Maintenance service: status, alarms, hashes, defragmentation, backups.

use eddy_crdt::{Alarm, AlarmKind, Identity, ReplicaId, Revision};
use eddy_proto::etcdserverpb::alarm_request::AlarmAction;
use eddy_proto::etcdserverpb::downgrade_request::DowngradeAction;
use eddy_proto::etcdserverpb::maintenance_server::Maintenance;
use eddy_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, ResponseHeader, SnapshotRequest, StatusRequest, StatusResponse,
};
use tonic::{Request, Response, Status};

use super::header::{self, RAFT_TERM};
use super::snapshot;
use super::status::{self, Denied};
use crate::auth::{Access, Caller};
use crate::node::alarm::alarm_text;
use crate::node::{Handle, NodeState};
use crate::version::{ETCD_CLUSTER_VERSION, ETCD_VERSION};

/// The service.
#[derive(Clone, Debug)]
pub struct MaintenanceService {
    node: Handle,
    identity: Identity,
    access: Access,
}

impl MaintenanceService {
    /// Serves the node.
    pub fn new(node: Handle, access: Access) -> Self {
        let identity = node.identity();
        Self { node, identity, access }
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.access.of(request).map_err(|error| status::auth(&error))
    }

    /// Lets everybody through who is somebody.
    fn only_users<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.caller(request)?.is_somebody().map_err(status::denied_user)
    }

    /// Lets only root through.
    fn only_root<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.caller(request)?.is_root().map_err(status::denied_user)
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(header::at(&self.identity, self.node.revision()))
    }

    /// Raises or lowers an alarm. Returns it, unless it was to be lowered and was not raised, and the revision then.
    async fn set_alarm(&self, alarm: Alarm, raised: bool) -> Result<(Option<Alarm>, Revision), Status> {
        let (changed, revision) = self.node.set_alarm(alarm, raised).await.map_err(status::node)?;
        Ok(((raised || changed).then_some(alarm), revision))
    }
}

fn alarm_type(kind: AlarmKind) -> i32 {
    match kind {
        AlarmKind::NoSpace => AlarmType::Nospace.into(),
        AlarmKind::Corrupt => AlarmType::Corrupt.into(),
        AlarmKind::Unknown(kind) => kind,
    }
}

/// The kind of an alarm type; `None` for the type that stands for all kinds.
fn alarm_kind(alarm_type: i32) -> Option<AlarmKind> {
    match AlarmType::try_from(alarm_type) {
        Ok(AlarmType::None) => None,
        Ok(AlarmType::Nospace) => Some(AlarmKind::NoSpace),
        Ok(AlarmType::Corrupt) => Some(AlarmKind::Corrupt),
        Err(_) => Some(AlarmKind::Unknown(alarm_type)),
    }
}

fn alarm_member(alarm: Alarm) -> AlarmMember {
    AlarmMember { member_id: alarm.member.get(), alarm: alarm_type(alarm.kind) }
}

/// Major and minor number of a version with or without a patch number.
fn major_minor(version: &str) -> Option<(u64, u64)> {
    let (numbers, _) = version.split_once(['-', '+']).unwrap_or((version, ""));
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let version = (numbers.next()??, numbers.next()??);
    match (numbers.next(), numbers.next()) {
        (None | Some(Some(_)), None) => Some(version),
        _ => None,
    }
}

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    type SnapshotStream = snapshot::Parts;

    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        match AlarmAction::try_from(request.get_ref().action) {
            Ok(AlarmAction::Get) => self.only_users(&request)?,
            _ => self.only_root(&request)?,
        }
        let request = request.into_inner();
        let kind = alarm_kind(request.alarm);
        let mut header = self.header();
        let alarms = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                let wanted = |alarm: &Alarm| kind.is_none_or(|kind| alarm.kind == kind);
                self.node.alarms().into_iter().filter(wanted).map(alarm_member).collect()
            }
            Ok(action) => match kind {
                None => vec![],
                Some(kind) => {
                    let alarm = Alarm { member: ReplicaId::new(request.member_id), kind };
                    let (set, revision) = self.set_alarm(alarm, action == AlarmAction::Activate).await?;
                    header = Some(header::at(&self.identity, revision));
                    set.into_iter().map(alarm_member).collect()
                }
            },
            Err(_) => return Err(status::denied(Denied::UnknownMethod)),
        };
        Ok(Response::new(AlarmResponse { header, alarms }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.only_users(&request)?;
        let status = self.node.status();
        let mut errors: Vec<String> = status.alarms.iter().map(alarm_text).collect();
        if let NodeState::WritesStopped { reason } = &status.state {
            errors.push(format!("writes stopped until restart: {reason}"));
        }
        Ok(Response::new(StatusResponse {
            header: Some(header::at(&self.identity, status.revision)),
            version: ETCD_VERSION.to_owned(),
            db_size: to_i64(status.size_allocated),
            leader: self.identity.replica.get(),
            raft_index: status.next_number,
            raft_term: RAFT_TERM,
            raft_applied_index: status.next_number,
            errors,
            db_size_in_use: to_i64(status.size_in_use),
            is_learner: false,
            storage_version: ETCD_CLUSTER_VERSION.to_owned(),
            db_size_quota: status.quota.map_or(-1, to_i64),
            downgrade_info: Some(DowngradeInfo::default()),
        }))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.only_root(&request)?;
        self.node.defragment().await.map_err(status::node)?;
        Ok(Response::new(DefragmentResponse { header: None }))
    }

    /// etcd hashes its database file here. eddy has another layout, so this is the hash of all keys. It serves the same
    /// purpose: equal histories have equal hashes.
    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.only_root(&request)?;
        let hash = self.node.hash_kv(None).await.map_err(status::node)?;
        Ok(Response::new(HashResponse { header: Some(header::at(&self.identity, hash.revision)), hash: hash.hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        self.only_root(&request)?;
        let at = request.into_inner().revision;
        let hash = self.node.hash_kv((at != 0).then(|| Revision::new(at))).await.map_err(status::node)?;
        Ok(Response::new(HashKvResponse {
            header: self.header(),
            hash: hash.hash,
            compact_revision: hash.compacted.map_or(-1, Revision::get),
            hash_revision: hash.revision.get(),
        }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        self.only_root(&request)?;
        let captured = self.node.capture(RAFT_TERM).await.map_err(status::node)?;
        Ok(Response::new(snapshot::stream(self.node.clone(), captured)))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.only_root(&request)?;
        // This replica is its own leader, and no other can be.
        if request.into_inner().target_id != self.identity.replica.get() {
            return Err(status::denied(Denied::BadLeaderTransferee));
        }
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        self.only_root(&request)?;
        let request = request.into_inner();
        let (major, minor) = major_minor(ETCD_VERSION).unwrap_or_default();
        match DowngradeAction::try_from(request.action) {
            // There is one version of eddy's disk, so none could be gone back to.
            Ok(DowngradeAction::Validate | DowngradeAction::Enable) => match major_minor(&request.version) {
                None => Err(status::denied(Denied::WrongDowngradeVersion)),
                Some(_) => Err(status::denied(Denied::InvalidDowngradeVersion)),
            },
            // As in etcd, it is no error that there is nothing to cancel.
            Ok(DowngradeAction::Cancel) => {
                Ok(Response::new(DowngradeResponse { header: self.header(), version: format!("{major}.{minor}") }))
            }
            Err(_) => Err(status::denied(Denied::UnknownMethod)),
        }
    }
}

fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_etcd_reads_them() {
        for (text, expected) in [
            ("3.6", Some((3, 6))),
            ("3.6.0", Some((3, 6))),
            ("3.6.4-rc.0", Some((3, 6))),
            ("3", None),
            ("", None),
            ("3.x", None),
            ("3.6.x", None),
            ("3.6.0.0", None),
        ] {
            assert_eq!(major_minor(text), expected, "{text}");
        }
    }
}
