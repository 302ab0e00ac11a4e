//! What an operator does with messages that no handler wants: looks at them, reprocesses them by hand, sends them back, and throws
//! the rest away.
//!
//! ```sh
//! cargo run -p posthaste --example dead_letters                                       # on an embedded SQLite file
//! cargo run -p posthaste --example dead_letters -- postgres://user@localhost/shop     # on a server: also mysql://…
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use posthaste::{
    Backend, DeadLetterFilter, DeadLetterMessage, DeadLetterScope, DeadLetterStatus, EnqueueMessage,
    LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxMessage, Partitions,
};
use sqlx::{MySqlPool, PgPool, Pool, SqlitePool};

type AnyError = Box<dyn std::error::Error>;

/// Sends mails, if the mail server is there; some addresses it does not like, ever.
struct SendMail {
    server_is_up: Arc<AtomicBool>,
}

impl LeasedMessageHandler for SendMail {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let address = String::from_utf8_lossy(&msg.payload);
        if !address.contains('@') {
            return MessageResult::Reject(format!("{address:?} is no address"));
        }
        if !self.server_is_up.load(Ordering::SeqCst) {
            return MessageResult::Reject("the mail server is down".to_owned());
        }
        println!("  sent to {address} (message {})", msg.id);
        MessageResult::Ok
    }
}

/// The dead letters of the mails.
fn mails() -> DeadLetterScope {
    DeadLetterScope::default().queue("mails")
}

async fn list<DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    what: &str,
) -> Result<Vec<DeadLetterMessage>, OutboxError> {
    println!("{what}:");
    let letters = outbox.dead_letter_list(pool, &mails().into()).await?;
    for letter in &letters {
        let again = letter.redelivered_as.map_or(String::new(), |id| format!(", sent back as message {id}"));
        println!("  {} {:9} {} tries: {}{again}", letter.id, letter.status, letter.attempts, letter.reason);
    }
    Ok(letters)
}

async fn run<DB: Backend>(pool: Pool<DB>) -> Result<(), AnyError> {
    let server_is_up = Arc::new(AtomicBool::new(false));
    let handle = Outbox::builder(pool.clone())
        .queue("mails", Partitions::of(2))
        .leased(SendMail { server_is_up: Arc::clone(&server_is_up) })
        .start()
        .await?;
    let outbox = handle.outbox();
    // What an earlier run may have left.
    while outbox.dead_letter_discard(&pool, &mails()).await? > 0 {}
    while outbox.dead_letter_cleanup(&pool, &mails()).await? > 0 {}

    for address in ["ada@example.org", "grace", "alan@example.org", "edsger", "barbara@example.org"] {
        let mail = EnqueueMessage::new(address).key(address).payload_type("mail");
        outbox.enqueue(&pool, "mails", mail).await?;
    }
    wait_for(&outbox, &pool, DeadLetterStatus::Pending, 5).await?;
    list(&outbox, &pool, "all mails were rejected").await?;

    // The mail server is back: what was only late goes back into the queue, in the order it had.
    server_is_up.store(true, Ordering::SeqCst);
    let late = mails().reason_contains("server is down");
    println!("the mail server is back");
    let sent = outbox.dead_letter_redeliver(&pool, &late).await?;
    assert_eq!(sent.len(), 3);

    // One of the others is claimed, so that nobody else works on it, and its mail sent by hand.
    let claims = outbox.dead_letter_replay(&pool, &mails().limit(1), Duration::from_secs(60)).await?;
    for claimed in &claims {
        let name = String::from_utf8_lossy(&claimed.message.payload);
        println!("  sent to {name}@example.org by hand");
    }
    outbox.dead_letter_resolve(&pool, &claims).await?;
    let stale = outbox.dead_letter_resolve(&pool, &claims).await;
    println!("to resolve it again: {}", stale.expect_err("a claim ends once"));

    // The last one is tried in vain, and thrown away.
    let claims = outbox.dead_letter_replay(&pool, &mails(), Duration::from_secs(60)).await?;
    outbox.dead_letter_reject(&pool, &claims, "nobody knows who that is").await?;
    list(&outbox, &pool, "one is left to decide on").await?;
    outbox.dead_letter_discard(&pool, &mails()).await?;

    let letters = list(&outbox, &pool, "all is decided").await?;
    let ended = |letter: &DeadLetterMessage| {
        matches!(letter.status, DeadLetterStatus::Resolved | DeadLetterStatus::Discarded)
    };
    let cleaned = outbox.dead_letter_cleanup(&pool, &mails()).await?;
    handle.stop().await;
    println!("{cleaned} dead letters are gone");
    if letters.iter().all(ended) && cleaned == 5 { Ok(()) } else { Err("some are left".into()) }
}

async fn wait_for<DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    status: DeadLetterStatus,
    count: u64,
) -> Result<(), AnyError> {
    let filter = DeadLetterFilter::from(mails()).status(status);
    for _ in 0..200 {
        if outbox.dead_letter_count(pool, &filter).await? == count {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err("the mails were not handled".into())
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let Some(url) = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok()) else {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("mails.db");
        return run(SqlitePool::connect(&format!("sqlite://{}?mode=rwc", file.display())).await?).await;
    };
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => run(PgPool::connect(&url).await?).await,
        "mysql" | "mariadb" => run(MySqlPool::connect(&url).await?).await,
        "sqlite" => run(SqlitePool::connect(&url).await?).await,
        other => Err(format!("{other:?} is no database of ours: use postgres:, mysql: or sqlite:").into()),
    }
}
