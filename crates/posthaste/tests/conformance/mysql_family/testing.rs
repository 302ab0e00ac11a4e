//! The helpers for the tests of others, in sessions that are set to anything.

use posthaste::{EnqueueMessage, Outbox, Partitions, testing};
use sqlx::mysql::MySqlPoolOptions;

use super::{Family, on_both};
use crate::stage::{fresh, secs};

on_both! {
    []: odd_sessions_are_shown_what_is_there_now_and_as_it_is;
}

/// One that does not commit by itself would go on to show what was; and one that speaks another character set shows no other
/// texts.
async fn odd_sessions_are_shown_what_is_there_now_and_as_it_is<S: Family>() {
    let db = fresh::<S>().await;
    let test = testing::outbox_on(db.pool.clone(), &[("q", Partitions::of(2))]).await;
    let pool = MySqlPoolOptions::new().max_connections(1).after_connect(|conn, _| {
        let odd = "SET autocommit = 0; SET NAMES latin1; SET sql_select_limit = 1";
        Box::pin(async move { sqlx::raw_sql(odd).execute(conn).await.map(drop) })
    });
    let pool = pool.connect_with((*db.pool.connect_options()).clone()).await.unwrap();
    let odd = Outbox::connect(pool.clone()).await.unwrap();
    testing::assert_nothing_enqueued(&odd, "q").await;
    for n in 1..=3_u32 {
        let message = EnqueueMessage::new("x").key(format!("Zürich {n}")).header("名", "€");
        test.outbox.enqueue(&test.pool, "q", message).await.unwrap();
        let seen = testing::assert_enqueued_count(&odd, "q", usize::try_from(n).unwrap()).await;
        assert_eq!(seen.last().unwrap().key, Some(format!("Zürich {n}")));
        assert_eq!(seen[0].header("名"), Some("€"));
    }
    let test = test.delivering().await;
    testing::wait_until_drained_within(&odd, "q", secs(30)).await;
    assert_eq!(test.delivered.len(), 3);
    test.handle.stop().await;
    pool.close().await;
    db.remove().await;
}
