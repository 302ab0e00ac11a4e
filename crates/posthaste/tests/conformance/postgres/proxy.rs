//! A connection to the server that breaks at the worst moment: a proxy that knows a COMMIT when it sees one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use sqlx::{PgPool, postgres::PgConnectOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::JoinHandle,
};

/// What happens to the connection that says COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never hears of it.
    BeforeCommit,
    /// The server commits, and its answer is lost.
    AfterCommit,
    /// Nothing.
    Never,
}

/// What both directions of all connections know.
struct Shared {
    cut: Cut,
    /// Every so many commits one is cut; it counts down.
    left: AtomicI64,
    every: i64,
    cuts: AtomicUsize,
    round_trips: AtomicUsize,
}

pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// Stands between a pool's server and whoever connects, and cuts every `every`th commit once it is armed.
    pub async fn before(pool: &PgPool, cut: Cut, every: i64) -> Self {
        let options = pool.connect_options();
        let server = (options.get_host().to_owned(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            cut,
            left: AtomicI64::new(0),
            every,
            cuts: AtomicUsize::new(0),
            round_trips: AtomicUsize::new(0),
        });
        let known = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server.clone()).await.unwrap();
                tokio::spawn(forward(client, server, Arc::clone(&known)));
            }
        });
        Self { shared, address, listening }
    }

    /// How to connect through it.
    pub fn options(&self, pool: &PgPool) -> PgConnectOptions {
        let options = (*pool.connect_options()).clone();
        options.host("127.0.0.1").port(self.address.port()).ssl_mode(sqlx::postgres::PgSslMode::Disable)
    }

    pub fn arm(&self) {
        self.shared.left.store(self.shared.every, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// How often a client has asked and must have waited for the answer.
    pub fn round_trips(&self) -> usize {
        self.shared.round_trips.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Forwards until either side ends, or the connection is cut; then both sides are closed.
async fn forward(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let is_cut = Notify::new();
    tokio::select! {
        _ = requests(from_client, to_server, &shared, &is_cut) => {}
        _ = answers(from_server, to_client, &is_cut) => {}
    }
}

/// Messages of the client, which are whole: a kind, a length, a body. Only the first has no kind.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    is_cut: &Notify,
) -> std::io::Result<()> {
    let first = message(&mut from).await?;
    to.write_all(&first).await?;
    loop {
        let kind = from.read_u8().await?;
        let body = message(&mut from).await?;
        // A simple query, or Sync.
        if matches!(kind, b'Q' | b'S') {
            shared.round_trips.fetch_add(1, Ordering::SeqCst);
        }
        // Simple queries and Parse; `COMMIT` alone, as a library sends it.
        let says_commit = matches!(kind, b'Q' | b'P') && body.windows(7).any(|text| text == b"COMMIT\0");
        if says_commit && shared.cut != Cut::Never && shared.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            shared.left.store(shared.every, Ordering::SeqCst);
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            if shared.cut == Cut::BeforeCommit {
                return Ok(());
            }
            is_cut.notify_one();
        }
        to.write_all(&[kind]).await?;
        to.write_all(&body).await?;
    }
}

/// Bytes of the server; once the connection is to be cut, its answer is awaited and goes nowhere.
async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_cut: &Notify) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            biased;
            () = is_cut.notified() => {
                return from.read(&mut buffer).await.map(drop);
            }
            read = from.read(&mut buffer) => match read? {
                0 => return Ok(()),
                n => to.write_all(&buffer[..n]).await?,
            }
        }
    }
}

/// A length and a body, as they are.
async fn message(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(usize::try_from(length).unwrap(), 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}
