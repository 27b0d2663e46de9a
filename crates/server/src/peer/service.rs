//! The gRPC service for peers: opening a stream, and asking this member for its identity.

use std::iter::once;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use eddy_crdt::merge::Rules;
use eddy_proto::peer::peer_server::{Peer as PeerApi, PeerServer};
use eddy_proto::peer::{Frame, MeetRequest, MeetResponse};
use futures::{Stream, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::dial::FRAME_BYTES_MAX;
use super::join;
use super::link::{FRAMES_WAITING, Link};
use super::peers::Peers;

/// The TCP address of a peer that calls, an extension of its requests; `None` on a unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Caller(pub Option<SocketAddr>);

/// What peers are served before and after the node has opened.
pub struct Station {
    /// The answer to `Meet` before the node has opened.
    starting: MeetResponse,
    /// The newest question of a member of the same cluster until then.
    asked: watch::Sender<MeetRequest>,
    peers: OnceLock<Arc<Peers>>,
}

impl Station {
    /// A station that answers `starting` until it is opened.
    pub fn new(starting: MeetResponse) -> Arc<Station> {
        let asked = watch::Sender::new(MeetRequest::default());
        Arc::new(Station { starting: MeetResponse { starting: true, ..starting }, asked, peers: OnceLock::new() })
    }

    /// What new members of the same cluster ask of this one before it has opened.
    pub fn asked(&self) -> watch::Receiver<MeetRequest> {
        self.asked.subscribe()
    }

    /// Accepts streams from now on.
    pub fn open(&self, peers: Arc<Peers>) {
        if self.peers.set(peers).is_err() {
            tracing::error!("peers were being served already");
        }
    }
}

/// The services for peers.
pub fn routes(station: &Arc<Station>) -> Routes {
    let server = PeerServer::new(PeerService(station.clone()))
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(FRAME_BYTES_MAX);
    Routes::new(server)
}

struct PeerService(Arc<Station>);

#[tonic::async_trait]
impl PeerApi for PeerService {
    type SyncStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    async fn sync(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::SyncStream>, Status> {
        let Some(peers) = self.0.peers.get() else {
            return Err(Status::unavailable("eddy: this member has not opened yet"));
        };
        let caller = request.extensions().get::<Caller>().and_then(|caller| caller.0);
        let remote = caller.map_or_else(|| "unix".to_owned(), |address| address.to_string());
        let (sender, receiver) = mpsc::channel(FRAMES_WAITING);
        peers.accept(Link { inbound: request.into_inner(), outbound: sender }, remote);
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(|message| Ok(Frame { message })))))
    }

    async fn meet(&self, request: Request<MeetRequest>) -> Result<Response<MeetResponse>, Status> {
        let response = match self.0.peers.get() {
            Some(peers) => peers.meet(&request.into_inner()),
            None => {
                let request = request.into_inner();
                // One that founds with the same rules changes nothing; one with others must not be forgotten for it.
                let others = !request.rules.is_empty() && request.rules != self.0.starting.rules;
                if request.cluster_id == self.0.starting.cluster_id && others {
                    self.0.asked.send_replace(request);
                }
                self.0.starting.clone()
            }
        };
        Ok(Response::new(response))
    }
}

impl Peers {
    /// Answers a member that starts: this member's identity, and what it knows of the asker.
    pub(crate) fn meet(&self, request: &MeetRequest) -> MeetResponse {
        let identity = self.node.identity();
        let members = self.node.members();
        let asker = join::find_asker(&members, request);
        self.node.look(|replica| MeetResponse {
            cluster_id: identity.cluster.get(),
            member_id: identity.replica.get(),
            starting: false,
            members: members.iter().filter(|member| !member.removed).map(join::to_wire).collect(),
            rules: replica.rules().first().encode(),
            rules_now: once(replica.rules().current()).chain(replica.rules().declared()).map(Rules::encode).collect(),
            knows_asker: asker.is_some_and(|asker| replica.vector().iter().any(|dot| dot.origin.replica == asker)),
            has_settled: replica.floor().iter().any(|dot| dot.origin.replica.get() != 0),
            removed_asker: asker.is_some_and(|id| members.iter().any(|member| member.id == id && member.removed)),
        })
    }
}
