//! Whether LISTEN works from here.

use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};

use crate::command::doctor::finding::{Examination, Finding};

pub const NOTIFICATIONS: Examination =
    Examination { code: "notifications", fine: "no pooler is in the way of notifications" };

/// How often to look: a busy pooler may by chance give everybody their own session a few times.
const ROUNDS: u32 = 5;
/// How long a round may take. On direct connections it takes a moment; a pooler that has no other session left does not answer the
/// one connection before the transaction of the other is over.
const PATIENCE: Duration = Duration::from_secs(3);

/// The library finds out in the same way whether it can listen.
pub async fn notifications(pool: &PgPool) -> Result<Vec<Finding>, sqlx::Error> {
    if !shares_sessions(pool).await? {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::warning(
        "between us and the server is a pooler that shares sessions: LISTEN does not work, so that workers poll, and hear of messages \
         from other processes later",
        "give workers a direct URL, or a pooler in session mode; producers may stay behind it",
    )])
}

/// Whether two connections are ever given the same session of the server. Nothing is set there: it may be somebody else's next.
async fn shares_sessions(pool: &PgPool) -> Result<bool, sqlx::Error> {
    // They are ours, and closed in the end: with them goes whatever they wait for, or have open.
    let (mut mine, mut other) = (pool.acquire().await?.detach(), pool.acquire().await?.detach());
    for _ in 0..ROUNDS {
        let round = have_the_same_session(&mut mine, &mut other);
        if tokio::time::timeout(PATIENCE, round).await.unwrap_or(Ok(true))? {
            return Ok(true);
        }
    }
    mine.close().await?;
    other.close().await?;
    Ok(false)
}

async fn have_the_same_session(
    mine: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<bool, sqlx::Error> {
    let before = session(mine).await?;
    // In a transaction it keeps the session that it was given, so that the first one cannot have it back.
    let mut held = other.begin().await?;
    let theirs = session(&mut held).await?;
    let after = session(mine).await?;
    held.rollback().await?;
    Ok(before == theirs || before != after)
}

async fn session(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
    use sqlx::Row;
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await?.try_get(0)
}
