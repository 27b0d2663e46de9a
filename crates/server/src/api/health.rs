//! The gRPC health checking protocol, as etcd serves it: for the server as a whole, not for each service.

use std::pin::Pin;

use eddy_proto::health::health_check_response::ServingStatus;
use eddy_proto::health::health_server::Health;
use eddy_proto::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use futures::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};

use crate::node::{Handle, NodeState};

/// The service.
#[derive(Clone, Debug)]
pub struct HealthService {
    node: Handle,
}

impl HealthService {
    /// Serves the node.
    pub fn new(node: Handle) -> Self {
        Self { node }
    }

    fn now(&self) -> HealthCheckResponse {
        let status = match self.node.state() {
            NodeState::Running => ServingStatus::Serving,
            // etcd ends its process where writes have stopped.
            NodeState::WritesStopped { .. } | NodeState::WritesPaused { .. } => ServingStatus::NotServing,
        };
        HealthCheckResponse { status: status.into() }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !request.into_inner().service.is_empty() {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(self.now()))
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
        let statuses = [(String::new(), self.now())].into_iter().collect();
        Ok(Response::new(HealthListResponse { statuses }))
    }

    /// Sends the present status and stays open. Only a failed flush changes the status later; the restart that follows it
    /// ends the stream.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let first = match &request.into_inner().service[..] {
            "" => self.now(),
            _ => HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() },
        };
        let stream = stream::iter([Ok(first)]).chain(stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }
}
