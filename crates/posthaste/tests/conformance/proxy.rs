//! A connection to the server that breaks at the worst moment: a proxy that knows a COMMIT when it sees one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use sqlx::Pool;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::JoinHandle,
};

use crate::dialect::{Dialect, Wire};

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
    wire: Wire,
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
    pub async fn before<DB: Dialect>(pool: &Pool<DB>, cut: Cut, every: i64) -> Self {
        let server = DB::server(&pool.connect_options());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            wire: DB::WIRE,
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

    /// A pool that connects through it.
    pub async fn pool<DB: Dialect>(&self, pool: &Pool<DB>) -> Pool<DB> {
        let options = (*pool.connect_options()).clone();
        Pool::connect_with(DB::by_way_of(options, self.address.port())).await.expect("it answers")
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

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    is_cut: &Notify,
) -> std::io::Result<()> {
    let mut is_first = true;
    loop {
        let request = match shared.wire {
            Wire::Postgres => postgres_request(&mut from, is_first).await?,
            Wire::Mysql => mysql_request(&mut from).await?,
            Wire::None => unreachable!("a file has no requests"),
        };
        is_first = false;
        shared.round_trips.fetch_add(usize::from(request.wants_answer), Ordering::SeqCst);
        let may_cut = request.says_commit && shared.cut != Cut::Never;
        if may_cut && shared.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            shared.left.store(shared.every, Ordering::SeqCst);
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            if shared.cut == Cut::BeforeCommit {
                return Ok(());
            }
            is_cut.notify_one();
        }
        to.write_all(&request.bytes).await?;
    }
}

/// A message of a client, which is whole.
struct Request {
    bytes: Vec<u8>,
    /// The client now waits for the server.
    wants_answer: bool,
    /// `COMMIT` alone, as a library sends it.
    says_commit: bool,
}

/// A kind, a length, a body. Only the first has no kind.
async fn postgres_request(from: &mut OwnedReadHalf, is_first: bool) -> std::io::Result<Request> {
    let mut bytes = Vec::new();
    if !is_first {
        bytes.push(from.read_u8().await?);
    }
    let length = from.read_u32().await?;
    bytes.extend(length.to_be_bytes());
    let body = bytes.len();
    bytes.resize(body + usize::try_from(length).unwrap() - 4, 0);
    from.read_exact(&mut bytes[body..]).await?;
    let kind = if is_first { 0 } else { bytes[0] };
    // A simple query, or Sync.
    let wants_answer = matches!(kind, b'Q' | b'S');
    // Simple queries and Parse.
    let says_commit = matches!(kind, b'Q' | b'P') && bytes.windows(7).any(|text| text == b"COMMIT\0");
    Ok(Request { bytes, wants_answer, says_commit })
}

/// Three bytes of length, a number, a body: the first of a command has number 0, and begins with what is to be done.
async fn mysql_request(from: &mut OwnedReadHalf) -> std::io::Result<Request> {
    let length = from.read_u32_le().await?;
    let mut bytes = length.to_le_bytes().to_vec();
    let number = bytes[3];
    bytes.resize(4 + usize::try_from(length & 0x00ff_ffff).unwrap(), 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(Request { wants_answer: number == 0, says_commit: number == 0 && &bytes[4..] == b"\x03COMMIT", bytes })
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
