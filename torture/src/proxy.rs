//! Stands between the processes of a run and their server, and does to their connections what networks do: cuts them before the server
//! has seen a COMMIT, or when it has answered and nobody has heard; delays, slices, swallows and resets. On PostgreSQL, a statement
//! outside any transaction is its own COMMIT.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::{Notify, watch},
};

use crate::clock::now;

mod postgres;

/// How clients and servers talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Postgres,
    Mysql,
}

/// What the network does to everybody, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weather {
    Fair,
    /// Everything takes longer by so many milliseconds, each way.
    Delays(u64),
    /// Everything comes in small pieces.
    Slices,
    /// Nothing arrives.
    Swallows,
}

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// The server never sees the COMMIT.
    Before,
    /// The server commits, and its answer is lost.
    After,
}

/// What all connections know.
struct Shared {
    wire: Wire,
    server: watch::Sender<SocketAddr>,
    weather: watch::Sender<Weather>,
    /// Changes when all connections are to be reset.
    resets: watch::Sender<u32>,
    before: AtomicU32,
    after: AtomicU32,
    /// When connections were cut.
    cuts: Mutex<Vec<u64>>,
}

/// When the server has said nothing for so long, it has said all.
const SILENCE: Duration = Duration::from_millis(100);

/// What is known of one connection.
#[derive(Default)]
struct Session {
    is_cut: Notify,
    /// PostgreSQL: it is in a transaction.
    is_in_transaction: AtomicBool,
}

impl Session {
    fn is_idle(&self) -> bool {
        !self.is_in_transaction.load(Ordering::SeqCst)
    }

    /// PostgreSQL ends every answer with how the session is.
    fn note_answer(&self, answer: &[u8]) {
        if let [.., b'Z', 0, 0, 0, 5, state] = answer {
            self.is_in_transaction.store(*state != b'I', Ordering::SeqCst);
        }
    }
}

pub struct Proxy {
    shared: Arc<Shared>,
    pub address: SocketAddr,
}

impl Proxy {
    pub async fn before(wire: Wire, server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            wire,
            server: watch::Sender::new(server),
            weather: watch::Sender::new(Weather::Fair),
            resets: watch::Sender::new(0),
            before: AtomicU32::new(0),
            after: AtomicU32::new(0),
            cuts: Mutex::default(),
        });
        let known = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let known = Arc::clone(&known);
                tokio::spawn(async move { known.serve(client).await });
            }
        });
        Ok(Self { shared, address })
    }

    /// Cuts the next connections that say COMMIT, so many of them.
    pub fn cut(&self, cut: Cut, count: u32) {
        self.shared.counter(cut).fetch_add(count, Ordering::SeqCst);
    }

    pub fn cut_no_more(&self) {
        self.shared.before.store(0, Ordering::SeqCst);
        self.shared.after.store(0, Ordering::SeqCst);
    }

    pub fn has_cuts_left(&self) -> bool {
        self.shared.before.load(Ordering::SeqCst) + self.shared.after.load(Ordering::SeqCst) > 0
    }

    /// When connections were cut since this was last asked.
    pub fn take_cuts(&self) -> Vec<u64> {
        std::mem::take(&mut self.shared.cuts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn turn(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }

    /// From now on there is another server behind it.
    pub fn lead_to(&self, server: SocketAddr) {
        self.shared.server.send_replace(server);
    }

    /// Resets all connections that there are.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }
}

impl Shared {
    const fn counter(&self, cut: Cut) -> &AtomicU32 {
        match cut {
            Cut::Before => &self.before,
            Cut::After => &self.after,
        }
    }

    /// Whether this COMMIT is one that is cut.
    fn takes(&self, cut: Cut) -> bool {
        // Whoever sees that none is left finds all of them written down.
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self
            .counter(cut)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        if taken {
            cuts.push(now());
        }
        taken
    }

    /// Forwards until either side ends or the connection is cut; then both are closed.
    async fn serve(&self, client: TcpStream) {
        let mut resets = self.resets.subscribe();
        let server = *self.server.borrow();
        let Ok(server) = TcpStream::connect(server).await else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).ok();
            // Closing it without a word is what a reset is.
            stream.set_zero_linger().ok();
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let session = Session::default();
        tokio::select! {
            _ = self.requests(from_client, to_server, &session) => {}
            _ = self.answers(from_server, to_client, &session) => {}
            _ = resets.changed() => {}
        }
    }

    async fn requests(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: OwnedWriteHalf,
        session: &Session,
    ) -> std::io::Result<()> {
        let mut client = postgres::Client::default();
        loop {
            let (bytes, commits) = match self.wire {
                Wire::Postgres => client.request(&mut from, session.is_idle()).await?,
                Wire::Mysql => mysql_request(&mut from).await?,
            };
            if commits && self.takes(Cut::Before) {
                return Ok(());
            }
            if commits && self.takes(Cut::After) {
                session.is_cut.notify_one();
            }
            self.forward(&mut to, &bytes).await?;
        }
    }

    async fn answers(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: OwnedWriteHalf,
        session: &Session,
    ) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            tokio::select! {
                biased;
                () = session.is_cut.notified() => {
                    // The answer to the commit is the last of it, whatever comes before.
                    while tokio::time::timeout(SILENCE, from.read(&mut buffer)).await.is_ok_and(|read| read.is_ok_and(|n| n > 0)) {}
                    return Ok(());
                }
                read = from.read(&mut buffer) => match read? {
                    0 => return Ok(()),
                    n => {
                        session.note_answer(&buffer[..n]);
                        self.forward(&mut to, &buffer[..n]).await?;
                    }
                }
            }
        }
    }

    /// Through whatever the weather is.
    async fn forward(&self, to: &mut OwnedWriteHalf, bytes: &[u8]) -> std::io::Result<()> {
        let mut weather = self.weather.subscribe();
        let now = *weather.borrow_and_update();
        match now {
            Weather::Fair => to.write_all(bytes).await,
            Weather::Delays(ms) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                to.write_all(bytes).await
            }
            Weather::Slices => {
                let size = (bytes.len() / 20).max(1);
                for slice in bytes.chunks(size) {
                    to.write_all(slice).await?;
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
            Weather::Swallows => {
                // What was swallowed is gone, and what comes after it would make no sense.
                weather.wait_for(|weather| *weather != Weather::Swallows).await.ok();
                Err(std::io::ErrorKind::ConnectionReset.into())
            }
        }
    }
}

/// Three bytes of length, a number, a body: the first of a command has number 0, and begins with what is to be done.
async fn mysql_request(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(Vec<u8>, bool)> {
    let length = from.read_u32_le().await?;
    let mut bytes = length.to_le_bytes().to_vec();
    let is_command = bytes[3] == 0;
    bytes.resize(4 + usize::try_from(length & 0x00ff_ffff).unwrap_or_default(), 0);
    from.read_exact(&mut bytes[4..]).await?;
    let is_query = is_command && bytes.get(4) == Some(&3);
    // Alone; or as one statement of several.
    let says_commit =
        is_query && bytes[5..].split(|byte| *byte == b';').any(|text| text.trim_ascii() == b"COMMIT");
    Ok((bytes, says_commit))
}
