//! Whether LISTEN works from here.

use sqlx::{PgPool, Postgres, Transaction};

use crate::command::doctor::finding::{Examination, Finding};

pub const NOTIFICATIONS: Examination =
    Examination { code: "notifications", fine: "no pooler is in the way of notifications" };

/// How often to look: a busy pooler may by chance give everybody their own session a few times.
const ROUNDS: u32 = 5;

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
        let mut held: Transaction<'_, Postgres> = sqlx::Acquire::begin(&mut *other).await?;
        let theirs = session(&mut held).await?;
        let after = session(&mut mine).await?;
        held.rollback().await?;
        if before == theirs || before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session(conn: &mut sqlx::PgConnection) -> Result<i32, sqlx::Error> {
    use sqlx::Row;
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await?.try_get(0)
}
