//! A TCP relay that can be cut and healed: the network between replicas.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Passes connections on to `target` until it is dropped.
pub struct Relay {
    address: SocketAddr,
    open: Arc<watch::Sender<bool>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// A relay on a port of its own.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let open = Arc::new(watch::Sender::new(true));
        let gate = Arc::clone(&open);
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut gate = gate.subscribe();
                if !*gate.borrow_and_update() {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut to) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut from, &mut to) => {}
                        _ = gate.changed() => {}
                    }
                });
            }
        });
        Ok(Relay { address, open, accepting })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections and takes no more.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Takes connections again.
    pub fn heal(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
