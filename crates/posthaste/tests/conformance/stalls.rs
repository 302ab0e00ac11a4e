//! What stands still is reported within 10 s, and why: `health`, and the warnings of the monitor.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use posthaste::{
    DatabaseHealth, EnqueueMessage, HandlerResult, Health, Outbox, OutboxHandle, Partitions, Stall,
    StallCause, testing::Timings,
};
use tokio::{sync::watch, time::Instant};
use tracing_subscriber::{Layer, layer::SubscriberExt};

use crate::{
    cases::cases,
    dialect::{Dialect, Tested},
    fresh::{Fresh, Server},
    observing::lag_of_one,
    stage::{
        Memory, PATIENCE, SOON, Step, builder, builder_on, fresh, leave_lease, millis, quick_retries,
        register, run, secs, timings, within,
    },
    switch::{Switch, Way},
};

cases! {
    []:
        what_is_at_rest_is_well,
        a_message_that_is_retried_is_told_with_its_attempts_and_its_last_error,
        a_handler_that_hangs_is_told_as_a_lease_of_this_process,
        a_lease_of_another_process_is_told_as_such,
        a_queue_that_nobody_processes_here_is_told_unless_it_is_paused,
        a_partition_for_which_no_processor_is_free_is_told_as_not_taken_up,
        a_sequencer_that_cannot_tick_is_not_alive_until_it_can,
        a_standstill_is_logged_once_without_anybody_asking,
        a_database_that_is_gone_is_told_in_bounded_time_and_so_is_its_return
            except(sqlite = "there is no server that could be gone");
}

/// How soon a stall is reported: with the timings of the tests, in about a second. `full_length.rs` has the promised ones.
const REPORTED_WITHIN: Duration = SOON;

/// Asks for the health until it is as expected: not all the time, for each time is a look at the database.
async fn health_is<DB: Tested>(
    handle: &OutboxHandle<DB>,
    limit: Duration,
    what: &str,
    expected: impl Fn(&Health) -> bool,
) -> Health {
    let began = Instant::now();
    loop {
        let health = handle.health().await;
        if expected(&health) {
            return health;
        }
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}; but {health:?}");
        tokio::time::sleep(millis(50)).await;
    }
}

/// The first partition that is stalled for a cause of this kind, soon enough after it has come to a standstill.
async fn stall<DB: Tested>(handle: &OutboxHandle<DB>, is_it: impl Fn(&StallCause) -> bool) -> Stall {
    let health = health_is(handle, REPORTED_WITHIN, "it is stalled", |health| {
        // A partition that stalls takes nothing out of rotation.
        health.is_ready() && health.stalled.iter().any(|stall| is_it(&stall.cause))
    })
    .await;
    let stall = health.stalled.into_iter().find(|stall| is_it(&stall.cause)).unwrap();
    assert_eq!(&*stall.queue, "q");
    assert!(stall.since >= timings().stalled_after && stall.since < REPORTED_WITHIN, "{stall:?}");
    stall
}

async fn is_well<DB: Tested>(handle: &OutboxHandle<DB>) {
    health_is(handle, PATIENCE, "it is well", |health| health.is_ready() && health.stalled.is_empty()).await;
}

async fn send<S: Server>(db: &Fresh<S>, partition: u32) {
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(partition)).await.unwrap();
}

async fn what_is_at_rest_is_well<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    send(&db, 0).await;
    memory.has(1).await;
    is_well(&handle).await;
    let health = handle.health().await;
    assert!(matches!(health.database, DatabaseHealth::Reachable { took } if took < secs(3)), "{health:?}");
    assert!(health.paused.is_empty() && health.sequencer.is_alive, "{health:?}");
    handle.stop().await;
    db.remove().await;
}

async fn a_message_that_is_retried_is_told_with_its_attempts_and_its_last_error<S: Server>() {
    let (db, memory, told) = (fresh::<S>().await, Memory::new(), watch::Sender::new(false));
    let is_told = told.subscribe();
    let handler = memory.scripted(move |_, _| {
        if *is_told.borrow() {
            return Step::Ack;
        }
        Step::Return(HandlerResult::Retry { reason: "no such street".to_owned() })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(2));
    let handle = queue.leased(handler).start().await.unwrap();
    send(&db, 1).await;
    let stall = stall(&handle, |cause| matches!(cause, StallCause::Retrying { .. })).await;
    assert_eq!((stall.partition, stall.depth), (1, 1));
    let StallCause::Retrying { attempts, last_error } = stall.cause else { unreachable!() };
    assert!(attempts > 1 && last_error.as_deref() == Some("no such street"), "{attempts} {last_error:?}");
    told.send_replace(true);
    is_well(&handle).await;
    handle.stop().await;
    db.remove().await;
}

async fn a_handler_that_hangs_is_told_as_a_lease_of_this_process<S: Server>() {
    let (db, memory, told) = (fresh::<S>().await, Memory::new(), watch::Sender::new(false));
    let waiting = told.subscribe();
    let handler = memory.scripted(move |_, _| Step::AckWhen(waiting.clone()));
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(handler).start().await.unwrap();
    send(&db, 0).await;
    let stall = stall(&handle, |cause| matches!(cause, StallCause::Leased { .. })).await;
    let StallCause::Leased { owner, is_here, left } = stall.cause else { unreachable!() };
    assert_eq!((owner, is_here), (handle.worker_id(), true));
    assert!(left > secs(10) && left < secs(30), "{left:?}");
    told.send_replace(true);
    is_well(&handle).await;
    handle.stop().await;
    db.remove().await;
}

async fn a_lease_of_another_process_is_told_as_such<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    leave_lease(&db.pool, 1, 30_000).await;
    let holder = lag_of_one(&db.pool).await.owner.unwrap();
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    send(&db, 0).await;
    let stall = stall(&handle, |cause| matches!(cause, StallCause::Leased { .. })).await;
    let StallCause::Leased { owner, is_here, left } = stall.cause else { unreachable!() };
    assert_eq!((owner, is_here), (holder, false));
    assert!(left < secs(30), "{left:?}");
    leave_lease(&db.pool, 1, 0).await;
    memory.has(1).await;
    is_well(&handle).await;
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_that_nobody_processes_here_is_told_unless_it_is_paused<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let sequencer = builder(&db).start().await.unwrap();
    send(&db, 0).await;
    stall(&sequencer, |cause| *cause == StallCause::NoProcessorHere).await;
    run(&db.pool, &format!("UPDATE posthaste_queue SET paused_at = {}", S::Db::moment(0))).await;
    let health = sequencer.health().await;
    assert!(health.stalled.is_empty() && health.is_ready(), "{health:?}");
    assert_eq!(health.paused, [Arc::from("q")]);
    run(&db.pool, "UPDATE posthaste_queue SET paused_at = NULL").await;
    stall(&sequencer, |cause| *cause == StallCause::NoProcessorHere).await;
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    memory.has(1).await;
    is_well(&sequencer).await;
    handle.stop().await;
    sequencer.stop().await;
    db.remove().await;
}

async fn a_partition_for_which_no_processor_is_free_is_told_as_not_taken_up<S: Server>() {
    let (db, memory, told) = (fresh::<S>().await, Memory::new(), watch::Sender::new(false));
    let waiting = told.subscribe();
    let handler =
        memory.scripted(
            move |_, message| {
                if message.partition == 0 { Step::AckWhen(waiting.clone()) } else { Step::Ack }
            },
        );
    let queue = builder(&db).processors(1).queue("q", Partitions::of(2));
    let handle = queue.leased(handler).start().await.unwrap();
    send(&db, 0).await;
    memory.has(1).await;
    send(&db, 1).await;
    let stall = stall(&handle, |cause| *cause == StallCause::NotTakenUp).await;
    assert_eq!(stall.partition, 1);
    told.send_replace(true);
    is_well(&handle).await;
    handle.stop().await;
    db.remove().await;
}

/// Each tick fails, at the trigger, as long as there is a row in `broken`.
async fn a_sequencer_that_cannot_tick_is_not_alive_until_it_can<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    for table in ["broken", "once"] {
        run(&db.pool, &format!("CREATE TABLE {table} (n INT NOT NULL PRIMARY KEY)")).await;
        run(&db.pool, &format!("INSERT INTO {table} VALUES (1)")).await;
    }
    let fail = "INSERT INTO once SELECT n FROM broken";
    run(&db.pool, &S::Db::after_insert("fail", "posthaste_tick", fail)).await;
    send(&db, 0).await;
    let health = health_is(&handle, REPORTED_WITHIN, "it stands still", |health| !health.is_ready()).await;
    assert!(matches!(health.database, DatabaseHealth::Reachable { .. }), "{health:?}");
    assert!(health.sequencer.waiting.is_some_and(|waiting| waiting >= timings().stalled_after), "{health:?}");
    assert!(health.stalled.is_empty(), "what has no order is no partition's fault: {health:?}");
    run(&db.pool, "DELETE FROM broken").await;
    memory.has(1).await;
    is_well(&handle).await;
    assert_eq!(handle.health().await.sequencer.waiting, None);
    handle.stop().await;
    db.remove().await;
}

/// Keeps what the monitor says.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn with(&self, text: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        if event.metadata().target().starts_with("posthaste") {
            self.0.lock().unwrap().push(text.0);
        }
    }
}

async fn a_standstill_is_logged_once_without_anybody_asking<S: Server>() {
    let lines = Lines::default();
    let _logging = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    let (db, memory, told) = (Fresh::<S>::empty().await, Memory::new(), watch::Sender::new(false));
    let is_told = told.subscribe();
    let handler = memory.scripted(move |_, _| {
        if *is_told.borrow() {
            return Step::Ack;
        }
        Step::Return(HandlerResult::Retry { reason: "no such street".to_owned() })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.leased(handler).start().await.unwrap();
    let names = lines.with(&format!("worker_id={}", handle.worker_id()));
    assert_eq!(names.len(), 1, "the process says how it is called");
    let message = EnqueueMessage::new("a secret").key("customer-7");
    handle.outbox().enqueue(&db.pool, "q", message).await.unwrap();
    let stalled = "a partition has work and does not move";
    // Before the second attempt, another cause may be reported.
    let retrying =
        || -> Vec<_> { lines.with(stalled).into_iter().filter(|line| line.contains("at attempt")).collect() };
    within(REPORTED_WITHIN, "it is said", async || !retrying().is_empty()).await;
    told.send_replace(true);
    let moves = "moves again";
    within(REPORTED_WITHIN, "so is its end", async || !lines.with(moves).is_empty()).await;
    handle.stop().await;
    let said = retrying();
    assert_eq!((said.len(), lines.with(moves).len()), (1, 1), "{said:?}");
    for part in ["WARN", "queue=q", "partition=0", "depth=1", "no such street"] {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
    for secret in ["a secret", "customer-7"] {
        assert!(lines.with(secret).is_empty(), "{:?}", lines.with(secret));
    }
    db.remove().await;
}

async fn a_database_that_is_gone_is_told_in_bounded_time_and_so_is_its_return<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let switch = Switch::before(&db.pool).await;
    let pool = switch.pool(&db.pool).await;
    let timings = Timings { health_limit: millis(300), ..timings() };
    let queue = builder_on(pool.clone()).timings(timings).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    is_well(&handle).await;
    for (round, way) in [Way::Cut, Way::Silent].into_iter().enumerate() {
        switch.turn(way);
        for _ in 0..3 {
            let health = tokio::time::timeout(SOON, handle.health()).await.expect("an answer");
            assert!(matches!(health.database, DatabaseHealth::Unreachable { .. }), "{way:?}: {health:?}");
            assert!(!health.is_ready() && health.stalled.is_empty(), "{way:?}: {health:?}");
        }
        switch.turn(Way::Open);
        is_well(&handle).await;
        send(&db, 0).await;
        memory.has(round + 1).await;
    }
    handle.stop().await;
    pool.close().await;
    db.remove().await;
}
