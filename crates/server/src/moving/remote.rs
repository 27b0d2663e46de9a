//! An etcd, or an eddy, as its client sees it.

use std::future::Future;
use std::time::Duration;

use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::io::AsyncWriteExt;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::error::MoveError;
use crate::config::url::Url;
use crate::peer::Dialer;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long no part of a backup may come.
const PART_TIMEOUT: Duration = Duration::from_secs(60);

/// The name under which etcd's clients send their token.
const TOKEN: &str = "token";

/// What etcd says of a read below its last compaction.
const COMPACTED: &str = "required revision has been compacted";

/// A user of etcd.
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// Where it is, and who asks.
pub struct Remote {
    /// Its client URLs.
    pub urls: Vec<Url>,
    /// What connects to them.
    pub dialer: Dialer,
    /// Who asks, where users are told apart.
    pub user: Option<User>,
}

/// One connection to it.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) url: String,
    pub(super) channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

/// Who answered, and how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    pub(super) cluster: u64,
    pub(super) revision: i64,
}

impl Remote {
    /// Connects to the first endpoint that takes a connection.
    pub(super) async fn connect(&self) -> Result<Session, MoveError> {
        let mut failed = vec![];
        for url in &self.urls {
            match self.dialer.connect(url).await {
                Ok(channel) => {
                    let mut session = Session { url: url.to_string(), channel, token: None };
                    match session.authenticate(self.user.as_ref()).await {
                        Ok(()) => return Ok(session),
                        Err(error) if error.passes() => failed.push(error.to_string()),
                        Err(error) => return Err(error),
                    }
                }
                Err(reason) => failed.push(format!("{url}: {reason}")),
            }
        }
        // A server that refuses a certificate ends the connection, and seldom says why.
        let is_tls = self.urls.iter().any(|url| url.scheme().is_tls());
        let hint = if is_tls { " (over TLS: were the right certificates given?)" } else { "" };
        Err(MoveError::Unreachable(failed.join("; ") + hint))
    }
}

impl Session {
    /// Takes a token for the user, if there is one.
    async fn authenticate(&mut self, user: Option<&User>) -> Result<(), MoveError> {
        let Some(User { name, password }) = user else { return Ok(()) };
        let request = pb::AuthenticateRequest { name: name.clone(), password: password.clone() };
        let mut client = AuthClient::new(self.channel.clone());
        match self.call(client.authenticate(request)).await {
            Ok(answer) => {
                let token = answer.token.parse().map_err(|_| MoveError::Strange("its token is no text".to_owned()))?;
                self.token = Some(token);
                Ok(())
            }
            // As etcdctl takes it: nobody has to say who they are.
            Err(MoveError::Call { code: Code::FailedPrecondition, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A request with the token.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        request
    }

    /// The answer to a call, within its time.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, MoveError> {
        let late = || Status::deadline_exceeded(format!("no answer within {} s", CALL_TIMEOUT.as_secs()));
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err(late()));
        answer.map(Response::into_inner).map_err(|status| MoveError::call(&self.url, &status))
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
    }

    /// Reads a range.
    pub(super) async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, MoveError> {
        let at = request.revision;
        match self.call(self.kv().range(self.request(request))).await {
            Err(MoveError::Call { message, .. }) if message.contains(COMPACTED) => Err(MoveError::Compacted(at)),
            answer => answer,
        }
    }

    /// How far it is now.
    pub(super) async fn standing(&self) -> Result<Standing, MoveError> {
        let request = pb::RangeRequest { key: "\0".into(), count_only: true, ..Default::default() };
        let header = self.range(request).await?.header;
        let header = header.ok_or_else(|| MoveError::Strange("a range has no header".to_owned()))?;
        Ok(Standing { cluster: header.cluster_id, revision: header.revision })
    }

    /// Runs a transaction; tells its revision, and whether its compares held.
    pub(super) async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse, MoveError> {
        self.call(self.kv().txn(self.request(request))).await
    }

    /// Its hash over all keys at a revision, and how far it is compacted.
    pub(super) async fn hash_kv(&self, revision: i64) -> Result<(u32, i64), MoveError> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let answer = self.call(client.hash_kv(self.request(pb::HashKvRequest { revision }))).await?;
        Ok((answer.hash, answer.compact_revision.max(0)))
    }

    /// Compacts it.
    pub(super) async fn compact(&self, revision: i64) -> Result<(), MoveError> {
        let request = pb::CompactionRequest { revision, physical: false };
        self.call(self.kv().compact(self.request(request))).await.map(drop)
    }

    /// Writes a backup to a file.
    pub(super) async fn save(&self, path: &std::path::Path) -> Result<u64, MoveError> {
        let failed = |source| MoveError::File { path: path.display().to_string(), source };
        let mut client = MaintenanceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut parts = self.call(client.snapshot(self.request(pb::SnapshotRequest {}))).await?;
        let mut file = tokio::fs::File::create(path).await.map_err(failed)?;
        let mut bytes = 0;
        loop {
            let late = || Status::deadline_exceeded("its backup does not go on");
            let part = tokio::time::timeout(PART_TIMEOUT, parts.message()).await.unwrap_or_else(|_| Err(late()));
            let Some(part) = part.map_err(|status| MoveError::call(&self.url, &status))? else { break };
            bytes += part.blob.len() as u64;
            file.write_all(&part.blob).await.map_err(failed)?;
        }
        file.sync_all().await.map_err(failed)?;
        Ok(bytes)
    }

    fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// All leases that it has.
    pub(super) async fn lease_ids(&self) -> Result<Vec<i64>, MoveError> {
        let answer = self.call(self.leases().lease_leases(self.request(pb::LeaseLeasesRequest {}))).await?;
        Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
    }

    /// The time to live that a lease was granted, seconds; `None` when it is not there.
    pub(super) async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, MoveError> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: false };
        let answer = self.call(self.leases().lease_time_to_live(self.request(request))).await?;
        Ok((answer.ttl >= 0 && answer.granted_ttl > 0).then_some(answer.granted_ttl))
    }

    /// How many keys hang on a lease.
    pub(super) async fn lease_keys(&self, id: i64) -> Result<usize, MoveError> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        Ok(self.call(self.leases().lease_time_to_live(self.request(request))).await?.keys.len())
    }

    /// Grants a lease.
    pub(super) async fn lease_grant(&self, id: i64, ttl: i64) -> Result<(), MoveError> {
        self.call(self.leases().lease_grant(self.request(pb::LeaseGrantRequest { ttl, id }))).await.map(drop)
    }

    /// Revokes a lease.
    pub(super) async fn lease_revoke(&self, id: i64) -> Result<(), MoveError> {
        self.call(self.leases().lease_revoke(self.request(pb::LeaseRevokeRequest { id }))).await.map(drop)
    }

    /// Keeps leases alive.
    pub(super) async fn lease_renew(&self, ids: Vec<i64>) -> Result<(), MoveError> {
        let count = ids.len();
        let requests = futures::stream::iter(ids.into_iter().map(|id| pb::LeaseKeepAliveRequest { id }));
        let mut answers = self.call(self.leases().lease_keep_alive(self.request(requests))).await?;
        for _ in 0..count {
            let answer = tokio::time::timeout(CALL_TIMEOUT, answers.message()).await;
            match answer {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) | Err(_) => break,
                Ok(Err(status)) => return Err(MoveError::call(&self.url, &status)),
            }
        }
        Ok(())
    }
}
