//! A tonic server that answers Put (and Range) with nothing behind them. It gives the ceiling that any etcd server
//! built on tonic has on the machine it is measured on. `empty 127.0.0.1:PORT`.

use eddy_proto::etcdserverpb::kv_server::{Kv, KvServer};
use eddy_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use tonic::{Request, Response, Status};

struct Empty;

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: 1, member_id: 1, revision: 1, raft_term: 1 })
}

#[tonic::async_trait]
impl Kv for Empty {
    type RangeStreamStream = tonic::codegen::BoxStream<RangeStreamResponse>;

    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        Ok(Response::new(RangeResponse { header: header(), ..RangeResponse::default() }))
    }

    async fn put(&self, _: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        Ok(Response::new(PutResponse { header: header(), prev_kv: None }))
    }

    async fn range_stream(&self, _: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("the empty server has no RangeStream"))
    }

    async fn delete_range(&self, _: Request<DeleteRangeRequest>) -> Result<Response<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("the empty server has no DeleteRange"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        Err(Status::unimplemented("the empty server has no Txn"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::unimplemented("the empty server has no Compact"))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: empty ADDRESS"))?.parse()?;
    tonic::transport::Server::builder().add_service(KvServer::new(Empty)).serve(address).await?;
    Ok(())
}
