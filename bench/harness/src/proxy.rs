//! A door before the server that counts round trips: how often a client sends something after it was answered.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const BUFFER: usize = 64 * 1024;

/// A proxy on loopback; it ends with the program.
pub struct Proxy {
    pub url: String,
    round_trips: Arc<AtomicU64>,
}

impl Proxy {
    /// Before the server of this URL.
    pub async fn before(url: &str) -> Result<Self> {
        let address = host_and_port(url).context("a URL without host and port")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = url.replacen(&address, &listener.local_addr()?.to_string(), 1);
        let round_trips = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&round_trips);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, address.clone(), Arc::clone(&counted)));
            }
        });
        Ok(Self { url, round_trips })
    }

    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }
}

async fn pass(client: TcpStream, server: String, counted: Arc<AtomicU64>) -> Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let answered = Arc::new(AtomicBool::new(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asked = Arc::clone(&answered);
    let asking = copy(from_client, to_server, move || {
        if asked.swap(false, Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let answering = copy(from_server, to_client, move || answered.store(true, Ordering::Relaxed));
    // When one side is gone, so is the other.
    tokio::select! { done = asking => done, done = answering => done }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    seen: impl Fn(),
) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        seen();
        to.write_all(&buffer[..read]).await?;
    }
}

fn host_and_port(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    Some(authority.rsplit_once('@').map_or(authority, |(_, address)| address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_and_its_answer_are_one_round_trip_however_they_are_cut() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = server.local_addr().expect("bound");
        tokio::spawn(async move {
            let (mut peer, _) = server.accept().await.expect("a client");
            let mut question = [0; 4];
            while peer.read_exact(&mut question).await.is_ok() {
                for half in question.chunks(2) {
                    peer.write_all(half).await.expect("the client reads");
                }
            }
        });
        let proxy = Proxy::before(&format!("postgres://me@{address}/db")).await.expect("a free port");
        let mut client =
            TcpStream::connect(host_and_port(&proxy.url).expect("it has one")).await.expect("it listens");
        for _ in 0..3 {
            for half in [b"ab", b"cd"] {
                client.write_all(half).await.expect("it reads");
            }
            let mut answer = [0; 4];
            client.read_exact(&mut answer).await.expect("it answers");
            assert_eq!(&answer, b"abcd");
        }
        assert_eq!(proxy.round_trips(), 3);
    }
}
