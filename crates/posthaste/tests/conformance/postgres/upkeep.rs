//! The permits of maintenance, with a vacuum that a lock stalls in the middle.

use posthaste::{EnqueueMessage, Partitions};

use super::{count, fresh};
use crate::stage::{Memory, builder, eventually, millis};

/// A vacuum that takes long has the shared permit: the sequencer has one of its own, unless there is none.
#[tokio::test]
async fn a_guaranteed_permit_keeps_the_sequencer_going_while_vacuum_is_busy() {
    for (guaranteed, goes_on) in [(1, true), (0, false)] {
        let (db, memory) = (fresh().await, Memory::new());
        let handle = builder(&db)
            .maintenance(guaranteed, 1)
            .queue("q", Partitions::of(1))
            .leased(memory.handler())
            .start()
            .await
            .unwrap();
        // Vacuum waits in the middle of its statement.
        sqlx::raw_sql("CREATE TABLE gate ()").execute(&db.pool).await.unwrap();
        let mut stall = db.pool.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE gate").execute(&mut *stall).await.unwrap();
        let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        LOCK TABLE gate; RETURN OLD; END $$;
                    CREATE TRIGGER slow BEFORE DELETE ON posthaste_incoming FOR EACH ROW EXECUTE FUNCTION slow()";
        sqlx::raw_sql(slow).execute(&db.pool).await.unwrap();
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        memory.has(1).await;
        let stalled = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass";
        eventually("vacuum waits", async || count(&db.pool, stalled).await > 0).await;
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("y")).await.unwrap();
        if goes_on {
            memory.has(2).await;
        } else {
            tokio::time::sleep(millis(500)).await;
            assert_eq!(memory.all().len(), 1, "they take turns");
        }
        stall.commit().await.unwrap();
        memory.has(2).await;
        handle.stop().await;
        db.remove().await;
    }
}
