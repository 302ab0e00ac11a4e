//! A way to the server that can be cut, or fall silent, and be mended.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use sqlx::Pool;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

use crate::dialect::Dialect;

/// What becomes of what is said on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Open,
    /// All connections end, and new ones end at once.
    Cut,
    /// Connections stay, and nobody hears anything.
    Silent,
}

pub struct Switch {
    way: watch::Sender<Way>,
    /// How many connections were refused because the way is cut.
    refused: Arc<AtomicUsize>,
    port: u16,
    listening: JoinHandle<()>,
}

impl Switch {
    /// Stands between a pool's server and whoever connects; it is open.
    pub async fn before<DB: Dialect>(pool: &Pool<DB>) -> Self {
        let server = DB::server(&pool.connect_options());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, way) = (listener.local_addr().unwrap().port(), watch::Sender::new(Way::Open));
        let (subscribed, refused) = (way.subscribe(), Arc::<AtomicUsize>::default());
        let refusals = Arc::clone(&refused);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *subscribed.borrow() == Way::Cut {
                    refusals.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let server = TcpStream::connect(server.clone()).await.unwrap();
                tokio::spawn(forward(client, server, subscribed.clone()));
            }
        });
        Self { way, refused, port, listening }
    }

    /// A pool that connects through it.
    pub async fn pool<DB: Dialect>(&self, pool: &Pool<DB>) -> Pool<DB> {
        let options = DB::by_way_of((*pool.connect_options()).clone(), self.port);
        Pool::connect_with(options).await.expect("it answers")
    }

    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    pub fn turn(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Until either side ends, or the way is cut; then both are closed.
async fn forward(client: TcpStream, server: TcpStream, mut way: watch::Receiver<Way>) {
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = pass(from_client, to_server, way.clone()) => {}
        _ = pass(from_server, to_client, way.clone()) => {}
        _ = way.wait_for(|way| *way == Way::Cut) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || way.wait_for(|way| *way != Way::Silent).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
