//! `enqueue`.

use posthaste::Partitions;

use crate::{
    ground::{AnyPool, Ground, Server},
    handlers::Collect,
    posthaste::Posthaste,
    snapshots::assert_shape,
    terminal::OnTerminal,
};

on_every_database!(
    a_payload_arrives_byte_for_byte_however_it_is_given,
    key_type_headers_and_partition_arrive,
    the_largest_payload_is_taken_and_a_larger_one_is_not,
    what_cannot_be_is_refused_and_nothing_is_written,
);

async fn a_payload_arrives_byte_for_byte_however_it_is_given(ground: &Ground) {
    let collect = Collect::default();
    let workers = ground.deliver("orders", Partitions::of(1), collect.clone()).await;
    let binary: Vec<u8> = (0..=255).chain(*b"\r\n\n").collect();
    std::fs::write(ground.folder.path().join("payload"), &binary).unwrap();
    ground.posthaste(&["enqueue", "orders", "a chair\n"]).succeeds();
    ground.posthaste(&["enqueue", "orders"]).input(&*binary).succeeds();
    ground.posthaste(&["enqueue", "orders", "-"]).input("two\nlines").succeeds();
    ground.posthaste(&["enqueue", "orders", "--file", "payload"]).succeeds();
    ground.posthaste(&["enqueue", "orders", "--file", "-"]).input("by hand").succeeds();
    ground.posthaste(&["enqueue", "orders", ""]).succeeds();
    ground.posthaste(&["enqueue", "orders", "--", "-5"]).succeeds();
    ground.eventually("all are delivered", || collect.messages().len() == 7);
    let payloads: Vec<_> = collect.messages().into_iter().map(|message| message.payload).collect();
    let expected: [&[u8]; 7] = [b"a chair\n", &binary, b"two\nlines", &binary, b"by hand", b"", b"-5"];
    assert_eq!(payloads, expected);
    workers.stop().await;
}

async fn key_type_headers_and_partition_arrive(ground: &Ground) {
    let collect = Collect::default();
    let workers = ground.deliver("orders", Partitions::of(8), collect.clone()).await;
    let keyed = ["enqueue", "orders", "{}", "--key", "Zürich", "--type", "order.created"];
    let headers = ["--header", "a=1", "--header", "a=b=c", "--header", "empty=", "--json"];
    let done = ground.posthaste(&[&keyed[..], &headers[..]].concat()).json();
    assert_shape("enqueue", &done);
    let plain = ground.posthaste(&["enqueue", "orders", "x", "--partition", "5"]).succeeds();
    ground.eventually("both are delivered", || collect.messages().len() == 2);
    let mut messages = collect.messages();
    messages.sort_by_key(|message| message.id);
    let [with_key, without] = &messages[..] else { panic!("{messages:?}") };

    assert_eq!((&done["id"], &done["partition"]), (&with_key.id.0.into(), &with_key.partition.into()));
    assert_eq!((with_key.key.as_deref(), &*with_key.payload_type), (Some("Zürich"), "order.created"));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(with_key.headers, [pair("a", "1"), pair("a", "b=c"), pair("empty", "")]);

    assert_eq!(plain, format!("enqueued message {} into orders, partition 5\n", without.id));
    assert_eq!((without.partition, &without.key), (5, &None));
    assert_eq!(without.payload_type, "application/octet-stream");
    workers.stop().await;
}

async fn the_largest_payload_is_taken_and_a_larger_one_is_not(ground: &Ground) {
    ground.register("orders", Partitions::of(1)).await;
    let limit = posthaste::DEFAULT_MAX_PAYLOAD;
    let write = |name: &str, size| std::fs::write(ground.folder.path().join(name), vec![7; size]).unwrap();
    write("largest", limit);
    write("larger", limit + 1);
    let sentence = |size: &str| format!("a payload of {size} bytes is too large: the limit is 1048576 bytes");
    let file = ground.posthaste(&["enqueue", "orders", "--file", "larger"]).fails(2);
    assert_eq!(file, sentence("1048577"));
    let endless = ground.posthaste(&["enqueue", "orders", "--file", "/dev/zero"]).fails(2);
    assert_eq!(endless, sentence("more than 1048576"));
    let input = ground.posthaste(&["enqueue", "orders"]).input(vec![7; limit + 1]).fails(2);
    assert_eq!(input, sentence("more than 1048576"));
    assert_eq!(ground.count("posthaste_incoming").await, 0);

    ground.posthaste(&["enqueue", "orders", "--file", "largest"]).succeeds();
    assert_eq!(ground.count("posthaste_incoming").await, 1);
}

async fn what_cannot_be_is_refused_and_nothing_is_written(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    let (long, headers) = ("k".repeat(256), "h".repeat(17_000));
    let too_long = format!("h={headers}");
    for (arguments, says) in [
        (&["ordres", "x"][..], "there is no queue \"ordres\": `posthaste queues` lists those there are"),
        (&["", "x"], "there is no queue \"\": "),
        (&["orders", "x", "--partition", "2"], "queue \"orders\" has no partition 2: the last one is 1"),
        (&["orders", "x", "--key", ""], "a key of 0 bytes is not valid: "),
        (&["orders", "x", "--key", &long], "a key of 256 bytes is not valid: "),
        (&["orders", "x", "--type", ""], "\"\" is not a payload type: "),
        (&["orders", "x", "--type", "\x1b[2J"], "\"\\u{1b}[2J\" is not a payload type: "),
        (&["orders", "x", "--header", &too_long], "1 headers of 17001 bytes are too many: "),
        (&["orders", "--file", "nowhere"], "cannot read the payload from nowhere: No such file"),
        (&["orders", "--file", "."], "cannot read the payload from .: Is a directory"),
    ] {
        let sentence = ground.posthaste(&[&["enqueue"], arguments].concat()).fails(2);
        assert!(sentence.starts_with(says), "{arguments:?}: {sentence}");
    }
    for arguments in [
        &["orders", "x", "--file", "y"][..],
        &["orders", "x", "--key", "k", "--partition", "1"],
        &["orders", "x", "--partition", "-1"],
        &["orders", "x", "--header", "name"],
        &["orders", "x", "--header", "=value"],
        &[],
    ] {
        let ran = ground.posthaste(&[&["enqueue"], arguments].concat()).run();
        assert_eq!((ran.code, &*ran.out), (2, ""), "{ran:?}");
    }
    assert_eq!(ground.count("posthaste_incoming").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_it_says_that_it_waits() {
    let ground = Ground::migrated(Server::Sqlite).await;
    ground.register("orders", Partitions::of(1)).await;
    let mut process = OnTerminal::start(ground.posthaste(&["enqueue", "orders"]));
    process.until("end it with Ctrl-D");
    process.types("a chair\n\x04");
    let (code, shown) = process.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("enqueued message 1 into orders, partition 0"), "{shown}");

    // Whoever waits for input can be interrupted.
    let mut process = OnTerminal::start(ground.posthaste(&["enqueue", "orders"]));
    process.until("end it with Ctrl-D");
    process.interrupt();
    let (code, shown) = process.ends();
    assert_eq!(code, Some(130), "{shown}");
    assert_eq!(ground.count("posthaste_incoming").await, 1);
    ground.remove().await;
}

#[test]
fn a_payload_is_read_before_the_database_is_asked() {
    let sentence = Posthaste::new(&["enqueue", "orders", "--file", "nowhere"]).fails(2);
    assert!(sentence.starts_with("cannot read the payload from nowhere"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_a_locked_database_is_told_so() {
    let ground = Ground::migrated(Server::Sqlite).await;
    ground.register("orders", Partitions::of(1)).await;
    let AnyPool::Sqlite(pool) = &ground.pool else { unreachable!() };
    let holder = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut process = OnTerminal::start(ground.posthaste(&["enqueue", "orders", "x"]));
    process.until("waiting for the database…");
    holder.rollback().await.unwrap();
    let (code, shown) = process.ends();
    assert_eq!(code, Some(0), "{shown}");
    ground.remove().await;
}
