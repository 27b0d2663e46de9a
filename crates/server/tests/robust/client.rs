//! The requests that these tests make.

use std::path::Path;

use anyhow::{Context, Result};
use eddy_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse,
    kv_client::KvClient, lease_client::LeaseClient,
};
use tonic::Status;
use tonic::transport::Channel;

use crate::eddy;
use crate::support::Server;

/// A server on `dir/data` and a client of it.
pub async fn serve(dir: &Path) -> Result<(Server, Client)> {
    let server = Server::start(&eddy(), &dir.join("data"), &[]).await?;
    let client = Client::new(server.connect().await?);
    Ok((server, client))
}

/// A client; clones share its connection.
#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
    kv: KvClient<Channel>,
}

impl Client {
    pub fn new(channel: Channel) -> Client {
        Client { kv: KvClient::new(channel.clone()), channel }
    }

    pub async fn put(&self, key: &str, value: &[u8]) -> Result<i64, Status> {
        self.put_leased(key, value, 0).await
    }

    pub async fn put_leased(&self, key: &str, value: &[u8], lease: i64) -> Result<i64, Status> {
        let request =
            PutRequest { key: key.to_owned().into(), value: value.to_vec().into(), lease, ..Default::default() };
        let answer = self.kv.clone().put(request).await?.into_inner();
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(self.kv.clone().range(request).await?.into_inner())
    }

    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Status> {
        let answer = self.range(RangeRequest { key: key.to_owned().into(), ..Default::default() }).await?;
        Ok(answer.kvs.first().map(|kv| kv.value.to_vec()))
    }

    /// The newest revision.
    pub async fn revision(&self) -> Result<i64> {
        let answer = self.range(RangeRequest { key: "\0".into(), count_only: true, ..Default::default() }).await?;
        Ok(answer.header.context("a header")?.revision)
    }

    pub async fn delete_all(&self) -> Result<i64, Status> {
        let request = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        Ok(self.kv.clone().delete_range(request).await?.into_inner().deleted)
    }

    pub async fn compact(&self, revision: i64) -> Result<(), Status> {
        self.kv.clone().compact(CompactionRequest { revision, physical: true }).await.map(drop)
    }

    pub async fn grant(&self, ttl: i64) -> Result<i64, Status> {
        let mut lease = LeaseClient::new(self.channel.clone());
        Ok(lease.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await?.into_inner().id)
    }
}
