//! G12 and the chains: sessions killed, and appends that come too late.

use posthaste::{EnqueueMessage, Partitions};
use sqlx::PgPool;
use tokio::time::Instant;

use super::stage::{Memory, assert_consistent, builder, count, eventually, fresh, millis, secs, settled};

/// Kills every session of the workers, whatever it is doing.
async fn kill_workers(pool: &PgPool) -> i64 {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE '%posthaste'";
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("they are killed")
}

#[tokio::test]
async fn g12_killed_sessions_of_every_kind_delay_delivery_by_less_than_5_s_and_lose_nothing() {
    let (db, memory) = (fresh().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut sent = 0;
    for round in 0..10_u32 {
        assert!(kill_workers(&db.pool).await > 0, "there are workers to kill");
        let killed = Instant::now();
        for n in 0..20 {
            outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x").partition((round + n) % 4)).await.unwrap();
            sent += 1;
            if n == 10 {
                // In the middle of it all.
                kill_workers(&db.pool).await;
            }
        }
        eventually("all is settled", async || settled(&db.pool).await == sent).await;
        assert!(killed.elapsed() < secs(5), "{:?}", killed.elapsed());
    }
    handle.stop().await;
    let mut ids = memory.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), usize::try_from(sent).unwrap(), "each at least once");
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A tick that was prepared long ago, when the chain has been trimmed behind it: its number is free again, and yet it
/// must not get in. The statement reads and locks the link it builds on, so it builds on the newest there is.
#[tokio::test]
async fn a_stalled_tick_does_not_get_in_after_the_chain_was_trimmed() {
    let (db, memory) = (fresh().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    for n in 0..20_usize {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        memory.has(n + 1).await;
        // Trim both chains to their newest links while everything runs.
        for trim in [
            "DELETE FROM posthaste_tick WHERE id < (SELECT max(id) FROM posthaste_tick)",
            "DELETE FROM posthaste_cursor c WHERE epoch < (SELECT max(epoch) FROM posthaste_cursor n
             WHERE n.partition_id = c.partition_id)",
        ] {
            sqlx::raw_sql(trim).execute(&db.pool).await.unwrap();
        }
    }
    handle.stop().await;
    assert_eq!(
        memory.all().iter().map(|seen| seen.message.seq).collect::<Vec<_>>(),
        (1..=20).collect::<Vec<_>>()
    );
    assert_eq!(count(&db.pool, "SELECT max(last_seq) FROM posthaste_outgoing").await, 20);
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Racing sequencers, held up in the middle by a lock on the table of segments, while the chain is trimmed.
#[tokio::test]
async fn ticks_that_race_and_stall_sequence_each_message_once() {
    let (db, memory) = (fresh().await, Memory::new());
    let mut handles = Vec::new();
    for _ in 0..3 {
        let handle =
            builder(&db).queue("q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
        handles.push(handle);
    }
    for round in 0..15_u32 {
        let mut stall = db.pool.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE posthaste_outgoing IN SHARE MODE").execute(&mut *stall).await.unwrap();
        for handle in &handles {
            handle
                .outbox()
                .enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(round % 2))
                .await
                .unwrap();
        }
        tokio::time::sleep(millis(20)).await;
        sqlx::raw_sql("DELETE FROM posthaste_tick WHERE id < (SELECT max(id) FROM posthaste_tick)")
            .execute(&mut *stall)
            .await
            .unwrap();
        stall.commit().await.unwrap();
        eventually("the round is settled", async || settled(&db.pool).await == i64::from(round + 1) * 3)
            .await;
    }
    for handle in handles {
        handle.stop().await;
    }
    let mut ids = memory.ids();
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!((all, ids.len()), (45, 45));
    assert_consistent(&db.pool).await;
    db.remove().await;
}
