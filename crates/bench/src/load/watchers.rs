//! Watchers of all keys: how long a write takes to reach them, at the node it was written at and at others.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::end_of_prefix;
use super::recorder::Recorder;
use super::workload::Stamp;
use crate::target::transport::Transport;

/// Name, in the results, of the time until a watcher at the node of the write sees it.
pub const SAME_NODE: &str = "seen at the same node";
/// Name, in the results, of the time until a watcher at another node sees a write.
pub const OTHER_NODE: &str = "seen at another node";
/// Watchers on one stream, as etcd's own load generator has them.
const PER_STREAM: usize = 100;

/// Running watchers; they end when this is dropped.
pub struct Watchers {
    _streams: JoinSet<()>,
}

impl Watchers {
    /// Lets this many watch all keys under a prefix, at the nodes in turn, and waits until all watches stand.
    ///
    /// # Errors
    /// When a watch cannot be made.
    pub async fn start(
        nodes: &[String],
        transport: &Transport,
        count: usize,
        prefix: &str,
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let mut streams = JoinSet::new();
        for (node, address) in nodes.iter().enumerate() {
            let mut here = count / nodes.len() + usize::from(node < count % nodes.len());
            let channel = transport.endpoint(address)?.connect_lazy();
            while here > 0 {
                let on_stream = here.min(PER_STREAM);
                here -= on_stream;
                let (requests, stream) = mpsc::channel(PER_STREAM);
                for _ in 0..on_stream {
                    let create = WatchCreateRequest {
                        key: prefix.as_bytes().to_vec().into(),
                        range_end: end_of_prefix(prefix.as_bytes()),
                        ..WatchCreateRequest::default()
                    };
                    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
                    requests.send(create).await?;
                }
                let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
                let mut answers = WatchClient::new(channel.clone()).watch(stream).await?.into_inner();
                for _ in 0..on_stream {
                    let answer = answers.message().await?.context("the watch ended")?;
                    anyhow::ensure!(answer.created, "a watch was not created: {}", answer.cancel_reason);
                }
                let recorder = Arc::clone(recorder);
                streams.spawn(async move {
                    let _open = requests;
                    while let Ok(Some(answer)) = answers.message().await {
                        let now = Instant::now();
                        for event in answer.events {
                            let Some(stamp) = event.kv.and_then(|kv| Stamp::find(&kv.value)) else { continue };
                            let what = if stamp.node == node { SAME_NODE } else { OTHER_NODE };
                            let due = recorder.epoch() + stamp.at;
                            recorder.observe(node, what, due, now.saturating_duration_since(due));
                        }
                    }
                });
            }
        }
        Ok(Self { _streams: streams })
    }
}
