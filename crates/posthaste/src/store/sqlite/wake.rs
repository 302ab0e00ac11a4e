//! How processes hear of each other: SQLite counts the changes that others have committed, and a connection that only looks at
//! that count finds out.

use sqlx::{Row, SqliteConnection};
use tokio::time::Instant;

use super::{SqliteStore, busy::patiently, tick::has_news};
use crate::{store::Result, wake::Wake};

/// Looks at the count of changes, on a connection that is in no transaction and writes nothing. Our own workers change it too,
/// but only if there is something to do: what follows from a change only reads, and so comes to rest.
pub(super) async fn listen(store: &SqliteStore, wake: &Wake) -> Result<()> {
    let mut conn = patiently!(store.shared.readers.connect())?;
    let (beat, timings) = (store.shared.timings.beat, store.shared.timings.sqlite_watcher);
    let mut seen = None;
    let (mut changed_at, mut asked_at) = (Instant::now(), None);
    let mut owes_reconciliation = false;
    // At a steady beat, whatever happens: what was lost on the way, and leases that ran out. At once for the first time.
    let mut beat_at = Instant::now();
    loop {
        let now = Instant::now();
        if now >= beat_at {
            beat_at = now + beat;
            wake.ask_for_everything();
        }
        // First the count, then what is there: what is committed in between is seen, or counted the next time.
        let version = patiently!(changes(&mut conn))?;
        if seen.replace(version) != Some(version) {
            changed_at = now;
            owes_reconciliation = true;
            if patiently!(has_news(store, &mut conn))? {
                wake.committed();
            }
        }
        // Not for each change: mostly it is our own processors who change the database.
        if owes_reconciliation
            && asked_at.is_none_or(|asked: Instant| asked.elapsed() >= timings.reconcile_active)
        {
            owes_reconciliation = false;
            asked_at = Some(now);
            wake.reconciler_bell().notify_one();
        }
        let pause = if changed_at.elapsed() < timings.active_for { timings.active } else { timings.idle };
        tokio::time::sleep(pause).await;
    }
}

async fn changes(conn: &mut SqliteConnection) -> Result<i64> {
    Ok(sqlx::raw_sql("PRAGMA main.data_version").fetch_one(conn).await?.try_get(0)?)
}
