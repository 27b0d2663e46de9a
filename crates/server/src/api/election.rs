//! The Election service: a queue of keys under the election's name, whose oldest leads; its value is what the leader says.
//! There is one leader at each replica; what that means among several is in docs/operations.md.

use std::collections::VecDeque;

use bytes::Bytes;
use eddy_proto::etcdserverpb::{ResponseHeader, TxnResponse, WatchResponse};
use eddy_proto::mvccpb::event::EventType;
use eddy_proto::v3electionpb::election_server::Election;
use eddy_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
    ResignRequest, ResignResponse,
};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status};

use super::concurrency::{
    Concurrency, LeavesQueue, created_at, delete, first, get, prefix, put, read, read_in, session_key,
};

/// The service.
#[derive(Clone, Debug)]
pub struct ElectionService(pub Concurrency);

fn not_leader() -> Status {
    Status::unknown("election: not leader")
}

fn leader_of(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

impl ElectionService {
    fn on_behalf<T>(&self, request: &Request<T>) -> Self {
        Self(self.0.on_behalf(request))
    }

    async fn say(&self, leader: &LeaderKey, value: Bytes) -> Result<Option<ResponseHeader>, Status> {
        let said = vec![put(leader.key.clone(), value, leader.lease)];
        let answer = self.0.txn(created_at(leader.key.clone(), leader.rev), said, vec![]).await?;
        if answer.succeeded { Ok(answer.header) } else { Err(not_leader()) }
    }

    async fn give_up(&self, leader: &LeaderKey) -> Result<TxnResponse, Status> {
        self.0.txn(created_at(leader.key.clone(), leader.rev), vec![delete(leader.key.clone())], vec![]).await
    }
}

#[tonic::async_trait]
impl Election for ElectionService {
    type ObserveStream = BoxStream<'static, Result<LeaderResponse, Status>>;

    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        let service = self.on_behalf(&request);
        let CampaignRequest { name, lease, value } = request.into_inner();
        let lease = service.0.session(lease).await?;
        let prefix = prefix(&name);
        let key = session_key(&prefix, lease);
        let stand = vec![put(key.clone(), value.clone(), lease)];
        let answer = service.0.txn(created_at(key.clone(), 0), stand, vec![read(get(key.clone()))]).await?;
        let header = answer.header;
        let mut leader = LeaderKey { name, key, rev: header.map_or(0, |header| header.revision), lease };
        if !answer.succeeded
            && let Some(stands) = read_in(&answer.responses, 0).and_then(|range| range.kvs.first())
        {
            leader.rev = stands.create_revision;
            if stands.value != value
                && let Err(status) = service.say(&leader, value).await
            {
                let _was_never_in = service.give_up(&leader).await;
                return Err(status);
            }
        }
        let (leaves, gone) = (service.clone(), leader.clone());
        let queued = LeavesQueue::by(async move {
            if let Err(error) = leaves.give_up(&gone).await {
                tracing::debug!(%error, "who stood for an election is gone, its key stays until its lease ends");
            }
        });
        let waited = service.0.wait_deletes(&prefix, leader.rev - 1).await;
        queued.stay();
        waited?;
        Ok(Response::new(CampaignResponse { header, leader: Some(leader) }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        let service = self.on_behalf(&request);
        let ProclaimRequest { leader, value } = request.into_inner();
        let leader = leader_of(leader)?;
        let leader = LeaderKey { lease: service.0.session(leader.lease).await?, ..leader };
        let header = service.say(&leader, value).await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        let shared = self.0.on_behalf(&request);
        let found = shared.range(first(&prefix(&request.into_inner().name))).await?;
        match found.kvs.into_iter().next() {
            Some(kv) => Ok(Response::new(LeaderResponse { header: found.header, kv: Some(kv) })),
            None => Err(Status::unknown("election: no leader")),
        }
    }

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        let observer = Observer {
            shared: self.0.on_behalf(&request),
            prefix: prefix(&request.into_inner().name),
            watch: None,
            seen: VecDeque::new(),
        };
        let answers = stream::unfold(observer, |mut observer| async move {
            let answer = observer.next().await?;
            Some((Ok(answer), observer))
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        let service = self.on_behalf(&request);
        let leader = leader_of(request.into_inner().leader)?;
        let leader = LeaderKey { lease: service.0.session(leader.lease).await?, ..leader };
        let answer = service.give_up(&leader).await?;
        Ok(Response::new(ResignResponse { header: answer.header }))
    }
}

/// Sees who leads, and what leaders say.
struct Observer {
    shared: Concurrency,
    prefix: Bytes,
    /// What becomes of the leader's key; `None` while there is no leader.
    watch: Option<BoxStream<'static, Result<WatchResponse, Status>>>,
    /// What was seen and is not told yet.
    seen: VecDeque<LeaderResponse>,
}

impl Observer {
    /// What is seen next; `None` when a watch is lost, which ends the stream.
    async fn next(&mut self) -> Option<LeaderResponse> {
        loop {
            if let Some(seen) = self.seen.pop_front() {
                return Some(seen);
            }
            let Some(watch) = &mut self.watch else {
                self.find().await?;
                continue;
            };
            let response = watch.next().await?.ok().filter(|response| !response.canceled)?;
            let header = response.header;
            for event in response.events {
                if event.r#type() == EventType::Delete {
                    self.watch = None;
                    break;
                }
                self.seen.push_back(LeaderResponse { header, kv: event.kv });
            }
        }
    }

    /// Waits for a leader.
    async fn find(&mut self) -> Option<()> {
        let found = self.shared.range(first(&self.prefix)).await.ok()?;
        let mut header = found.header?;
        let kv = match found.kvs.into_iter().next() {
            Some(kv) => kv,
            None => {
                let mut watch = self.shared.watch(self.prefix.clone(), true, header.revision);
                let kv = loop {
                    let response = watch.next().await?.ok().filter(|response| !response.canceled)?;
                    let put = response.events.into_iter().find(|event| event.r#type() == EventType::Put);
                    if let Some(kv) = put.and_then(|event| event.kv) {
                        header = response.header?;
                        break kv;
                    }
                };
                // Several may have been put at once.
                header.revision = kv.mod_revision;
                kv
            }
        };
        self.watch = Some(self.shared.watch(kv.key.clone(), false, header.revision + 1));
        self.seen.push_back(LeaderResponse { header: Some(header), kv: Some(kv) });
        Some(())
    }
}
