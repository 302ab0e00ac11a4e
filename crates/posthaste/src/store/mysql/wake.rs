//! How processes hear of each other: a watcher that looks.

use sqlx::Row;
use tokio::time::Instant;

use super::{MySqlStore, SESSION, query};
use crate::{
    store::{Result, answer::answer},
    wake::Wake,
};

/// Looks again and again, on a connection of its own, whether there is anything new. 18 reads a second while idle, those of
/// the reconciler included.
pub(super) async fn listen(store: &MySqlStore, wake: &Wake) -> Result<()> {
    let mut conn = store.shared.connections.connect().await?;
    answer(sqlx::raw_sql(SESSION).execute(&mut conn)).await?;
    // What was said before we listened.
    wake.ask_for_everything();
    let timings = store.shared.timings.mysql_watcher;
    let (mut last_tick, mut changed) = (None, None::<Instant>);
    let mut reconciled = Instant::now();
    // A tick that comes right behind a look for partitions is owed one, soon.
    let mut owes_reconciliation = false;
    loop {
        let row = answer(query(&store.sql().news).fetch_one(&mut conn)).await?;
        let is_pending = row.try_get::<i64, _>("is_pending")? != 0;
        let tick: Option<i64> = row.try_get("tick")?;
        if is_pending {
            wake.enqueued([]);
        }
        let is_sequenced = tick != last_tick;
        last_tick = tick;
        if is_pending || is_sequenced {
            changed = Some(Instant::now());
        }
        owes_reconciliation |= is_sequenced;
        let rest = if owes_reconciliation { timings.reconcile_active } else { timings.reconcile_idle };
        if reconciled.elapsed() >= rest {
            wake.reconciler_bell().notify_one();
            reconciled = Instant::now();
            owes_reconciliation = false;
        }
        let is_alert = changed.is_some_and(|changed| changed.elapsed() < timings.active_for);
        tokio::time::sleep(if is_alert { timings.active } else { timings.idle }).await;
    }
}
