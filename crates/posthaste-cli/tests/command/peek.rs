//! `peek`.

use posthaste::Partitions;
use serde_json::{Value, json};

use crate::{
    ground::{Accept, Ground},
    snapshots::assert_shape,
};

on_every_database!(
    what_has_no_place_yet_is_shown_without_one,
    what_has_no_place_yet_is_found_however_many_there_are,
    what_waits_is_shown_in_the_order_of_its_partition_oldest_first,
    what_was_delivered_is_not_shown,
    payloads_are_shown_as_asked_and_never_command_the_terminal,
    what_is_not_there_is_refused,
);

fn field<'a>(shown: &'a Value, name: &str) -> Vec<&'a Value> {
    shown["messages"].as_array().unwrap().iter().map(|message| &message[name]).collect()
}

async fn what_has_no_place_yet_is_shown_without_one(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    ground.register("others", Partitions::of(1)).await;
    assert_eq!(ground.posthaste(&["peek", "orders"]).succeeds(), "nothing waits in orders\n");
    ground.posthaste(&["enqueue", "others", "not this"]).succeeds();
    ground.posthaste(&["enqueue", "orders", "{\"a\": 1}", "--key", "k", "--header", "h=v"]).succeeds();
    ground.posthaste(&["enqueue", "orders", "x", "--partition", "0"]).succeeds();
    ground.posthaste(&["enqueue", "orders", "y", "--partition", "1"]).succeeds();
    let shown = ground.posthaste(&["peek", "orders", "--json"]).json();
    assert_shape("peek", &shown);
    assert_eq!(field(&shown, "payload"), [&json!({ "a": 1 }), &json!("x"), &json!("y")]);
    assert_eq!((field(&shown, "seq"), &shown["more"]), (vec![&json!(null); 3], &json!(false)));
    let table = ground.posthaste(&["peek", "orders", "-n", "2"]).succeeds();
    assert!(table.starts_with("PARTITION  SEQ  ID  KEY  TYPE "), "{table}");
    assert!(table.ends_with("\nthere are more: --limit shows more of them\n"), "{table}");
    let second = ground.posthaste(&["peek", "orders", "--partition", "1", "--json"]).json();
    assert!(field(&second, "partition").iter().all(|partition| **partition == 1), "{second}");
    assert!(field(&second, "payload").contains(&&json!("y")), "{second}");
}

async fn what_has_no_place_yet_is_found_however_many_there_are(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    ground.enqueue("orders", 1100).await;
    for payload in ["y", "z"] {
        ground.posthaste(&["enqueue", "orders", payload, "--partition", "1"]).succeeds();
    }
    let peek =
        |arguments: &[&str]| ground.posthaste(&[&["peek", "orders", "--json"], arguments].concat()).json();
    let second = peek(&["--partition", "1"]);
    assert_eq!((field(&second, "payload"), &second["more"]), (vec![&json!("y"), &json!("z")], &json!(false)));
    assert_eq!(peek(&["--partition", "1", "-n", "1"])["more"], true);
    let all = peek(&["-n", "1102"]);
    assert_eq!((field(&all, "id").len(), &all["more"]), (1102, &json!(false)));
    // What would take too much memory is left out, and said to be there.
    let large = "x".repeat(1_000_000);
    ground.enqueue_all("orders", (0..17).map(|_| large.clone())).await;
    let all = peek(&["-n", "2000"]);
    assert_eq!((field(&all, "id").len(), &all["more"]), (1102 + 16, &json!(true)));
}

async fn what_waits_is_shown_in_the_order_of_its_partition_oldest_first(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(2), Accept).await;
    ground.posthaste(&["pause", "orders"]).succeeds();
    for n in 0..3 {
        for partition in ["0", "1"] {
            let payload = format!("{partition}/{n}");
            ground.posthaste(&["enqueue", "orders", &payload, "--partition", partition]).succeeds();
        }
    }
    ground.eventually("all have their places", || {
        ground.posthaste(&["queues", "--json"]).json()["queues"][0]["depth"] == 6
    });
    workers.stop().await;
    let shown = ground.posthaste(&["peek", "orders", "--json"]).json();
    let payloads: Vec<_> = field(&shown, "payload").into_iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(payloads, ["0/0", "1/0", "0/1", "1/1", "0/2", "1/2"]);
    assert_eq!(field(&shown, "seq"), [1, 1, 2, 2, 3, 3].map(Value::from).iter().collect::<Vec<_>>());
    assert_eq!(shown["more"], false);

    let some = ground.posthaste(&["peek", "orders", "--json", "-n", "5"]).json();
    assert_eq!((field(&some, "id"), &some["more"]), (field(&shown, "id")[..5].to_vec(), &json!(true)));
    let one = ground.posthaste(&["peek", "orders", "--json", "--partition", "1"]).json();
    assert_eq!(field(&one, "payload"), [&json!("1/0"), &json!("1/1"), &json!("1/2")]);
    // Nothing was taken.
    assert_eq!(ground.posthaste(&["peek", "orders", "--json"]).json(), shown);
}

async fn what_was_delivered_is_not_shown(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Accept).await;
    ground.enqueue("orders", 5).await;
    ground.eventually("they are delivered", || {
        ground.posthaste(&["status", "--json"]).json()["queues"][0]["partitions"][0]["cursor_seq"] == 5
    });
    ground.posthaste(&["pause", "orders"]).succeeds();
    ground.posthaste(&["enqueue", "orders", "next"]).succeeds();
    ground.eventually("it has its place", || {
        ground.posthaste(&["queues", "--json"]).json()["queues"][0]["depth"] == 1
    });
    workers.stop().await;
    let shown = ground.posthaste(&["peek", "orders", "--json"]).json();
    assert_eq!((field(&shown, "seq"), field(&shown, "payload")), (vec![&json!(6)], vec![&json!("next")]));
}

async fn payloads_are_shown_as_asked_and_never_command_the_terminal(ground: &Ground) {
    ground.register("orders", Partitions::of(1)).await;
    ground.posthaste(&["enqueue", "orders", "\x1b]0;owned\x07é", "--key", "\x1b[31m"]).succeeds();
    let last = |arguments: &[&str]| {
        let shown = ground.posthaste(&[&["peek", "orders"], arguments].concat()).succeeds();
        assert!(!shown.contains(['\x1b', '\x07']), "{shown}");
        shown.lines().last().unwrap().to_owned()
    };
    assert!(last(&[]).ends_with("\\u{1b}]0;owned\\u{7}é"), "{}", last(&[]));
    assert!(last(&[]).contains("\\u{1b}[31m"), "{}", last(&[]));
    assert!(last(&["--format", "hex"]).ends_with("1b5d303b6f776e656407c3a9"));
    assert!(last(&["--format", "text", "--cut", "2"]).ends_with("\\u{1b}]… (12 bytes)"));
    assert!(last(&["--format", "json"]).contains("(not JSON)"));
}

async fn what_is_not_there_is_refused(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    for command in ["peek", "tail"] {
        let sentence = ground.posthaste(&[command, "ordres"]).fails(2);
        assert_eq!(sentence, "there is no queue \"ordres\": `posthaste queues` lists those there are");
        let sentence = ground.posthaste(&[command, "orders", "--partition", "2"]).fails(2);
        assert_eq!(sentence, "queue \"orders\" has no partition 2: the last one is 1");
    }
}
