//! Partitions whose work comes at the same moment, and a server that refuses what one of them asks for.

use posthaste::{EnqueueMessage, Partitions};

use super::{Family, on_both};
use crate::stage::{
    Memory, assert_consistent, builder, count, eventually, fresh, quick_retries, run, settled,
};

on_both! {
    []:
        what_the_server_refuses_for_one_partition_it_does_not_refuse_for_those_asked_for_with_it;
}

const PARTITIONS: u32 = 16;

fn one_each() -> Vec<EnqueueMessage<'static>> {
    (0..PARTITIONS).map(|n| EnqueueMessage::new("x").partition(n)).collect()
}

async fn what_the_server_refuses_for_one_partition_it_does_not_refuse_for_those_asked_for_with_it<
    S: Family,
>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .processors(PARTITIONS as usize)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(PARTITIONS))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    let refused = count(&db.pool, "SELECT min(id) FROM posthaste_partition").await;
    // Once a lease of its is taken, once one is let go: either is one of several in its transaction.
    for (round, owner) in [(0, "IS NOT NULL"), (1, "IS NULL")] {
        let before = settled(&db.pool).await;
        assert_eq!(before, round * i64::from(PARTITIONS));
        let trigger = format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON posthaste_cursor FOR EACH ROW
             BEGIN
                 IF NEW.partition_id = {refused} AND NEW.owner {owner} THEN
                     SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused';
                 END IF;
             END"
        );
        run(&db.pool, &trigger).await;
        handle.outbox().enqueue_batch(&db.pool, "q", &one_each()).await.unwrap();
        let others = before + i64::from(PARTITIONS) - 1;
        eventually("the others are settled", async || settled(&db.pool).await == others).await;
        run(&db.pool, "DROP TRIGGER refuse").await;
        eventually("it is settled", async || settled(&db.pool).await == others + 1).await;
    }
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}
