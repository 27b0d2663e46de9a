//! A TCP relay that can be cut, stalled and healed: the network between replicas.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bytes that are carried at once.
const BUFFER: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Takes connections and bytes and lets nothing through.
    Stalled,
    Cut,
}

/// Passes connections on to `target` until it is dropped.
pub struct Relay {
    address: SocketAddr,
    gate: Arc<watch::Sender<Gate>>,
    carried: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// A relay on a port of its own.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let gate = Arc::new(watch::Sender::new(Gate::Open));
        let carried = Arc::new(AtomicU64::new(0));
        let (opener, counter) = (Arc::clone(&gate), Arc::clone(&carried));
        let accepting = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                let (gate, counter) = (opener.subscribe(), Arc::clone(&counter));
                if *gate.borrow() != Gate::Cut {
                    tokio::spawn(carry(from, target, gate, counter));
                }
            }
        });
        Ok(Relay { address, gate, carried, accepting })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes went through, in both directions.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// Ends all connections and takes no more.
    pub fn cut(&self) {
        self.gate.send_replace(Gate::Cut);
    }

    /// Lets nothing through any more, and tells nobody.
    pub fn stall(&self) {
        self.gate.send_replace(Gate::Stalled);
    }

    /// Takes connections again, and lets everything through.
    pub fn heal(&self) {
        self.gate.send_replace(Gate::Open);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One connection, to its end.
async fn carry(mut from: TcpStream, target: SocketAddr, mut gate: watch::Receiver<Gate>, carried: Arc<AtomicU64>) {
    let mut cut = gate.clone();
    let both = async {
        gate.wait_for(|gate| *gate == Gate::Open).await.ok()?;
        let mut to = TcpStream::connect(target).await.ok()?;
        let (from_read, from_write) = from.split();
        let (to_read, to_write) = to.split();
        tokio::select! {
            ended = pass(from_read, to_write, gate.clone(), &carried) => ended,
            ended = pass(to_read, from_write, gate.clone(), &carried) => ended,
        }
    };
    tokio::select! {
        _ended = both => {}
        _cut = cut.wait_for(|gate| *gate == Gate::Cut) => {}
    }
}

/// One direction, until it ends.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut gate: watch::Receiver<Gate>,
    carried: &AtomicU64,
) -> Option<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = from.read(&mut buffer).await.ok().filter(|len| *len > 0)?;
        gate.wait_for(|gate| *gate != Gate::Stalled).await.ok()?;
        to.write_all(&buffer[..len]).await.ok()?;
        carried.fetch_add(len as u64, Ordering::Relaxed);
    }
}
