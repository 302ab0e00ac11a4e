//! G3: sessions that die of themselves, at each place of a handler's transaction.

use super::count;
use crate::{
    effects::assert_exactly_once,
    exactly_once::{flow, stage_and_producer, working},
    fresh::servers::Postgres,
    stage::{Memory, grows_to, run, settled},
};

/// Sessions die of themselves, every third time that they come by. The number of deaths outlives them.
const DEATHS: &str = "CREATE SEQUENCE passes;
     CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF coalesce(current_query(), '') LIKE TG_ARGV[0] THEN
             IF nextval('passes') % 3 = 0 THEN
                 PERFORM pg_terminate_backend(pg_backend_pid());
                 PERFORM pg_sleep(10);
             END IF;
         END IF;
         RETURN NEW;
     END $$;";

async fn sessions_die(trigger: &'static str, least: i64) {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer::<Postgres>().await, Memory::new());
        run(&db.pool, DEATHS).await;
        run(&db.pool, trigger).await;
        let handle = working(db.pool.clone(), &memory, is_batch).await;
        flow(&outbox, &db.pool, 40).await;
        grows_to(160, "are settled", async || settled(&db.pool).await).await;
        handle.stop().await;
        assert_exactly_once(&db.pool, 4, 40).await;
        let passes = count(&db.pool, "SELECT last_value FROM passes").await;
        assert!(passes / 3 >= least, "{passes} came by");
        db.remove().await;
    }
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_a_handlers_statement() {
    let trigger = "CREATE TRIGGER die AFTER INSERT ON effects FOR EACH ROW EXECUTE FUNCTION die('%effects%')";
    sessions_die(trigger, 20).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_between_the_handler_and_its_settlement() {
    // The last thing before the settlement is what is checked late.
    let trigger = "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION die('%RELEASE SAVEPOINT posthaste%')";
    sessions_die(trigger, 20).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_the_settlement() {
    let trigger =
        "CREATE TRIGGER die BEFORE INSERT ON posthaste_cursor FOR EACH ROW EXECUTE FUNCTION die('%buried%')";
    sessions_die(trigger, 5).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_its_commit() {
    // By then what is checked late is checked at once; so it is put off again.
    let trigger = "CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       SET CONSTRAINTS die DEFERRED;
                       RETURN NEW;
                   END $$;
                   CREATE TRIGGER put_off BEFORE INSERT ON posthaste_cursor FOR EACH ROW EXECUTE FUNCTION put_off();
                   CREATE CONSTRAINT TRIGGER die AFTER INSERT ON posthaste_cursor DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION die('COMMIT')";
    sessions_die(trigger, 5).await;
}
