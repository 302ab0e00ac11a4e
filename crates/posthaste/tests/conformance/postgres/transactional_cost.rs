//! What transactional mode costs, counted by the server and on the wire.

use posthaste::{HandlerResult, Partitions};
use sqlx::PgPool;

use super::{count, fresh};
use crate::{
    dialect::Dialect,
    effects::{Turnstile, all_settled, assert_exactly_once, each, send, whole},
    modes::Mode,
    proxy::{Cut, Proxy},
    stage::{Memory, builder_on, eventually, quick_retries, run, without_clocks},
};

const BATCHES: i64 = 20;
const SIZE: i64 = 10;

async fn calls(pool: &PgPool, like: &str) -> i64 {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query LIKE $1 AND query NOT LIKE '%pg_stat_statements%'";
    sqlx::query_scalar(sql).bind(like).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_batch_costs_one_transaction_and_one_round_trip_a_message_and_four_more() {
    // The handler's own statement, and one to keep what it wrote, for each message.
    assert_cost(Mode::Transactional, SIZE, 2 * SIZE + 4).await;
}

#[tokio::test]
async fn a_batch_handlers_call_costs_one_transaction_and_five_round_trips() {
    // The handler's own statements, one a message; one to keep what they wrote.
    assert_cost(Mode::Batch, 1, SIZE + 5).await;
}

/// Batches of which each has so many calls of the handler, and takes so many round trips with the handler's own.
async fn assert_cost(mode: Mode, calls_a_batch: i64, round_trips_a_batch: i64) {
    let (db, memory, turnstile) = (fresh().await, Memory::new(), Turnstile::shut());
    run(&db.pool, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
    let proxy = Proxy::before(&db.pool, Cut::Never, 0).await;
    let pool = proxy.pool(&db.pool).await;
    let (at_it, at_batch) = (turnstile.clone(), turnstile.clone());
    let handles_each = each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
        let turnstile = at_it.clone();
        Box::pin(async move {
            if msg.seq == 1 {
                turnstile.pass().await;
            }
            sqlx::Postgres::write(conn, msg).await.into()
        })
    });
    let handles_batch = whole::<sqlx::Postgres, _>(&memory, move |conn, msgs| {
        let turnstile = at_batch.clone();
        Box::pin(async move {
            if msgs[0].seq == 1 {
                turnstile.pass().await;
            }
            for msg in msgs {
                sqlx::Postgres::write(&mut *conn, msg).await.unwrap();
            }
            HandlerResult::Success
        })
    });
    let queue = builder_on(pool.clone())
        .timings(without_clocks())
        .processor_tuning(quick_retries().batch_size(SIZE.try_into().unwrap()))
        .queue("q", Partitions::of(1));
    let outbox = match mode {
        Mode::Batch => queue.batch_transactional(handles_batch),
        _ => queue.transactional(handles_each),
    };
    let handle = outbox.start().await.unwrap();
    // The first message waits until all others are there: from then on every batch is full.
    send(&handle.outbox(), &db.pool, &["first"]).await;
    memory.has(1).await;
    send(&handle.outbox(), &db.pool, &["x"; 200]).await;
    let head = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
    eventually("all are sequenced", async || count(&db.pool, head).await == 201).await;
    let reset = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    run(&db.pool, reset).await;
    let before = proxy.round_trips();
    turnstile.let_pass(1);
    all_settled(&db.pool, 201).await;
    let round_trips = i64::try_from(proxy.round_trips() - before).unwrap();
    handle.stop().await;
    // The first message's transaction had begun before.
    assert_eq!(calls(&db.pool, "WITH tip%buried%").await, BATCHES + 1, "settlements");
    assert_eq!(calls(&db.pool, "COMMIT").await, BATCHES + 1, "commits");
    assert_eq!(calls(&db.pool, "BEGIN%").await, BATCHES, "begins");
    assert_eq!(calls(&db.pool, "%FOR NO KEY UPDATE SKIP LOCKED").await, BATCHES, "locks");
    assert_eq!(
        calls(&db.pool, "RELEASE SAVEPOINT posthaste\\_%").await,
        BATCHES * calls_a_batch + 1,
        "calls of the handler"
    );
    let acquires = calls(&db.pool, "WITH tip%is_free%seconds_left%").await;
    assert!(acquires <= BATCHES / 4, "{acquires} acquires");
    // One more for each batch would be as many as there are batches; the monitor and the vacuum ask now and then too.
    let expected = BATCHES * round_trips_a_batch;
    assert!(round_trips < expected + BATCHES, "{round_trips} round trips, not about {expected}");
    assert_exactly_once(&db.pool, 1, 201).await;
    pool.close().await;
    db.remove().await;
}
