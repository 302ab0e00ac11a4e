//! How processes hear of each other: LISTEN and NOTIFY, where they work.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Row,
    postgres::{PgListener, PgPoolOptions},
};
use tokio::time::{MissedTickBehavior, timeout};
use uuid::Uuid;

use super::PostgresStore;
use crate::{
    store::{NewsChannel, Result, Ticket, answer::no_answer, connections::Connections},
    wake::Wake,
};

/// How long a notification may take in the self-test. On a direct connection it takes a millisecond.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Notifications are cut off at 8,000 bytes.
const PAYLOAD_LIMIT: usize = 7_900;

/// How often to look whether sessions are shared: a busy pooler may by chance give everybody their own a few times.
const PROBE_ROUNDS: u32 = 5;

/// Whether notifications arrive. Behind a pooler that shares sessions between transactions it must not even be tried: the
/// session that was told to listen would then be given to somebody else.
pub(super) async fn probe(store: &PostgresStore) -> Result<NewsChannel> {
    if store.is_pooled() {
        tracing::warn!("there is a pooler in between that shares sessions: polling instead of listening");
        return Ok(NewsChannel::Polled);
    }
    let channel = format!("posthaste_probe_{}", Uuid::new_v4().simple());
    let mut listener = listener(store).await?;
    listener.listen(&channel).await?;
    let mut other = store.shared.connections.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(format!("NOTIFY {channel}"))).execute(&mut other).await?;
    other.close().await.ok();
    if let Ok(heard) = timeout(PROBE_LIMIT, listener.try_recv()).await {
        return Ok(heard?.map_or(NewsChannel::Polled, |_| NewsChannel::Notified));
    }
    tracing::warn!("notifications do not arrive: polling instead");
    Ok(NewsChannel::Polled)
}

/// Whether two connections ever see the same session, told by a setting that means nothing to anybody else.
pub(super) async fn shares_sessions(connections: &Connections<Postgres>) -> Result<bool> {
    let (mut mine, mut other) = (connections.connect().await?, connections.connect().await?);
    let mut is_shared = false;
    let mut rounds = 0..PROBE_ROUNDS;
    while !is_shared && rounds.next().is_some() {
        let nonce = Uuid::new_v4().simple().to_string();
        sqlx::raw_sql(AssertSqlSafe(format!("SET posthaste.probe = '{nonce}'"))).execute(&mut mine).await?;
        // In a transaction it keeps the session that it was given, so that the first one cannot have it back.
        sqlx::raw_sql("BEGIN").execute(&mut other).await?;
        is_shared = probe_setting(&mut other).await?.as_ref() == Some(&nonce);
        if !is_shared {
            // There is another session, then: were there only one, this would wait for it for ever.
            is_shared = probe_setting(&mut mine).await? != Some(nonce);
        }
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await?;
    }
    mine.close().await.ok();
    other.close().await.ok();
    Ok(is_shared)
}

async fn probe_setting(conn: &mut PgConnection) -> Result<Option<String>> {
    let row = sqlx::raw_sql("SELECT current_setting('posthaste.probe', true)").fetch_one(conn).await?;
    Ok(row.try_get(0)?)
}

/// A listener on a connection of its own.
async fn listener(store: &PostgresStore) -> Result<PgListener> {
    // What the server has against us, if anything; the pool would only say that it had to wait.
    store.shared.connections.connect().await?.close().await.ok();
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
    notify(store, &payload).await
}

pub(super) async fn announce_released(store: &PostgresStore, partition_id: i32) -> Result<()> {
    if store.is_pooled() {
        return Ok(());
    }
    notify(store, &format!("sequenced {} {partition_id}", store.shared.process_id.simple())).await
}

/// By the simple protocol, and on a session that nothing is set in: it may be a pooler's, and others use it next. The
/// connection is kept for the next time, if the server answered.
async fn notify(store: &PostgresStore, payload: &str) -> Result<()> {
    let mut kept = store.shared.notifier.lock().await;
    let mut conn = match kept.take() {
        Some(conn) => conn,
        None => store.shared.connections.connect().await?,
    };
    let sql = AssertSqlSafe(format!("NOTIFY {}, '{payload}'", store.channel()));
    let sent = timeout(CONNECT_LIMIT, sqlx::raw_sql(sql).execute(&mut conn)).await;
    sent.map_err(|_| no_answer())??;
    *kept = Some(conn);
    Ok(())
}

pub(super) async fn listen(store: &PostgresStore, wake: &Wake) -> Result<()> {
    let mut listener = listener(store).await?;
    listener.listen(&store.channel()).await?;
    // At a steady beat, however much is said meanwhile: what was said before we listened, what was lost on the way, and
    // leases that ran out. At once for the first time.
    let mut beat = tokio::time::interval(store.shared.timings.beat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = listener.try_recv() => match heard? {
                Some(notification) => pass_on(store, notification.payload(), wake),
                None => return Ok(()),
            },
            _ = beat.tick() => {
                wake.ask_for_everything();
                // Silence may also mean that nobody is there any more.
                let alive = timeout(CONNECT_LIMIT, sqlx::raw_sql("SELECT 1").execute(&mut listener)).await;
                alive.map_err(|_| no_answer())??;
            }
        }
    }
}

fn pass_on(store: &PostgresStore, payload: &str, wake: &Wake) {
    let mut words = payload.split(' ');
    match words.next() {
        Some("sequenced") => {
            // Who says it has rung its own bells.
            if words.next() == Some(store.shared.process_id.simple().to_string().as_str()) {
                return;
            }
            match words.next() {
                Some("*") | None => wake.ask_for_everything(),
                Some(list) => {
                    list.split(',').filter_map(|id| id.parse().ok()).for_each(|id| wake.sequenced(id));
                }
            }
        }
        Some("enqueued") => wake.enqueued(words.filter_map(|ticket| ticket.parse().ok()).map(Ticket)),
        _ => tracing::warn!(bytes = payload.len(), "a notification that is not ours"),
    }
}
