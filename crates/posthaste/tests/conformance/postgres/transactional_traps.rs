//! What a handler may leave open in good faith that must not hurt its partition.

use posthaste::Partitions;

use crate::{
    dialect::Dialect,
    effects::{all_settled, assert_exactly_once, each, stage_with},
    fresh::servers::Postgres,
    stage::{Memory, builder},
};

#[tokio::test]
async fn what_a_handler_leaves_open_is_closed_before_the_next_message() {
    for leaves in [
        "DECLARE c CURSOR FOR SELECT 1",
        "CREATE TEMP TABLE t (n INT) ON COMMIT DROP",
        "CREATE TEMP TABLE t (n INT) ON COMMIT DROP; DECLARE c CURSOR FOR SELECT * FROM t",
    ] {
        let (db, memory) = (stage_with::<Postgres>(&["x"; 10]).await, Memory::new());
        let handler = each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
            Box::pin(async move {
                let opened = sqlx::raw_sql(leaves).execute(&mut *conn).await;
                opened.unwrap();
                sqlx::Postgres::write(conn, msg).await.into()
            })
        });
        let handle = builder(&db).queue("q", Partitions::of(1)).transactional(handler).start().await.unwrap();
        all_settled(&db.pool, 10).await;
        handle.stop().await;
        assert_eq!(memory.all().len(), 10, "each was called for once: {leaves}");
        assert_exactly_once(&db.pool, 1, 10).await;
        db.remove().await;
    }
}
