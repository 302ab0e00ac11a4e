//! Transactional mode: what a handler may do to its session and its transaction, and who notices.

use posthaste::{HandlerResult, Partitions};
use sqlx::Connection;

use crate::{
    cases::cases,
    dialect::Dialect,
    effects::{
        all_settled, assert_exactly_once, dead_letters, each, effects, last_error, retry, send, stage_with,
        whole,
    },
    fresh::Server,
    stage::{Memory, builder, eventually, fresh, millis, quick_retries, run},
};

cases! {
    []:
        g10_a_handler_that_ends_its_transaction_is_noticed_and_the_partition_goes_on,
        g10_a_batch_handler_that_ends_its_transaction_is_noticed_and_told_so,
        transactions_that_a_handler_begins_on_its_connection_are_savepoints,
        g10_a_table_that_changes_under_a_handlers_prepared_statement_is_a_retry_and_no_wedge;
}

async fn g10_a_handler_that_ends_its_transaction_is_noticed_and_the_partition_goes_on<S: Server>() {
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
        for outcome in [HandlerResult::Success, retry("mine")] {
            let (db, memory) = (stage_with::<S>(&["a", "bad", "b"]).await, Memory::new());
            let handler = each::<S::Db, _>(&memory, move |conn, msg| {
                let outcome = outcome.clone();
                Box::pin(async move {
                    S::Db::write(conn, msg).await.unwrap();
                    if msg.payload == b"bad" {
                        S::Db::run(&mut *conn, sql).await.unwrap();
                        return outcome;
                    }
                    HandlerResult::Success
                })
            });
            let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
            let handle = outbox.transactional(handler).max_attempts(2).start().await.unwrap();
            all_settled(&db.pool, 3).await;
            handle.stop().await;
            let dead = dead_letters(&db.pool).await;
            assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [2], "{sql}");
            assert!(
                dead[0].reason.contains("the handler ended the transaction"),
                "{sql}: {}",
                dead[0].reason
            );
            let found = effects(&db.pool).await;
            if sql.starts_with("ROLLBACK") {
                assert_eq!(found, [1, 3]);
            } else {
                // What it committed itself is beyond help; what comes behind it is not.
                assert_eq!(found.iter().filter(|seq| **seq == 3).count(), 1);
            }
            db.remove().await;
        }
    }
}

async fn g10_a_batch_handler_that_ends_its_transaction_is_noticed_and_told_so<S: Server>() {
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"] {
        let (db, memory) = (stage_with::<S>(&["bad"]).await, Memory::new());
        let handler = whole::<S::Db, _>(&memory, move |conn, msgs| {
            Box::pin(async move {
                if msgs[0].attempts < 3 {
                    S::Db::run(&mut *conn, sql).await.unwrap();
                    return HandlerResult::Success;
                }
                S::Db::write(conn, &msgs[0]).await.into()
            })
        });
        let tuning = quick_retries().retry_base(millis(200)).retry_max(millis(200));
        let outbox = builder(&db).processor_tuning(tuning).queue("q", Partitions::of(1));
        let handle = outbox.batch_transactional(handler).start().await.unwrap();
        eventually("it is written down", async || {
            last_error(&db.pool).await.is_some_and(|text| text.contains("the handler ended the transaction"))
        })
        .await;
        all_settled(&db.pool, 1).await;
        handle.stop().await;
        assert_exactly_once(&db.pool, 1, 1).await;
        db.remove().await;
    }
}

async fn transactions_that_a_handler_begins_on_its_connection_are_savepoints<S: Server>() {
    let payloads = ["commit", "rollback", "drop", "error", "deep", "unfinished"];
    let (db, memory) = (stage_with::<S>(&payloads).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                let mut nested = conn.begin().await?;
                S::Db::write(&mut nested, msg).await?;
                match &*msg.payload {
                    b"commit" => nested.commit().await?,
                    b"rollback" => nested.rollback().await?,
                    b"drop" => drop(nested),
                    b"error" => {
                        S::Db::run(&mut *nested, "SELECT * FROM nowhere").await.unwrap_err();
                        nested.rollback().await?;
                        S::Db::write(conn, msg).await?;
                    }
                    b"deep" => {
                        let mut deeper = nested.begin().await?;
                        S::Db::write(&mut deeper, msg).await?;
                        deeper.rollback().await?;
                        nested.commit().await?;
                    }
                    _ => {
                        let deeper = nested.begin().await?;
                        deeper.commit().await?;
                        S::Db::run(&mut *nested, "SAVEPOINT left_open").await?;
                        nested.commit().await?;
                        S::Db::run(conn, "SAVEPOINT left_open_too").await?;
                    }
                }
                Ok::<_, sqlx::Error>(())
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 6).await;
    handle.stop().await;
    assert_eq!(memory.all().len(), 6, "each succeeded at once");
    assert_eq!(effects(&db.pool).await, [1, 4, 5, 6]);
    db.remove().await;
}

/// A prepared statement on a table that gets another column fails for as long as its session lives.
async fn g10_a_table_that_changes_under_a_handlers_prepared_statement_is_a_retry_and_no_wedge<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    run(&db.pool, "CREATE TABLE wide (a BIGINT); INSERT INTO wide VALUES (1)").await;
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                S::Db::numbers(&mut *conn, "SELECT * FROM wide").await?;
                S::Db::write(conn, msg).await
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processors(1).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    send(&handle.outbox(), &db.pool, &["x"]).await;
    all_settled(&db.pool, 1).await;
    run(&db.pool, "ALTER TABLE wide ADD COLUMN b INT").await;
    send(&handle.outbox(), &db.pool, &["x"]).await;
    all_settled(&db.pool, 2).await;
    handle.stop().await;
    assert_exactly_once(&db.pool, 1, 2).await;
    db.remove().await;
}
