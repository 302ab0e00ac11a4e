//! Processes that fall silent in the middle, and sessions that are not as they should be.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use posthaste::{EnqueueMessage, LeaseConfig, Outbox, Partitions};
use sqlx::{Connection, MySql, MySqlConnection, MySqlPool};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use super::{Family, on_both};
use crate::{
    dialect::Dialect,
    effects::each,
    stage::{
        Memory, SOON, builder, builder_on, count, eventually, fresh, millis, quick_retries, secs, settled,
    },
};

on_both! {
    []:
        a_connection_on_which_a_handlers_transaction_could_not_begin_has_no_traces_of_a_handler,
        g12_a_process_that_freezes_in_a_tick_does_not_stop_the_others (flavor = "multi_thread"),
        a_sessions_select_limit_does_not_change_a_queues_partitions;
}

/// A transaction cannot begin on a connection that a handler has used before: nobody else must get it.
async fn a_connection_on_which_a_handlers_transaction_could_not_begin_has_no_traces_of_a_handler<
    S: Family,
>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let found = Arc::new(Mutex::new(Vec::new()));
    let (noted, pool) = (Arc::clone(&found), db.pool.clone());
    let handler = each::<MySql, _>(&memory, move |conn, msg| {
        let (noted, pool) = (Arc::clone(&noted), pool.clone());
        Box::pin(async move {
            let traces = MySql::texts(conn, "SELECT coalesce(@trace, 'none')").await.unwrap();
            noted.lock().unwrap().push((msg.seq, traces[0].clone().unwrap()));
            if msg.seq == 1 {
                MySql::run(conn, "SET SESSION lock_wait_timeout = 1, @trace = 'here'").await.unwrap();
                let asks = pool.clone();
                // It waits for the end of this transaction, and then has the table for a while: a backup, or DDL.
                tokio::spawn(async move {
                    let mut conn = MySqlConnection::connect_with(&pool.connect_options()).await.unwrap();
                    MySql::run(&mut conn, "LOCK TABLES posthaste_partition WRITE").await.unwrap();
                    tokio::time::sleep(millis(2500)).await;
                    MySql::run(&mut conn, "UNLOCK TABLES").await.unwrap();
                });
                while MySql::waiting_for_locks(&asks).await.unwrap() == 0 {
                    tokio::time::sleep(millis(5)).await;
                }
            }
            MySql::write(conn, msg).await.into()
        })
    });
    let queue = builder(&db).processor_tuning(quick_retries().batch_size(1)).queue("q", Partitions::of(1));
    let handle = queue.transactional(handler).start().await.unwrap();
    let messages = vec![EnqueueMessage::new("x"); 3];
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all is settled", async || settled(&db.pool).await == 3).await;
    let found = found.lock().unwrap().clone();
    handle.stop().await;
    assert_eq!(found[1], (2, "none".to_owned()), "{found:?}");
    db.remove().await;
}

/// Forwards bytes, until it is frozen: then nothing comes through, and no connection ends.
async fn freezable(port: u16, frozen: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            for (mut from, mut to) in [(from_client, to_server), (from_server, to_client)] {
                let frozen = Arc::clone(&frozen);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65536];
                    loop {
                        let n = from.read(&mut buffer).await.unwrap_or(0);
                        while frozen.load(Ordering::SeqCst) {
                            tokio::time::sleep(millis(1)).await;
                        }
                        if n == 0 || to.write_all(&buffer[..n]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    own
}

async fn is_tick_locked(pool: &MySqlPool) -> bool {
    let mut tx = pool.begin().await.unwrap();
    let sql = "SELECT id FROM posthaste_tick ORDER BY id DESC LIMIT 1 FOR UPDATE NOWAIT";
    let locked = sqlx::query(sql).fetch_one(&mut *tx).await.is_err();
    tx.rollback().await.unwrap();
    locked
}

/// A host that loses its power, or its network, in the middle of a tick: the server knows nothing of that.
async fn g12_a_process_that_freezes_in_a_tick_does_not_stop_the_others<S: Family>() {
    let (db, memory, frozen) = (fresh::<S>().await, Memory::new(), Arc::new(AtomicBool::new(false)));
    let options = (*db.pool.connect_options()).clone();
    let port = options.get_port();
    let proxy = freezable(port, Arc::clone(&frozen)).await;
    let pool = MySqlPool::connect_with(MySql::by_way_of(options, proxy)).await.unwrap();
    let lease = LeaseConfig { duration: secs(2), headroom: millis(500) };
    let queue = builder_on(pool).queue("q", Partitions::of(1)).leased(memory.handler()).lease(lease);
    let first = queue.start().await.unwrap();
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let producing = tokio::spawn({
        let (producer, pool, stop) = (producer.clone(), db.pool.clone(), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::SeqCst) {
                producer.enqueue_batch(&pool, "q", &vec![EnqueueMessage::new("x"); 50]).await.unwrap();
            }
        }
    });
    tokio::time::sleep(secs(1)).await;
    let mut tries = 0;
    loop {
        tries += 1;
        assert!(tries < 300, "never in a tick");
        frozen.store(true, Ordering::SeqCst);
        tokio::time::sleep(millis(100)).await;
        if is_tick_locked(&db.pool).await {
            break;
        }
        frozen.store(false, Ordering::SeqCst);
        tokio::time::sleep(millis(37)).await;
    }
    stop.store(true, Ordering::SeqCst);
    producing.await.unwrap();
    let second = Memory::new();
    let queue = builder(&db).queue("q", Partitions::of(1)).leased(second.handler()).lease(lease);
    let handle = queue.start().await.unwrap();
    let id = handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("last")).await.unwrap();
    // However much there is before it: something must come.
    let (mut seen, mut since, limit) = (0, Instant::now(), SOON);
    while !second.ids().contains(&id.0) {
        if second.ids().len() > seen {
            (seen, since) = (second.ids().len(), Instant::now());
        }
        assert!(
            since.elapsed() < limit,
            "nobody sequences for {limit:?}; pending: {}",
            count(&db.pool, "SELECT count(*) FROM posthaste_pending").await
        );
        tokio::time::sleep(millis(20)).await;
    }
    frozen.store(false, Ordering::SeqCst);
    handle.stop().await;
    first.stop().await;
    db.remove().await;
}

async fn a_sessions_select_limit_does_not_change_a_queues_partitions<S: Family>() {
    let db = fresh::<S>().await;
    crate::stage::register(&db, Partitions::of(4)).await;
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    MySql::run(&mut conn, "SET SESSION sql_select_limit = 1").await.unwrap();
    producer.enqueue(&mut *conn, "q", EnqueueMessage::new("x").partition(0)).await.unwrap();
    MySql::run(&mut conn, "SET SESSION sql_select_limit = DEFAULT").await.unwrap();
    // From now on this producer takes the queue for one of one partition.
    producer.enqueue(&mut *conn, "q", EnqueueMessage::new("x").partition(3)).await.unwrap();
    drop(conn);
    db.remove().await;
}
