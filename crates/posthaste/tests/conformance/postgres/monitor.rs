//! The monitor, with its look stalled by a lock.

use posthaste::{DatabaseHealth, EnqueueMessage, HandlerResult, Partitions, testing::Timings};

use super::{count, fresh};
use crate::stage::{Memory, Step, builder, eventually, millis, timings};

/// However long a look has waited, the next one comes soon, and what stands still by then is reported. And however many ask meanwhile,
/// there is one look at a time.
#[tokio::test]
async fn a_look_that_had_to_wait_is_followed_by_one_soon_and_nobody_else_looks_meanwhile() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (db, memory) = (fresh().await, Memory::new());
    let poison = memory.scripted(|_, _| Step::Return(HandlerResult::Retry { reason: "poison".to_owned() }));
    let timings = Timings { health_limit: millis(300), ..timings() };
    let queue = builder(&db).timings(timings).queue("q", Partitions::of(1));
    let handle = queue.leased(poison).start().await.unwrap();
    let is_reachable =
        |health: &posthaste::Health| matches!(health.database, DatabaseHealth::Reachable { .. });
    eventually("it is reachable", async || is_reachable(&handle.health().await)).await;

    let mut lock = db.pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE posthaste_partition").execute(&mut *lock).await.unwrap();
    let probes: Vec<_> = (0..50).map(|_| tokio::spawn(handle.health())).collect();
    for probe in probes {
        assert!(!is_reachable(&probe.await.unwrap()), "within the limit");
    }
    eventually("so does the gauge", async || page.render().contains("posthaste_database_reachable 0")).await;
    // One waits since then, and there is none of those who asked.
    assert!(!is_reachable(&handle.health().await));
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                   AND query LIKE '%), fresh AS MATERIALIZED (%'";
    assert_eq!(count(&db.pool, waiting).await, 1);
    lock.rollback().await.unwrap();

    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    eventually("it is reported although nobody asks", async || {
        page.render().contains("posthaste_stalled_partitions{queue=\"q\"} 1")
    })
    .await;
    assert!(page.render().contains("posthaste_database_reachable 1"));
    handle.stop().await;
    db.remove().await;
}
