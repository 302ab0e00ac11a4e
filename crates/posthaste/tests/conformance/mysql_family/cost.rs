//! What it costs, counted by the server and on the wire.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Instant,
};

use posthaste::{EnqueueMessage, HandlerResult, Outbox, Partitions, testing::Timings};
use sqlx::{Connection, MySql, MySqlConnection, MySqlPool, Row};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{
    Family, on_both,
    wire::{packet, prepared_as},
};
use crate::{
    dialect::Dialect,
    effects::{Turnstile, all_settled, each, effects, send, whole},
    modes::Mode,
    stage::{
        Memory, Step, assert_consistent, builder_on, count, eventually, fresh, insert_by_hand, quick_retries,
        register, secs, settled, without_clocks,
    },
};

on_both! {
    []:
        an_enqueue_in_a_transaction_is_few_statements,
        an_idle_process_reads_little_and_writes_nothing,
        lag_is_one_statement_however_many_partitions_and_messages_there_are,
        a_leased_batch_in_steady_state_is_a_read_and_a_settlement,
        partitions_that_a_tick_wakes_are_asked_for_together,
        a_transactional_batch_is_a_statement_a_message_and_five_more,
        a_transactional_call_for_a_batch_is_six_statements;
}

/// Statements of this session so far, those that were only prepared left out; this one is counted too.
async fn questions(conn: &mut MySqlConnection) -> i64 {
    let row = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Questions'").fetch_one(conn).await.unwrap();
    row.get::<String, _>(1).parse().unwrap()
}

/// The messages, and that they are pending; on MySQL one more to find the ids of several, on MariaDB one for each size.
async fn an_enqueue_in_a_transaction_is_few_statements<S: Family>() {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let mut conn = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    // The queue is looked for once.
    outbox.enqueue(&mut conn, "q", EnqueueMessage::new("x")).await.unwrap();
    for (size, on_mariadb, on_mysql) in [(1, 1, 2), (2, 2, 3), (96, 6, 3), (100, 2, 3), (1000, 11, 3)] {
        let mut tx = conn.begin().await.unwrap();
        let before = questions(&mut tx).await;
        outbox.enqueue_batch(&mut tx, "q", &vec![EnqueueMessage::new("x"); size]).await.unwrap();
        let statements = questions(&mut tx).await - before - 1;
        tx.commit().await.unwrap();
        assert_eq!(statements, if S::NAME == "mysql" { on_mysql } else { on_mariadb }, "{size} messages");
    }
    conn.close().await.unwrap();
    db.remove().await;
}

/// Statements, by what they are; and all of them.
type Statements = Arc<Mutex<BTreeMap<&'static str, i64>>>;

fn what(text: &str) -> &'static str {
    let parts = [
        ("SELECT EXISTS", "look for anything"),
        // A handler's: ticks and vacuum begin theirs in other words.
        ("SET SESSION autocommit = 0", "begin"),
        ("AS partition_id, CONNECTION_ID()", "lock"),
        ("RELEASE SAVEPOINT", "keep"),
        ("CAST(o.first_seq", "read"),
        ("BETWEEN c.processed_seq AND", "settle"),
        ("c.epoch + 1, c.processed_seq", "acquire"),
        ("COMMIT", "commit"),
        ("INSERT INTO effects", "the handler's"),
        ("micros_left", "look"),
    ];
    if text.trim_start().starts_with("SELECT o.last_seq") {
        return "ask for the head";
    }
    parts.iter().find(|(part, _)| text.contains(part)).map_or("another", |(_, what)| what)
}

/// Stands before a server and counts what is said to it.
struct Counter {
    statements: Statements,
    port: u16,
    listening: JoinHandle<()>,
}

impl Counter {
    async fn before(pool: &MySqlPool) -> Self {
        let server = MySql::server(&pool.connect_options());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, statements) = (listener.local_addr().unwrap().port(), Statements::default());
        let counted = Arc::clone(&statements);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server.clone()).await.unwrap();
                let counted = Arc::clone(&counted);
                tokio::spawn(async move { forward(client, server, &counted).await.ok() });
            }
        });
        Self { statements, port, listening }
    }

    async fn pool(&self, pool: &MySqlPool) -> MySqlPool {
        let options = MySql::by_way_of((*pool.connect_options()).clone(), self.port);
        MySqlPool::connect_with(options).await.unwrap()
    }

    fn reset(&self) {
        self.statements.lock().unwrap().clear();
    }

    fn of(&self, what: &str) -> i64 {
        self.statements.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    fn all(&self) -> i64 {
        self.statements.lock().unwrap().values().sum()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    statements: &Statements,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    let (mut preparing, mut prepared) = (None, HashMap::new());
    loop {
        tokio::select! {
            read = client.read_buf(&mut said) => if read? == 0 { return Ok(()) },
            read = server.read_buf(&mut answered) => if read? == 0 { return Ok(()) },
        }
        if let Some(what) = preparing.take_if(|_| !answered.is_empty()) {
            prepared.extend(prepared_as(&answered).map(|number| (number, what)));
        }
        client.write_all(&answered).await?;
        answered.clear();
        while let Some(packet) = packet(&mut said) {
            preparing = packet.prepared().map(|text| what(&text)).or(preparing);
            let run = packet.text().map(|text| what(&text));
            let run = run.or_else(|| Some(prepared.get(&packet.executed()?).copied().unwrap_or("another")));
            if let Some(run) = run {
                *statements.lock().unwrap().entry(run).or_default() += 1;
            }
            server.write_all(&packet.bytes).await?;
        }
    }
}

async fn an_idle_process_reads_little_and_writes_nothing<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let counter = Counter::before(&db.pool).await;
    let pool = counter.pool(&db.pool).await;
    // The default profile.
    let handle = Outbox::builder(pool.clone())
        .queue("a", Partitions::of(64))
        .leased(memory.handler())
        .queue("b", Partitions::of(64))
        .transactional(memory.handler())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "a", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let left = "SELECT (SELECT count(*) FROM posthaste_incoming) + (SELECT count(*) - 1 FROM posthaste_tick)
                + (SELECT count(*) - 128 FROM posthaste_cursor)";
    eventually("all is removed", async || count(&db.pool, left).await == 0).await;
    // For a while it is alert.
    tokio::time::sleep(secs(2)).await;
    // Whoever writes now, or locks a row, waits.
    let tables =
        ["meta", "queue", "partition", "incoming", "pending", "tick", "outgoing", "cursor", "dead_letter"];
    let tables = tables.map(|table| format!("posthaste_{table} READ")).join(", ");
    let mut locker = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    MySql::run(&mut locker, &format!("LOCK TABLES {tables}")).await.unwrap();
    counter.reset();
    let began = Instant::now();
    tokio::time::sleep(secs(6)).await;
    eventually("it polls", async || counter.of("look for anything") >= 5).await;
    let (statements, seconds) = (counter.all(), began.elapsed().as_secs_f64());
    assert_eq!(MySql::waiting_for_locks(&db.pool).await.unwrap(), 0, "nothing is written");
    MySql::run(&mut locker, "UNLOCK TABLES").await.unwrap();
    let rate = f64::from(u32::try_from(statements).unwrap()) / seconds;
    assert!(rate <= 20.0, "{rate} statements a second: {:?}", counter.statements.lock().unwrap());
    locker.close().await.unwrap();
    handle.stop().await;
    pool.close().await;
    db.remove().await;
}

async fn lag_is_one_statement_however_many_partitions_and_messages_there_are<S: Family>() {
    for (partitions, each) in [(1, 0), (1, 5000), (64, 50)] {
        let db = fresh::<S>().await;
        register(&db, Partitions::of(partitions)).await;
        insert_by_hand(&db.pool, each, "x").await;
        let counter = Counter::before(&db.pool).await;
        let pool = counter.pool(&db.pool).await;
        let outbox = Outbox::connect(pool.clone()).await.unwrap();
        // The first one sets its session up.
        outbox.lag().await.unwrap();
        counter.reset();
        outbox.lag().await.unwrap();
        assert_eq!(counter.all(), 1, "{:?}", counter.statements.lock().unwrap());
        pool.close().await;
        db.remove().await;
    }
}

const BATCHES: i64 = 20;
const SIZE: i64 = 10;

/// The first message waits until all others are there: from then on every batch is full. What is counted is what follows.
async fn a_leased_batch_in_steady_state_is_a_read_and_a_settlement<S: Family>() {
    let (db, memory, told) = (fresh::<S>().await, Memory::new(), tokio::sync::watch::Sender::new(false));
    let counter = Counter::before(&db.pool).await;
    let pool = counter.pool(&db.pool).await;
    let waiting = told.subscribe();
    let handler = memory.scripted(
        move |_, message| {
            if message.seq == 1 { Step::AckWhen(waiting.clone()) } else { Step::Ack }
        },
    );
    let queue = builder_on(pool.clone())
        .timings(without_clocks())
        .processor_tuning(quick_retries().batch_size(SIZE.try_into().unwrap()))
        .queue("q", Partitions::of(1));
    let handle = queue.leased(handler).start().await.unwrap();
    gather(&handle.outbox(), &db.pool, &memory).await;
    counter.reset();
    told.send_replace(true);
    eventually("all is settled", async || settled(&db.pool).await == 201).await;
    handle.stop().await;
    let (settles, acquires) = (counter.of("settle"), counter.of("acquire"));
    assert_eq!(settles, BATCHES + 1, "settlements");
    assert!(acquires <= BATCHES / 4, "{acquires} acquires");
    // If a settlement is the last of a slice, it only asks whether anything is left.
    let reads = counter.of("read") + counter.of("ask for the head");
    assert_eq!(reads, settles + acquires, "one read with each lease");
    assert_eq!(counter.of("begin") + counter.of("keep") + counter.of("lock"), 0);
    assert_eq!(memory.all().len(), 201);
    pool.close().await;
    db.remove().await;
}

async fn partitions_that_a_tick_wakes_are_asked_for_together<S: Family>() {
    const PARTITIONS: u32 = 16;
    const ROUNDS: i64 = 20;
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let counter = Counter::before(&db.pool).await;
    let pool = counter.pool(&db.pool).await;
    let queue = builder_on(pool.clone())
        .timings(Timings::default())
        .processors(PARTITIONS as usize)
        .queue("q", Partitions::of(PARTITIONS));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let one_each: Vec<_> = (0..PARTITIONS).map(|n| EnqueueMessage::new("x").partition(n)).collect();
    counter.reset();
    for round in 1..=ROUNDS {
        handle.outbox().enqueue_batch(&db.pool, "q", &one_each).await.unwrap();
        let goal = round * i64::from(PARTITIONS);
        eventually("the round is settled", async || settled(&db.pool).await == goal).await;
    }
    handle.stop().await;
    let (acquires, settles) = (counter.of("acquire"), counter.of("settle"));
    let one_by_one = ROUNDS * i64::from(PARTITIONS);
    println!("{acquires} acquires and {settles} settlements; one by one, {one_by_one} of each");
    assert!(acquires <= one_by_one / 2 && settles <= one_by_one / 2, "{acquires} and {settles}");
    assert_consistent(&db.pool).await;
    pool.close().await;
    db.remove().await;
}

/// Enqueues a message that waits in its handler, then 200 that are sequenced meanwhile.
async fn gather(outbox: &Outbox<MySql>, pool: &MySqlPool, memory: &Memory) {
    send(outbox, pool, &["first"]).await;
    memory.has(1).await;
    send(outbox, pool, &["x"; 200]).await;
    let head = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
    eventually("all are sequenced", async || count(pool, head).await == 201).await;
}

/// Beside what the handler does, as in all that is counted here.
async fn a_transactional_batch_is_a_statement_a_message_and_five_more<S: Family>() {
    assert_transactional_cost::<S>(Mode::Transactional, SIZE).await;
}

async fn a_transactional_call_for_a_batch_is_six_statements<S: Family>() {
    assert_transactional_cost::<S>(Mode::Batch, 1).await;
}

async fn assert_transactional_cost<S: Family>(mode: Mode, calls_a_batch: i64) {
    let (db, memory, turnstile) = (fresh::<S>().await, Memory::new(), Turnstile::shut());
    let counter = Counter::before(&db.pool).await;
    let pool = counter.pool(&db.pool).await;
    let (at_it, at_batch) = (turnstile.clone(), turnstile.clone());
    let handles_each = each::<MySql, _>(&memory, move |conn, msg| {
        let turnstile = at_it.clone();
        Box::pin(async move {
            if msg.seq == 1 {
                turnstile.pass().await;
            }
            MySql::write(conn, msg).await.into()
        })
    });
    let handles_batch = whole::<MySql, _>(&memory, move |conn, msgs| {
        let turnstile = at_batch.clone();
        Box::pin(async move {
            if msgs[0].seq == 1 {
                turnstile.pass().await;
            }
            MySql::write_effects(conn, msgs, true).await.unwrap();
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
    gather(&handle.outbox(), &db.pool, &memory).await;
    counter.reset();
    turnstile.let_pass(1);
    all_settled(&db.pool, 201).await;
    handle.stop().await;
    // The first message's transaction had begun before, and one that finds nothing ends no other way.
    let acquires = counter.of("acquire");
    assert!(acquires <= BATCHES / 4, "{acquires} acquires");
    assert_eq!(counter.of("begin"), BATCHES, "begins, with what the session is set to");
    assert_eq!(counter.of("lock"), BATCHES, "locks, with the look at the cursor and the savepoint");
    assert_eq!(counter.of("the handler's"), BATCHES * calls_a_batch + 1);
    assert_eq!(counter.of("keep"), BATCHES * calls_a_batch + 1, "one for each call of the handler");
    assert_eq!(counter.of("settle"), BATCHES + 1, "settlements");
    // An acquire reads; a settlement too, or if it is the last of a slice, it only asks whether anything is left.
    let reads = counter.of("read") + counter.of("ask for the head");
    assert_eq!(reads, BATCHES + 1 + acquires, "one read with each lease");
    // Ticks and vacuum commit too.
    let commits = counter.of("commit");
    assert!((BATCHES + 1..=BATCHES + 6).contains(&commits), "{commits} commits");
    let seqs = effects(&db.pool).await;
    assert!(seqs.into_iter().eq(1..=201), "each once");
    pool.close().await;
    db.remove().await;
}
