//! `status` and `vacuum`.

use std::io::{BufRead, BufReader};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::{LeasedMessageHandler, MessageResult, OutboxMessage, Partitions};

use crate::{
    ground::{Accept, AnyPool, Ground, Server},
    snapshots::assert_shape,
};

on_every_database!(
    an_idle_outbox_is_well,
    messages_that_nobody_delivers_are_a_problem,
    a_queue_behind_many_messages_of_another_is_not_called_idle,
    a_partition_that_retries_is_a_problem_with_its_reason,
    a_paused_queue_is_no_problem,
    it_can_be_watched_until_interrupted,
    what_is_settled_is_removed_on_demand,
);

/// As if they had been enqueued a minute ago.
async fn let_messages_age(ground: &Ground) {
    let minute = if ground.server == Server::Postgres { "interval '1 minute'" } else { "60000000" };
    ground.sql(&format!("UPDATE posthaste_incoming SET created_at = created_at - {minute}")).await;
}

/// Never succeeds, and says why in words that would clear the screen.
struct Refuse;

impl LeasedMessageHandler for Refuse {
    async fn handle(&self, _msg: &OutboxMessage) -> MessageResult {
        panic!("the mail server\x1b[2J is down")
    }
}

async fn an_idle_outbox_is_well(ground: &Ground) {
    ground.register("orders", Partitions::of(4)).await;
    ground.register("mails", Partitions::of(1)).await;
    let text = ground.posthaste(&["status"]).succeeds();
    assert!(text.ends_with("\n\nall 5 partitions are idle\n"), "{text}");
    let text = ground.posthaste(&["status", "mails"]).succeeds();
    assert!(text.ends_with("\n\nits partition is idle\n") && !text.contains("orders"), "{text}");
    let sentence = ground.posthaste(&["status", "letters"]).fails(2);
    assert!(sentence.starts_with("there is no queue \"letters\""), "{sentence}");
}

async fn messages_that_nobody_delivers_are_a_problem(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    ground.enqueue("orders", 3).await;
    // They may only just have been enqueued.
    let young = ground.posthaste(&["status"]).run();
    assert_eq!(young.code, 0, "{young:?}");
    let_messages_age(ground).await;
    let old = ground.posthaste(&["status"]).run();
    assert_eq!(old.code, 1, "{old:?}");
    let reason =
        "orders 0 stands still: its messages have no order yet: no process with workers is running\n";
    assert!(old.out.ends_with(reason), "{old:?}");

    let seen = ground.posthaste(&["status", "--json"]).run();
    assert_eq!(seen.code, 1, "{seen:?}");
    let seen: serde_json::Value = serde_json::from_str(&seen.out).unwrap();
    assert_shape("status", &seen);
    assert_eq!(seen["ok"], false);
    let partition = &seen["queues"][0]["partitions"][0];
    assert_eq!((&partition["state"], &partition["depth"]), (&"stalled".into(), &0.into()), "{seen}");
    assert!(partition["oldest_ms"].as_u64().unwrap() >= 60_000, "{seen}");
}

async fn a_queue_behind_many_messages_of_another_is_not_called_idle(ground: &Ground) {
    ground.register("orders", Partitions::of(1)).await;
    ground.register("mails", Partitions::of(1)).await;
    ground.enqueue("orders", 1500).await;
    ground.enqueue("mails", 1).await;
    let_messages_age(ground).await;
    let seen = ground.posthaste(&["status", "mails"]).run();
    assert_eq!(seen.code, 1, "{seen:?}");
    assert!(seen.out.contains("mails 0 stands still: its messages have no order yet"), "{seen:?}");
}

async fn a_partition_that_retries_is_a_problem_with_its_reason(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Refuse).await;
    ground.enqueue("orders", 2).await;
    ground.eventually("it was tried twice", || {
        let seen = ground.posthaste(&["status", "--json"]).run();
        let seen: serde_json::Value = serde_json::from_str(&seen.out).unwrap();
        seen["queues"][0]["partitions"][0]["attempts"].as_u64() >= Some(2)
    });
    let_messages_age(ground).await;
    let seen = ground.posthaste(&["status"]).run();
    assert_eq!(seen.code, 1, "{seen:?}");
    assert!(seen.out.contains("orders 0 stands still: attempt "), "{seen:?}");
    assert!(seen.out.contains("the mail server\\u{1b}[2J is down"), "{seen:?}");
    assert!(!seen.out.contains('\x1b'), "{seen:?}");
    workers.stop().await;
}

async fn a_paused_queue_is_no_problem(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Accept).await;
    ground.posthaste(&["pause", "orders"]).succeeds();
    ground.enqueue("orders", 2).await;
    ground.eventually("they are sequenced", || {
        ground.posthaste(&["queues", "--json"]).json()["queues"][0]["depth"] == 2
    });
    let_messages_age(ground).await;
    let seen = ground.posthaste(&["status", "--json"]).json();
    assert_eq!(
        (&seen["ok"], &seen["queues"][0]["partitions"][0]["state"]),
        (&true.into(), &"paused".into()),
        "{seen}"
    );
    workers.stop().await;
}

async fn it_can_be_watched_until_interrupted(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    let mut child = ground.posthaste(&["status", "--watch=100ms", "--json"]).start();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> serde_json::Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["queues"][0]["is_paused"], false);
    ground.posthaste(&["pause", "orders"]).succeeds();
    // It looks again and again.
    while next()["queues"][0]["is_paused"] == false {}
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "to have seen enough is no failure");
}

async fn what_is_settled_is_removed_on_demand(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(2), Accept).await;
    ground.enqueue("orders", 20).await;
    ground.eventually("they are delivered", || {
        let seen = ground.posthaste(&["status", "--json"]).json();
        let partitions = seen["queues"][0]["partitions"].as_array().unwrap();
        partitions.iter().map(|partition| partition["cursor_seq"].as_u64().unwrap()).sum::<u64>() == 20
    });
    workers.stop().await;
    let left = ground.count("posthaste_incoming").await;
    let done = ground.posthaste(&["vacuum", "--json"]).json();
    assert_eq!(done, serde_json::json!({ "removed": left }));
    assert_eq!(ground.count("posthaste_incoming").await, 0);
    assert_eq!(ground.posthaste(&["vacuum"]).succeeds(), "nothing was there to remove\n");
    // What is not settled stays.
    ground.enqueue("orders", 3).await;
    ground.posthaste(&["vacuum"]).succeeds();
    assert_eq!(ground.count("posthaste_incoming").await, 3);
}

#[test]
fn an_interval_that_would_be_a_load_is_refused() {
    let ran = crate::posthaste::Posthaste::new(&["status", "--watch=1ms"]).run();
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("less than 50ms"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_that_the_database_does_not_answer_on_postgres() {
    let ground = Ground::migrated(Server::Postgres).await;
    ground.register("orders", Partitions::of(1)).await;
    let AnyPool::Postgres(pool) = &ground.pool else { unreachable!() };
    let mut child = ground.posthaste(&["status", "--json", "--watch", "orders"]).start();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
    out.next().unwrap().unwrap();
    let mut holder = pool.begin().await.unwrap();
    let held = "LOCK TABLE posthaste_cursor IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(held).execute(&mut *holder).await.unwrap();
    assert_eq!(err.next().unwrap().unwrap(), "the database does not answer: nothing for 5s");
    holder.rollback().await.unwrap();
    out.next().unwrap().unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    ground.remove().await;
}
