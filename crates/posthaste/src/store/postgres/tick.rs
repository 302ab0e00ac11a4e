//! What gives messages their order.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Row};

use super::{PostgresStore, query};
use crate::{
    OutboxError,
    store::{Horizon, Result, Tick},
};

/// The most rows that one tick takes, so that it stays short however much has gathered. A transaction is not divided.
const PART: i64 = 50_000;
/// How long a tick may take: the largest part is one transaction of a producer, however many messages it has.
const TICK_LIMIT: Duration = Duration::from_secs(600);
/// `program_limit_exceeded`, as said at the commit of a notifying transaction.
const NOTIFY_QUEUE_FULL: &str = "54000";

pub(super) async fn tick(store: &PostgresStore, announce: bool) -> Result<Tick> {
    match tick_once(store, announce).await {
        // Nobody reads the notifications, and there is no room for more: order is more important than news.
        Err(error) if announce && error.code().as_deref() == Some(NOTIFY_QUEUE_FULL) => {
            tick_once(store, false).await
        }
        tick => tick,
    }
}

async fn tick_once(store: &PostgresStore, announce: bool) -> Result<Tick> {
    let channel = announce.then(|| store.channel());
    let statement = query(&store.sql().tick)
        .bind(store.lock_key())
        .bind(PART)
        .bind(channel)
        .bind(store.shared.process_id.simple().to_string());
    let rows = store.fetch_within(TICK_LIMIT, statement).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let (is_mine, found): (bool, i64) = (row.try_get("mine")?, row.try_get("taken")?);
    let (needs_recovery, appended): (bool, bool) = (row.try_get("is_raised")?, row.try_get("appended")?);
    Ok(Tick {
        taken: if appended { u64::try_from(found).unwrap_or_default() } else { 0 },
        partitions: row.try_get("partitions")?,
        has_more: appended && row.try_get("is_full")?,
        is_busy: !is_mine || (found > 0 && !appended && !needs_recovery),
        needs_recovery,
        horizon: horizon(row.try_get("now")?)?,
    })
}

/// From the text of a snapshot, `xmin:xmax:xip,xip,…`.
fn horizon(snapshot: &str) -> Result<Horizon> {
    let wrong = || sqlx::Error::Decode(format!("{snapshot:?} is not a snapshot").into());
    let mut parts = snapshot.split(':').skip(1);
    let next = parts.next().and_then(|xmax| xmax.parse().ok()).ok_or_else(wrong)?;
    let list = parts.next().ok_or_else(wrong)?;
    let open = list.split(',').filter(|xid| !xid.is_empty()).map(str::parse).collect::<Result<_, _>>();
    Ok(Horizon::Snapshot { next, open: open.map_err(|_| wrong())? })
}

pub(super) async fn recover(store: &PostgresStore) -> Result<u64> {
    let mut conn = store.connection().await?;
    let result = async {
        let mut tx = conn.begin().await?;
        // Producers queue behind a lock that waits: not for long, then another try.
        sqlx::raw_sql("SET LOCAL lock_timeout = '1s'").execute(&mut *tx).await?;
        // The statement behind this one has a snapshot that is younger than the lock: nobody writes meanwhile.
        let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", store.shared.incoming);
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await?;
        // Rare, and of any size: here the planner may do what it thinks best.
        sqlx::raw_sql("SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on")
            .execute(&mut *tx)
            .await?;
        let durable = "SELECT set_config('synchronous_commit', 'on', true) \
                       WHERE current_setting('synchronous_commit') IN ('off', 'local')";
        sqlx::raw_sql(durable).execute(&mut *tx).await?;
        let recovered: i64 =
            query(&store.sql().recover).persistent(false).fetch_one(&mut *tx).await?.try_get(0)?;
        tx.commit().await?;
        Ok::<_, OutboxError>(u64::try_from(recovered).unwrap_or_default())
    }
    .await;
    conn.keep_if_usable(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Ticket;

    #[test]
    fn a_horizon_is_read_from_a_snapshot() {
        let horizon = horizon("10:20:10,14,15").unwrap();
        assert_eq!(horizon, Horizon::Snapshot { next: 20, open: vec![10, 14, 15] });
        let passed: Vec<_> = (8..22).filter(|ticket| horizon.has_passed(Ticket(*ticket))).collect();
        assert_eq!(passed, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
        assert_eq!(super::horizon("3:3:").unwrap(), Horizon::Snapshot { next: 3, open: vec![] });
        for wrong in ["", "3", "3:x:", "3:3", "3:3:y"] {
            assert!(super::horizon(wrong).is_err(), "{wrong:?}");
        }
    }
}
