//! The database goes away: how often the workers try to reach it, and what they log.

use std::sync::{Arc, Mutex};

use posthaste::{EnqueueMessage, OutboxHandle, Partitions, testing::Timings};
use tokio::time::Instant;
use tracing::{Event, Level};
use tracing_subscriber::{Layer, Registry, layer::Context};

use crate::{
    cases::cases,
    fresh::{Fresh, Server},
    listening::listen,
    stage::{Memory, builder_on, eventually, fresh, millis, secs, timings},
    switch::{Switch, Way},
};

cases! {
    []:
        g12_while_the_database_is_down_workers_try_at_a_bounded_pace except(sqlite = "there is no server"),
        an_outage_is_one_warning_and_one_line_at_its_end except(sqlite = "there is no server");
}

/// Workers of two queues that reach the server through a switch, with the promised pause between attempts.
async fn behind_a_switch<S: Server>(db: &Fresh<S>, memory: &Memory) -> (Switch, OutboxHandle<S::Db>) {
    let switch = Switch::before(&db.pool).await;
    let handle = builder_on(switch.pool(&db.pool).await)
        .timings(Timings {
            unreachable: millis(500),
            outage_reminder: secs(3600),
            stalled_after: secs(3600),
            ..timings()
        })
        .queue("a", Partitions::of(4))
        .leased(memory.handler())
        .queue("b", Partitions::of(4))
        .transactional(memory.handler())
        .start()
        .await
        .unwrap();
    (switch, handle)
}

/// Enqueues to each partition, past the switch, and waits until all is handled.
async fn deliver<S: Server>(db: &Fresh<S>, handle: &OutboxHandle<S::Db>, memory: &Memory) {
    let before = memory.all().len();
    for partition in 0..4 {
        for queue in ["a", "b"] {
            let message = EnqueueMessage::new("x").partition(partition);
            handle.outbox().enqueue(&db.pool, queue, message).await.unwrap();
        }
    }
    memory.has(before + 8).await;
}

/// All workers together connect once per 250 to 500 ms, and a vacuum that fails pauses as long as any other worker. A busy machine
/// only makes them slower.
async fn g12_while_the_database_is_down_workers_try_at_a_bounded_pace<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let (switch, handle) = behind_a_switch(&db, &memory).await;
    // The vacuum has something to do when the database goes away.
    deliver(&db, &handle, &memory).await;
    let (cut, passes) = (Instant::now(), handle.stats().vacuum.executions);
    switch.turn(Way::Cut);
    eventually("workers try to connect", async || switch.refused() > 0).await;
    tokio::time::sleep(secs(3)).await;
    let (attempts, passes) = (switch.refused(), handle.stats().vacuum.executions - passes);
    let most = 20 * usize::try_from(cut.elapsed().as_secs()).unwrap();
    assert!(attempts <= most, "{attempts} attempts to connect, {most} allowed");
    assert!(usize::try_from(passes).unwrap() <= most, "{passes} executions of the vacuum, {most} allowed");
    switch.turn(Way::Open);
    deliver(&db, &handle, &memory).await;
    handle.stop().await;
    db.remove().await;
}

/// What the library logs, by level.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Layer<Registry> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, Registry>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if event.metadata().target().starts_with("posthaste") {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
    }
}

impl Lines {
    fn of(&self, level: Level) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.0 == level).map(|line| line.1.clone()).collect()
    }
}

async fn an_outage_is_one_warning_and_one_line_at_its_end<S: Server>() {
    let (db, memory, lines) = (fresh::<S>().await, Memory::new(), Lines::default());
    let (switch, handle) = behind_a_switch(&db, &memory).await;
    deliver(&db, &handle, &memory).await;
    let _listening = listen(lines.clone());
    let is_back = |line: &String| line == "the database answers again";
    for outage in 1..=2 {
        let before = handle.stats().unanswered;
        switch.turn(Way::Cut);
        // Each of the workers, and the listener, several times.
        eventually("workers notice it", async || handle.stats().unanswered > before + 20).await;
        switch.turn(Way::Open);
        deliver(&db, &handle, &memory).await;
        eventually("the end is logged", async || {
            let ends = lines.of(Level::INFO).into_iter().chain(lines.of(Level::DEBUG));
            ends.filter(is_back).count() >= outage
        })
        .await;
    }
    // A settlement that was under way when the connection was cut may be warned of too, for another reason.
    let warnings: Vec<_> = lines
        .of(Level::WARN)
        .into_iter()
        .filter(|line| line.contains("database") || line.contains("cannot"))
        .collect();
    assert_eq!(warnings, ["the database does not answer; retrying"], "the second comes within the interval");
    assert_eq!(lines.of(Level::INFO).iter().filter(|line| is_back(line)).count(), 1);
    handle.stop().await;
    db.remove().await;
}
