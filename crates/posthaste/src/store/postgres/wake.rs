//! How processes hear of each other: LISTEN and NOTIFY, where they work.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection,
    postgres::{PgListener, PgPoolOptions},
};
use tokio::time::timeout;
use uuid::Uuid;

use super::{PostgresStore, query};
use crate::{
    limits::LONGEST_SILENCE,
    store::{NewsChannel, Result, Ticket},
    wake::Wake,
};

/// How long a notification may take in the self-test. On a direct connection it takes a millisecond.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Notifications are cut off at 8,000 bytes.
const PAYLOAD_LIMIT: usize = 7_900;

/// Listens on one connection and notifies on another. Behind a pooler that shares sessions between transactions, the
/// notification goes to nobody.
pub(super) async fn probe(store: &PostgresStore) -> Result<NewsChannel> {
    let channel = format!("posthaste_probe_{}", Uuid::new_v4().simple());
    let mut listener = listener(store).await?;
    listener.listen(&channel).await?;
    let mut other = store.shared.connections.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(format!("NOTIFY {channel}"))).execute(&mut other).await?;
    other.close().await.ok();
    let heard = timeout(PROBE_LIMIT, listener.try_recv()).await;
    // Whoever gets this session next, if there is a pooler, should not be bothered.
    listener.unlisten_all().await.ok();
    if let Ok(heard) = heard {
        return Ok(heard?.map_or(NewsChannel::Polled, |_| NewsChannel::Notified));
    }
    tracing::warn!("notifications do not arrive, so there is a pooler in between: polling instead");
    Ok(NewsChannel::Polled)
}

/// A listener on a connection of its own.
async fn listener(store: &PostgresStore) -> Result<PgListener> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_LIMIT)
        .connect_with(store.shared.connections.options())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    Ok(listener)
}

pub(super) async fn announce_enqueued(store: &PostgresStore, tickets: &[Ticket]) -> Result<()> {
    let mut payload =
        tickets.iter().fold(String::from("enqueued"), |text, ticket| format!("{text} {}", ticket.0));
    if payload.len() > PAYLOAD_LIMIT {
        payload = "enqueued".to_owned();
    }
    let sql = "SELECT pg_notify($1, $2)".into();
    store.fetch(query(&sql).bind(store.channel()).bind(payload)).await.map(drop)
}

pub(super) async fn listen(store: &PostgresStore, wake: &Wake) -> Result<()> {
    let mut listener = listener(store).await?;
    listener.listen(&store.channel()).await?;
    // What was said before we listened.
    wake.ask_for_everything();
    loop {
        match timeout(LONGEST_SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => pass_on(notification.payload(), wake),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error.into()),
            // It may be that nothing happens, or that nobody is there any more.
            Err(_) => wake.ask_for_everything(),
        }
    }
}

fn pass_on(payload: &str, wake: &Wake) {
    let mut words = payload.split(' ');
    match words.next() {
        Some("sequenced") => match words.next() {
            Some("*") | None => wake.ask_for_everything(),
            Some(list) => list.split(',').filter_map(|id| id.parse().ok()).for_each(|id| wake.sequenced(id)),
        },
        Some("enqueued") => wake.enqueued(words.filter_map(|ticket| ticket.parse().ok()).map(Ticket)),
        _ => tracing::warn!(payload, "a notification that is not ours"),
    }
}
