//! Transactional mode and what the database checks late: whoever violates it is blamed, and nobody else.

use posthaste::{HandlerResult, Partitions};

use super::{count, fresh};
use crate::{
    dialect::Dialect,
    effects::{
        all_settled, assert_exactly_once, dead_letters, each, effects, reject, send, stage_with, writes,
    },
    fresh::servers::Postgres,
    stage::{Memory, builder, quick_retries, run},
};

const FAMILY: &str = "CREATE TABLE parent (id BIGINT PRIMARY KEY);
     CREATE TABLE child (parent BIGINT NOT NULL REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";

#[tokio::test]
async fn a_deferred_constraint_blames_the_message_that_violates_it_wherever_it_is_in_its_batch() {
    let (db, memory) = (fresh().await, Memory::new());
    run(&db.pool, FAMILY).await;
    let handler = each::<sqlx::Postgres, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                sqlx::Postgres::write(conn, msg).await?;
                let insert = sqlx::query("INSERT INTO child VALUES ($1)").bind(msg.seq);
                insert.execute(&mut *conn).await?;
                if msg.payload != b"orphan" {
                    let insert = sqlx::query("INSERT INTO parent VALUES ($1)").bind(msg.seq);
                    insert.execute(&mut *conn).await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(2).start().await.unwrap();
    let (mut seen, mut good) = (Vec::new(), Vec::new());
    for place in 0..5_i64 {
        let mut payloads = ["x"; 5];
        payloads[usize::try_from(place).unwrap()] = "orphan";
        send(&handle.outbox(), &db.pool, &payloads).await;
        all_settled(&db.pool, (place + 1) * 5).await;
        let at = |n: i64| place * 5 + n + 1;
        seen.extend((0..=place).chain([place]).chain(place + 1..5).map(at));
        good.extend((0..5).filter(|n| *n != place).map(at));
    }
    handle.stop().await;
    assert_eq!(memory.all().iter().map(|seen| seen.message.seq).collect::<Vec<_>>(), seen);
    assert_eq!(effects(&db.pool).await, good);
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [1, 7, 13, 19, 25]);
    assert!(dead.iter().all(|dead| dead.attempts == 2 && dead.reason.contains("foreign key")), "{dead:?}");
    db.remove().await;
}

#[tokio::test]
async fn every_message_of_a_batch_may_rely_on_constraints_being_deferred() {
    let (db, memory) = (stage_with::<Postgres>(&["x"; 10]).await, Memory::new());
    run(&db.pool, FAMILY).await;
    let handler = each::<sqlx::Postgres, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                sqlx::query("INSERT INTO child VALUES ($1)").bind(msg.seq).execute(&mut *conn).await?;
                sqlx::query("INSERT INTO parent VALUES ($1)").bind(msg.seq).execute(&mut *conn).await?;
                sqlx::Postgres::write(conn, msg).await
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 10).await;
    handle.stop().await;
    assert_eq!(memory.all().len(), 10, "each succeeded at once");
    assert_exactly_once(&db.pool, 1, 10).await;
    db.remove().await;
}

const TRIGGER: &str = "CREATE TABLE echo (seq BIGINT NOT NULL);
     CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF NEW.seq = 3 THEN RAISE EXCEPTION 'too late for %', NEW.seq; END IF;
         INSERT INTO echo VALUES (NEW.seq);
         RETURN NULL;
     END $$;
     CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
     FOR EACH ROW EXECUTE FUNCTION late()";

#[tokio::test]
async fn a_constraint_trigger_that_fires_at_the_commit_blames_its_message_and_has_its_effect_once() {
    let (db, memory) = (stage_with::<Postgres>(&["x"; 5]).await, Memory::new());
    run(&db.pool, TRIGGER).await;
    let handler = writes(&memory, |_, _| HandlerResult::Success);
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(2).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2, 4, 5]);
    let echo: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM echo ORDER BY seq").fetch_all(&db.pool).await.unwrap();
    assert_eq!(echo, [1, 2, 4, 5], "it fires once for what is kept");
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [3]);
    assert!(dead[0].reason.contains("too late for 3"), "{}", dead[0].reason);
    db.remove().await;
}

#[tokio::test]
async fn a_constraint_trigger_that_fires_at_the_commit_is_a_retry_of_a_batch_handlers_call() {
    let (db, memory) = (stage_with::<Postgres>(&["x"; 5]).await, Memory::new());
    run(&db.pool, TRIGGER).await;
    let handler = writes(&memory, |_, _| HandlerResult::Success);
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.batch_transactional(handler).max_attempts(3).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2, 4, 5]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [3]);
    assert!(dead[0].reason.contains("too late for 3"), "{}", dead[0].reason);
    db.remove().await;
}

/// It fails in COMMIT itself and nowhere else, for what succeeded before a message that was rejected.
#[tokio::test]
async fn a_commit_that_fails_undoes_all_and_is_tried_again_in_smaller_batches() {
    let (db, memory) = (stage_with::<Postgres>(&["x", "x", "bad"]).await, Memory::new());
    run(
        &db.pool,
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF current_query() ILIKE 'commit%' THEN RAISE EXCEPTION 'not in a commit'; END IF;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION late()",
    )
    .await;
    let handler = writes(&memory, |msg, _| match &*msg.payload {
        b"bad" => reject("bad"),
        _ => HandlerResult::Success,
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2]);
    assert_eq!(dead_letters(&db.pool).await.len(), 1);
    assert!(memory.all().len() > 3, "the first commit failed");
    db.remove().await;
}

/// Nothing but going back to a savepoint takes that back, and it belongs to what is kept.
#[tokio::test]
async fn a_handler_that_makes_constraints_immediate_costs_those_behind_it_no_more_than_a_retry() {
    let (db, memory) = (stage_with::<Postgres>(&["strict", "lax", "lax"]).await, Memory::new());
    run(&db.pool, FAMILY).await;
    let handler = each::<sqlx::Postgres, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                if msg.payload == b"strict" {
                    sqlx::raw_sql("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut *conn).await?;
                } else {
                    sqlx::query("INSERT INTO child VALUES ($1)").bind(msg.seq).execute(&mut *conn).await?;
                    sqlx::query("INSERT INTO parent VALUES ($1)").bind(msg.seq).execute(&mut *conn).await?;
                }
                sqlx::Postgres::write(conn, msg).await
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_exactly_once(&db.pool, 1, 3).await;
    assert_eq!(count(&db.pool, "SELECT count(*) FROM child").await, 2);
    db.remove().await;
}
