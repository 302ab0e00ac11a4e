//! The chains, and appends that come too late: statements that a trigger stalls between their locks and their writes.

use posthaste::{EnqueueMessage, Partitions};
use sqlx::{Connection, PgConnection, PgPool};

use super::{Db, count, fresh};
use crate::{
    cases::in_modes,
    modes::{InMode, Mode},
    stage::{Memory, SOON, Step, assert_consistent, builder, builder_on, eventually, millis, settled},
};

in_modes! {
    [leased, transactional, batch]:
        g7_a_settle_that_stalls_while_its_partition_is_taken_over_and_the_chain_trimmed_changes_nothing;
}

/// Racing sequencers, held up by a lock on the table of segments and let go all at once, while the chain is trimmed.
#[tokio::test]
async fn ticks_that_race_sequence_each_message_once() {
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
        trim(&mut stall, "posthaste_tick", "id").await;
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

/// A gate in the middle of appends to a chain: the statement has read and locked the link that it builds on, and waits
/// before it writes its own.
struct Gate {
    key: i64,
    holder: PgConnection,
}

impl Gate {
    /// Stalls what `application` appends to `table`, until opened; but no lease that it takes: it would keep its partition locked all the
    /// time, where its handlers work in transactions.
    async fn close(db: &Db, table: &str, application: &str) -> Self {
        let key: i64 =
            sqlx::query_scalar("SELECT (random() * 1e9)::bigint").fetch_one(&db.pool).await.unwrap();
        let trigger = format!(
            "CREATE FUNCTION stall_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF current_setting('application_name') LIKE '{application}%' AND to_jsonb(NEW) ->> 'owner' IS NULL THEN
                     PERFORM pg_advisory_lock_shared({key}); PERFORM pg_advisory_unlock_shared({key});
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER stall BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION stall_{table}();"
        );
        let mut holder = PgConnection::connect_with(&db.pool.connect_options()).await.unwrap();
        sqlx::query("SELECT pg_advisory_lock($1)").bind(key).execute(&mut holder).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(trigger)).execute(&mut holder).await.unwrap();
        Self { key, holder }
    }

    async fn stalled(&self, pool: &PgPool) -> bool {
        let sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid::bigint = $1)";
        sqlx::query_scalar(sql).bind(self.key).fetch_one(pool).await.unwrap()
    }

    async fn open(mut self) {
        sqlx::query("SELECT pg_advisory_unlock($1)").bind(self.key).execute(&mut self.holder).await.unwrap();
        self.holder.close().await.unwrap();
    }
}

/// Trims a chain as vacuum does: oldest first, never the newest link, and giving up at a link that somebody builds on.
async fn trim(conn: &mut PgConnection, table: &str, number: &str) {
    let sql = format!(
        "DO $$ DECLARE n bigint; BEGIN
             LOOP
                 SELECT min({number}) INTO n FROM {table};
                 EXIT WHEN n = (SELECT max({number}) FROM {table});
                 PERFORM FROM {table} WHERE {number} = n FOR UPDATE NOWAIT;
                 DELETE FROM {table} WHERE {number} = n;
             END LOOP;
         EXCEPTION WHEN lock_not_available THEN NULL;
         END $$"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

async fn named(db: &Db, application: &str) -> PgPool {
    PgPool::connect_with((*db.pool.connect_options()).clone().application_name(application)).await.unwrap()
}

/// In a transaction, the settlement that stalls has the partition locked; it is taken over once its session is ended.
async fn g7_a_settle_that_stalls_while_its_partition_is_taken_over_and_the_chain_trimmed_changes_nothing(
    mode: Mode,
) {
    use posthaste::LeaseConfig;
    let db = fresh().await;
    let lease = LeaseConfig { duration: millis(2000), headroom: millis(500) };
    let (slow_pool, memory) = (named(&db, "slow").await, Memory::new());
    let (go, told) = tokio::sync::watch::channel(false);
    let slow = builder_on(slow_pool.clone())
        .queue("q", Partitions::of(1))
        .handled(mode, memory.scripted(move |_, _| Step::AckWhen(told.clone())))
        .lease(lease)
        .start()
        .await
        .unwrap();
    let messages: Vec<_> = (1..5).map(|n| EnqueueMessage::new(n.to_string())).collect();
    slow.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    memory.has(1).await;
    // Its settlement stalls in the middle; its lease runs out, and another process goes on.
    let gate = Gate::close(&db, "posthaste_cursor", "slow").await;
    go.send(true).unwrap();
    eventually("it stalls", async || gate.stalled(&db.pool).await).await;
    let before = settled(&db.pool).await;
    let (quick_pool, quick_memory) = (named(&db, "quick").await, Memory::new());
    let quick = builder_on(quick_pool.clone())
        .queue("q", Partitions::of(1))
        .handled(mode, quick_memory.handler())
        .lease(lease)
        .start()
        .await
        .unwrap();
    eventually("the other one goes on", async || settled(&db.pool).await > before).await;
    let newest = "SELECT max(epoch) FROM posthaste_cursor";
    for _ in 0..5 {
        let epoch = count(&db.pool, newest).await;
        quick.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("more")).await.unwrap();
        eventually("the chain grows", async || count(&db.pool, newest).await > epoch).await;
        trim(&mut db.pool.acquire().await.unwrap(), "posthaste_cursor", "epoch").await;
    }
    let epoch = count(&db.pool, newest).await;
    // Those before the gate was closed, and one in each round.
    let total = 4 + 5;
    eventually("all is settled", async || settled(&db.pool).await == total).await;
    gate.open().await;
    slow.stop().await;
    quick.stop().await;
    assert!(count(&db.pool, newest).await >= epoch);
    assert_eq!(settled(&db.pool).await, total);
    assert_consistent(&db.pool).await;
    // The slow one may take the partition again, and settle messages that are not the last: only a release stalls.
    let (seqs, slow_seqs) = (quick_memory.seqs(), memory.seqs());
    assert!(seqs.is_sorted_by(|a, b| a < b), "the one that took over saw a message twice: {seqs:?}");
    assert!(
        (1..=total).all(|seq| seqs.contains(&seq) || slow_seqs.contains(&seq)),
        "a message was settled that no handler saw: {seqs:?}, {slow_seqs:?}"
    );
    slow_pool.close().await;
    quick_pool.close().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

#[tokio::test]
async fn a_tick_that_stalls_while_others_tick_and_the_chain_is_trimmed_sequences_nothing_twice() {
    let db = fresh().await;
    let (slow_pool, memory) = (named(&db, "slow").await, Memory::new());
    let start = async |pool: PgPool| {
        let outbox = builder_on(pool).queue("q", Partitions::of(1)).leased(memory.handler());
        outbox.start().await.unwrap()
    };
    let slow = start(slow_pool.clone()).await;
    let gate = Gate::close(&db, "posthaste_tick", "slow").await;
    slow.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("0")).await.unwrap();
    eventually("its tick stalls", async || gate.stalled(&db.pool).await).await;
    // It holds the advisory lock, which only saves work; so the others tick without it, by hand.
    let by_hand = "WITH link AS (
            INSERT INTO posthaste_tick SELECT id + 1, pg_current_snapshot(), cluster, incoming FROM posthaste_tick
            ORDER BY id DESC LIMIT 1 RETURNING id)
        INSERT INTO posthaste_outgoing (partition_id, last_seq, ids)
        SELECT partition_id, (SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing) + 1, ARRAY[i.id]
        FROM link, posthaste_incoming i WHERE i.id NOT IN (SELECT unnest(ids) FROM posthaste_outgoing)";
    let vacuum = "WITH gone AS (DELETE FROM posthaste_outgoing WHERE last_seq < (SELECT max(last_seq) FROM posthaste_outgoing)
                  RETURNING ids) DELETE FROM posthaste_incoming WHERE id IN (SELECT unnest(ids) FROM gone)";
    for n in 1..=3 {
        sqlx::raw_sql(by_hand).execute(&db.pool).await.unwrap();
        trim(&mut db.pool.acquire().await.unwrap(), "posthaste_tick", "id").await;
        let insert = "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
                      SELECT id, 't', 'more' FROM posthaste_partition";
        sqlx::raw_sql(insert).execute(&db.pool).await.unwrap();
        // Nobody rings for a tick by hand, so it is found after a few seconds.
        memory.has_within(n, SOON).await;
        eventually("it is settled", async || settled(&db.pool).await == i64::try_from(n).unwrap()).await;
        sqlx::raw_sql(vacuum).execute(&db.pool).await.unwrap();
    }
    gate.open().await;
    memory.has(4).await;
    slow.stop().await;
    assert_eq!(memory.seqs(), [1, 2, 3, 4]);
    let mut ids = memory.ids();
    ids.dedup();
    assert_eq!(ids.len(), 4, "no message has two places");
    let segments = "SELECT count(*) FROM posthaste_outgoing WHERE last_seq < 3";
    assert_eq!(count(&db.pool, segments).await, 0, "nothing was sequenced behind everybody's back");
    slow_pool.close().await;
    db.remove().await;
}
