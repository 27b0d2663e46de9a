//! Snapshot: a backup of this replica, part after part.

use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_proto::etcdserverpb::SnapshotResponse;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::status;
use crate::backup::give::{self, Take};
use crate::node::{Captured, Handle};
use crate::version::ETCD_CLUSTER_VERSION;

/// The parts as the client is sent them.
pub type Parts = ReceiverStream<Result<SnapshotResponse, Status>>;

/// Parts that wait for the network.
const WAITING: usize = 8;

/// How long a client may take nothing. Nothing is swept meanwhile, so that memory and disk grow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The backup of what was captured. It is made as fast as the client takes it.
pub fn stream(node: Handle, captured: Captured) -> Parts {
    let (sender, receiver) = mpsc::channel(WAITING);
    let runtime = runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let (since, revision) = (Instant::now(), captured.point.revision.get());
        let mut client = Client { sender: sender.clone(), runtime, bytes: 0 };
        match give::give(&node, &captured, &mut client) {
            Ok(()) => tracing::info!(revision, bytes = client.bytes, took = ?since.elapsed(), "sent a backup"),
            Err(error) => {
                tracing::warn!(revision, bytes = client.bytes, %error, "a backup ended before its end");
                // A client that is gone, or takes nothing, hears nothing either.
                drop(sender.try_send(Err(status::backup(&error))));
            }
        }
    });
    ReceiverStream::new(receiver)
}

struct Client {
    sender: mpsc::Sender<Result<SnapshotResponse, Status>>,
    runtime: runtime::Handle,
    bytes: u64,
}

impl Take for Client {
    fn take(&mut self, blob: Bytes, remaining_bytes: u64) -> bool {
        self.bytes += blob.len() as u64;
        let part = SnapshotResponse { header: None, remaining_bytes, blob, version: ETCD_CLUSTER_VERSION.to_owned() };
        let sent = self.runtime.block_on(timeout(PATIENCE, self.sender.send(Ok(part))));
        matches!(sent, Ok(Ok(())))
    }
}
