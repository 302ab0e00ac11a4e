//! Whether LISTEN works from here.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use crate::command::doctor::finding::{Examination, Finding};

pub const NOTIFICATIONS: Examination =
    Examination { code: "notifications", fine: "no pooler is in the way of notifications" };

/// How often to look: a busy pooler may by chance give everybody their own session a few times.
const ROUNDS: u32 = 5;
/// How long an answer may take while somebody else has a transaction open. A direct connection answers in a moment; a pooler that
/// has no other session left does not answer before that transaction is over.
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
    let (mut mine, mut other) = (pool.acquire().await?, pool.acquire().await?);
    for _ in 0..ROUNDS {
        let before = session(&mut mine).await?;
        // In a transaction it keeps the session that it was given, so that the first one cannot have it back.
        sqlx::raw_sql("BEGIN").execute(&mut *other).await?;
        let theirs = session(&mut other).await;
        let after = tokio::time::timeout(PATIENCE, session(&mut mine)).await;
        // Whatever was answered: whoever waits for that session is to have it.
        sqlx::raw_sql("ROLLBACK").execute(&mut *other).await?;
        let Ok(after) = after else {
            // It still waits for an answer to a question that nobody asks any more.
            mine.detach();
            return Ok(true);
        };
        let (theirs, after) = (theirs?, after?);
        if before == theirs || before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
    use sqlx::Row;
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await?.try_get(0)
}
