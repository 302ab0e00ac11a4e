//! G1, G2, G4, G6, G9, G11: what is committed is delivered, once, as it was, and nothing else.

use std::{collections::HashSet, time::Duration};

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use tokio::time::Instant;

use super::{
    modes::{InMode, Mode, in_modes},
    stage::{Memory, assert_consistent, builder, count, fresh, millis, secs, settled},
};

in_modes! {
    [leased, transactional, batch]:
        g1_nothing_lost_and_g4_no_duplicates_without_faults,
        g2_no_phantom_is_sequenced_delivered_or_buried,
        g9_a_message_never_reaches_another_queues_handler,
        serializable_as_the_default_isolation_changes_nothing;
    [leased, transactional]:
        g2_a_prepared_transaction_is_delivered_when_it_commits_and_not_before,
        g11_a_transaction_that_stays_open_delays_only_its_own_messages,
        g11_eight_producers_with_overlapping_transactions_are_delivered_within_a_second;
    [leased, batch]:
        a_hundred_thousand_messages_in_one_transaction_arrive_in_order;
}

async fn g1_nothing_lost_and_g4_no_duplicates_without_faults(mode: Mode) {
    const PRODUCERS: u32 = 8;
    const TRANSACTIONS: u32 = 50;
    let db = fresh().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (outbox, pool) = (handle.outbox(), db.pool.clone());
            tokio::spawn(async move {
                for n in 0..TRANSACTIONS {
                    let mut tx = pool.begin().await.unwrap();
                    let messages: Vec<_> =
                        (0..5).map(|m| EnqueueMessage::new("x").partition((n + m) % 4)).collect();
                    let ids = outbox.enqueue_batch(&mut tx, "q", &messages).await.unwrap();
                    for id in ids {
                        let sql = "INSERT INTO ledger (id, producer, n) VALUES ($1, $2, $3)";
                        let ledger =
                            sqlx::query(sql).bind(id.0).bind(producer.cast_signed()).bind(n.cast_signed());
                        ledger.execute(&mut *tx).await.unwrap();
                    }
                    // G2: a third of them change their minds.
                    if n % 3 == 2 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    let committed: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM ledger ORDER BY id").fetch_all(&db.pool).await.unwrap();
    memory.has(committed.len()).await;
    handle.stop().await;
    let mut delivered = memory.ids();
    delivered.sort_unstable();
    assert_eq!(delivered, committed, "each once, and nothing that was rolled back");
    assert_eq!(settled(&db.pool).await, i64::try_from(committed.len()).unwrap());
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g2_no_phantom_is_sequenced_delivered_or_buried(mode: Mode) {
    let db = fresh().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    for _ in 0..20 {
        let mut tx = db.pool.begin().await.unwrap();
        handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("phantom")).await.unwrap();
        tx.rollback().await.unwrap();
    }
    let mut tx = db.pool.begin().await.unwrap();
    sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
    handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("phantom")).await.unwrap();
    sqlx::raw_sql("ROLLBACK TO s").execute(&mut *tx).await.unwrap();
    handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("real")).await.unwrap();
    tx.commit().await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["real"]);
    assert_eq!(memory.all()[0].message.seq, 1, "a seq is not spent on what was rolled back");
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g2_a_prepared_transaction_is_delivered_when_it_commits_and_not_before(mode: Mode) {
    let db = fresh().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    let name = format!("prepared_{}_{}", mode.module(), std::process::id());
    let sql = |verb: &str| sqlx::AssertSqlSafe(format!("{verb} '{name}'"));
    let mut conn = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    handle.outbox().enqueue(&mut conn, "q", EnqueueMessage::new("two-phase")).await.unwrap();
    sqlx::raw_sql(sql("PREPARE TRANSACTION")).execute(&mut *conn).await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("later")).await.unwrap();
    memory.has(1).await;
    assert_eq!(memory.payloads(), ["later"]);
    sqlx::raw_sql(sql("COMMIT PREPARED")).execute(&mut *conn).await.unwrap();
    memory.has(2).await;
    assert_eq!(memory.payloads(), ["later", "two-phase"]);
    handle.stop().await;
    drop(conn);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g9_a_message_never_reaches_another_queues_handler(mode: Mode) {
    let names = ["orders", "Orders", "ORDERS", "a.b", "a_b", "a-b", "q", &"x".repeat(128), &"X".repeat(128)];
    let db = fresh().await;
    let memories: Vec<_> = names.iter().map(|_| Memory::new()).collect();
    let mut outbox = builder(&db);
    for (name, memory) in names.iter().zip(&memories) {
        outbox = outbox.queue(name, Partitions::of(2)).handled(mode, memory.handler()).outbox();
    }
    let handle = outbox.start().await.unwrap();
    for round in 0..10 {
        for name in names {
            handle
                .outbox()
                .enqueue(&db.pool, name, EnqueueMessage::new(name).partition(round % 2))
                .await
                .unwrap();
        }
    }
    for (name, memory) in names.iter().zip(&memories) {
        memory.has(10).await;
        assert!(
            memory
                .all()
                .iter()
                .all(|seen| &*seen.message.queue == *name && seen.message.payload == name.as_bytes())
        );
    }
    handle.stop().await;
    assert!(memories.iter().all(|memory| memory.all().len() == 10));
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g11_a_transaction_that_stays_open_delays_only_its_own_messages(mode: Mode) {
    let db = fresh().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut open = db.pool.begin().await.unwrap();
    outbox.enqueue(&mut open, "q", EnqueueMessage::new("slow")).await.unwrap();
    let began = Instant::now();
    let mut n = 0;
    while began.elapsed() < secs(30) {
        n += 1;
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new(format!("quick {n}"))).await.unwrap();
        memory.has_within(n, secs(1)).await;
        tokio::time::sleep(millis(100)).await;
    }
    open.commit().await.unwrap();
    let committed = Instant::now();
    memory.has_within(n + 1, millis(1000)).await;
    assert_eq!(memory.payloads()[n], "slow");
    assert!(committed.elapsed() < millis(1000));
    handle.stop().await;
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// In the default profile, and in the one for latency.
async fn g11_eight_producers_with_overlapping_transactions_are_delivered_within_a_second(mode: Mode) {
    for profile in [OutboxProfile::default(), OutboxProfile::low_latency()] {
        let db = fresh().await;
        let memory = Memory::new();
        let outbox = Outbox::builder(db.pool.clone()).profile(profile).grace(secs(5));
        let handle =
            outbox.queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
        let producers: Vec<_> = (0..8)
            .map(|_| {
                let (outbox, pool) = (handle.outbox(), db.pool.clone());
                tokio::spawn(async move {
                    let mut commits = Vec::new();
                    let began = Instant::now();
                    while began.elapsed() < secs(5) {
                        let mut tx = pool.begin().await.unwrap();
                        let id = outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
                        tokio::time::sleep(millis(50)).await;
                        tx.commit().await.unwrap();
                        commits.push((id.0, Instant::now()));
                    }
                    commits
                })
            })
            .collect();
        let mut commits = Vec::new();
        for producer in producers {
            commits.extend(producer.await.unwrap());
        }
        memory.has(commits.len()).await;
        handle.stop().await;
        let seen: std::collections::HashMap<_, _> =
            memory.all().iter().map(|seen| (seen.message.id.0, seen.at)).collect();
        let mut delays: Vec<_> =
            commits.iter().map(|(id, at)| seen[id].saturating_duration_since(*at)).collect();
        delays.sort_unstable();
        let p99 = delays[delays.len() * 99 / 100];
        assert!(p99 < secs(1), "p99 {p99:?}, worst {:?}", delays.last());
        assert_consistent(&db.pool).await;
        mode.assert_effects(&db.pool).await;
        db.remove().await;
    }
}

async fn a_hundred_thousand_messages_in_one_transaction_arrive_in_order(mode: Mode) {
    const MESSAGES: usize = 100_000;
    let db = fresh().await;
    let memory = Memory::new();
    let handle = builder(&db)
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(2))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    let mut tx = db.pool.begin().await.unwrap();
    for chunk in 0..10 {
        let messages: Vec<_> = (0..MESSAGES / 10)
            .map(|n| EnqueueMessage::new("x").partition(u32::try_from((chunk + n) % 2).unwrap()))
            .collect();
        handle.outbox().enqueue_batch(&mut tx, "q", &messages).await.unwrap();
    }
    tx.commit().await.unwrap();
    memory.has_within(MESSAGES, secs(60)).await;
    handle.stop().await;
    for partition in 0..2 {
        let of: Vec<_> =
            memory.all().into_iter().filter(|seen| seen.message.partition == partition).collect();
        assert!(of.iter().map(|seen| seen.message.seq).eq(1..=50_000));
        assert!(of.is_sorted_by_key(|seen| seen.message.id));
    }
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// More than one tick takes: many transactions, one of them larger than a part itself.
#[tokio::test]
async fn a_backlog_of_many_parts_is_sequenced_whole() {
    let db = fresh().await;
    posthaste::migrate(&db.pool).await.unwrap();
    let register = builder(&db).queue("q", Partitions::of(1)).leased(Memory::new().handler());
    register.start().await.unwrap().stop().await;
    let insert = "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
                  SELECT id, 't', '' FROM posthaste_partition, generate_series(1, $1)";
    for rows in [30_000, 15_000, 70_000, 1, 49_999, 20_000] {
        sqlx::query(insert).bind(rows).execute(&db.pool).await.unwrap();
    }
    let total = 185_000;
    let mut open = db.pool.begin().await.unwrap();
    sqlx::query(insert).bind(5).execute(&mut *open).await.unwrap();
    sqlx::query(insert).bind(1).execute(&db.pool).await.unwrap();
    let handle = builder(&db).start().await.unwrap();
    let sequenced = "SELECT coalesce(sum(cardinality(ids)), 0)::bigint FROM posthaste_outgoing";
    let wait = async |expected: i64| {
        super::stage::within(secs(30), "all is sequenced", async || {
            count(&db.pool, sequenced).await == expected
        })
        .await;
    };
    wait(total + 1).await;
    open.commit().await.unwrap();
    wait(total + 6).await;
    let ticks = count(&db.pool, "SELECT max(id) FROM posthaste_tick").await;
    assert!(ticks >= 4, "in parts: {ticks} ticks");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn serializable_as_the_default_isolation_changes_nothing(mode: Mode) {
    let db = fresh().await;
    let name: String =
        sqlx::query_scalar("SELECT current_database()::text").fetch_one(&db.pool).await.unwrap();
    let alter = format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'serializable';
         ALTER DATABASE {name} SET statement_timeout = '200ms'; ALTER DATABASE {name} SET synchronous_commit = off"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(alter)).execute(&db.pool).await.unwrap();
    let pool = sqlx::PgPool::connect_with((*db.pool.connect_options()).clone()).await.unwrap();
    let memory = Memory::new();
    let handle = super::stage::builder_on(pool.clone());
    let handle = handle.queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let producers: Vec<_> = (0..4)
        .map(|n| {
            let (outbox, pool) = (handle.outbox(), pool.clone());
            tokio::spawn(async move {
                for _ in 0..50 {
                    outbox.enqueue(&pool, "q", EnqueueMessage::new("x").partition(n)).await.unwrap();
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    memory.has(200).await;
    handle.stop().await;
    assert_eq!(memory.ids().into_iter().collect::<HashSet<_>>().len(), 200);
    pool.close().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

#[tokio::test]
async fn a_dump_restored_elsewhere_delivers_what_was_pending() {
    let (db, elsewhere) = (fresh().await, super::stage::Db::create().await);
    let memory = Memory::new();
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("settled before")).await.unwrap();
    memory.has(1).await;
    let outbox = handle.outbox();
    handle.stop().await;
    for n in 0..10 {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new(format!("pending {n}"))).await.unwrap();
    }
    // Stamps that lie in the future, as they do where fewer transactions have run.
    let far =
        "UPDATE posthaste_incoming SET stamp = (stamp::text::bigint + 1000000)::text::xid8 WHERE id % 2 = 0";
    sqlx::raw_sql(far).execute(&db.pool).await.unwrap();
    copy_database(&db.pool, &elsewhere.pool).await;

    let memory = Memory::new();
    let handle =
        builder(&elsewhere).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    memory.has(10).await;
    handle.outbox().enqueue(&elsewhere.pool, "q", EnqueueMessage::new("new")).await.unwrap();
    memory.has(11).await;
    handle.stop().await;
    let expected: Vec<_> = (0..10).map(|n| format!("pending {n}")).chain(["new".to_owned()]).collect();
    assert_eq!(memory.payloads(), expected);
    assert_consistent(&elsewhere.pool).await;
    db.remove().await;
    elsewhere.remove().await;
}

/// By the tools that people use: `pg_dump` into `psql`.
async fn copy_database(from: &sqlx::PgPool, to: &sqlx::PgPool) {
    let url = |pool: &sqlx::PgPool| {
        let options = pool.connect_options();
        let name = options.get_database().unwrap_or_default().to_owned();
        format!("postgres://{}@{}:{}/{name}", options.get_username(), options.get_host(), options.get_port())
    };
    let script = "pg_dump --no-owner \"$0\" | psql --quiet --set ON_ERROR_STOP=1 \"$1\" > /dev/null";
    let mut command = tokio::process::Command::new("bash");
    command.args(["-o", "pipefail", "-c", script, &url(from), &url(to)]);
    let status =
        tokio::time::timeout(Duration::from_secs(30), command.status()).await.expect("in time").unwrap();
    assert!(status.success(), "{status}");
}

/// Where fewer transactions have run, and nothing was pending: nothing that is new there looks new by its stamp.
#[tokio::test]
async fn a_drained_dump_restored_where_fewer_transactions_have_run_delivers_what_is_new() {
    let (db, elsewhere) = (fresh().await, super::stage::Db::create().await);
    let memory = Memory::new();
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("settled before")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    sqlx::raw_sql("UPDATE posthaste_tick SET seen = '100000000:100000000:'").execute(&db.pool).await.unwrap();
    copy_database(&db.pool, &elsewhere.pool).await;
    let memory = Memory::new();
    let handle =
        builder(&elsewhere).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    for n in 1..=3 {
        handle.outbox().enqueue(&elsewhere.pool, "q", EnqueueMessage::new("new")).await.unwrap();
        memory.has(n).await;
    }
    handle.stop().await;
    assert_eq!(memory.payloads(), ["new", "new", "new"]);
    db.remove().await;
    elsewhere.remove().await;
}

/// The planner is told that each stamp stands for very many rows; a tick that finds nothing must not read them.
#[tokio::test]
async fn a_tick_reads_no_more_than_is_new_whatever_the_statistics_say() {
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let hang = memory.scripted(|_, _| super::stage::Step::Hang);
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(hang).start().await.unwrap();
    let insert = "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
                  SELECT id, 't', '' FROM posthaste_partition, generate_series(1, 200000)";
    sqlx::raw_sql(insert).execute(&db.pool).await.unwrap();
    sqlx::raw_sql("ANALYZE").execute(&db.pool).await.unwrap();
    let sequenced = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
    super::stage::within(secs(20), "all is sequenced", async || count(&db.pool, sequenced).await == 200_000)
        .await;
    let reset = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    sqlx::query(reset).execute(&db.pool).await.unwrap();
    for _ in 0..10 {
        let at = count(&db.pool, sequenced).await;
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        super::stage::eventually("it is sequenced", async || count(&db.pool, sequenced).await > at).await;
    }
    let blocks = "SELECT (sum(shared_blks_hit + shared_blks_read) / sum(calls))::bigint FROM pg_stat_statements s
                  JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() AND query LIKE 'WITH gate%'";
    let blocks = count(&db.pool, blocks).await;
    assert!(blocks < 200, "{blocks} blocks a tick");
    handle.stop().await;
    db.remove().await;
}

/// Three parts: in one go, or one by one at the sequencer's pace.
#[tokio::test]
async fn max_inner_iterations_and_the_sequencers_pace_decide_how_a_backlog_is_sequenced() {
    const PACE: Duration = Duration::from_secs(3);
    for (in_one_go, pauses) in [(8, 0_u32), (1, 2)] {
        let db = fresh().await;
        super::stage::register(&db, Partitions::of(1)).await;
        let insert = "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
                      SELECT id, 't', '' FROM posthaste_partition, generate_series(1, 49000)";
        for _ in 0..3 {
            sqlx::raw_sql(insert).execute(&db.pool).await.unwrap();
        }
        let tuning = posthaste::WorkerTuning::sequencer().min_interval(PACE).active_interval(PACE);
        let outbox =
            Outbox::builder(db.pool.clone()).sequencer_tuning(tuning).max_inner_iterations(in_one_go);
        let handle = outbox.start().await.unwrap();
        let sequenced = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
        super::stage::within(secs(30), "all is sequenced", async || {
            count(&db.pool, sequenced).await == 147_000
        })
        .await;
        let span = "SELECT (extract(epoch FROM max(sequenced_at) - min(sequenced_at)) * 1000)::bigint FROM posthaste_outgoing";
        let span = Duration::from_millis(count(&db.pool, span).await.unsigned_abs());
        assert_eq!(
            span.as_secs() >= PACE.as_secs() * u64::from(pauses.max(1)),
            pauses > 0,
            "{in_one_go}: {span:?}"
        );
        handle.stop().await;
        db.remove().await;
    }
}
