//! `migrate`, `queues`, `pause` and `resume`.

use posthaste::Partitions;
use serde_json::json;

use crate::{
    ground::{Ground, Server},
    snapshots::assert_shape,
};

on_every_database!(a_queue_is_listed_paused_and_resumed, a_queue_is_registered_once,);

mod on_an_empty_database {
    use super::the_tables_are_made_once_and_printed;
    crate::on_every_database!(empty: the_tables_are_made_once_and_printed);
}

async fn a_queue_is_registered_once(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    let done = ground.posthaste(&["register", "orders", "--partitions", "4", "--json"]).json();
    assert_eq!(done, json!({ "queue": "orders", "partitions": 4 }));
    let again = ground.posthaste(&["register", "orders", "--partitions", "4"]).succeeds();
    assert_eq!(again, "orders is registered, with 4 partitions\n");
    let sentence = ground.posthaste(&["register", "orders", "--partitions", "8"]).fails(2);
    assert_eq!(sentence, "queue \"orders\" is registered with 4 partitions, not 8: the number cannot change");
    let sentence = ground.posthaste(&["register", "a b", "--partitions", "8"]).fails(2);
    assert!(sentence.starts_with("\"a b\" is not a queue name"), "{sentence}");
    assert_eq!(ground.posthaste(&["register", "mails", "--partitions", "3"]).run().code, 2);
    assert_eq!(ground.posthaste(&["queues", "--json"]).json()["queues"].as_array().unwrap().len(), 1);
}

async fn a_queue_is_listed_paused_and_resumed(ground: &Ground) {
    ground.register("orders", Partitions::of(4)).await;
    let queues = ground.posthaste(&["queues", "--json"]).json();
    assert_shape("queues", &queues);
    assert_eq!(queues["queues"][0]["partitions"], 4);
    assert_eq!(queues["queues"][0]["is_paused"], false);

    let paused = ground.posthaste(&["pause", "orders", "--json"]).json();
    assert_eq!(paused, json!({ "queue": "orders", "is_paused": true }));
    let table = ground.posthaste(&["queues"]).succeeds();
    assert_eq!(
        table,
        "QUEUE   PARTITIONS  DEPTH  OLDEST  DEAD LETTERS  PAUSED\norders           4      0       -             0  yes\n"
    );
    ground.posthaste(&["resume", "orders"]).succeeds();
    assert_eq!(ground.posthaste(&["queues", "--json"]).json()["queues"][0]["is_paused"], false);

    for verb in ["pause", "resume"] {
        let sentence = ground.posthaste(&[verb, "ordres"]).fails(2);
        assert_eq!(sentence, "there is no queue \"ordres\": `posthaste queues` lists those there are");
    }
}

async fn the_tables_are_made_once_and_printed(ground: &Ground) {
    let sentence = ground.posthaste(&["queues"]).fails(1);
    assert!(sentence.contains("`posthaste migrate` makes them"), "{sentence}");
    for _ in 0..2 {
        let done = ground.posthaste(&["migrate"]).succeeds();
        assert!(done.starts_with("the tables are in place: posthaste_* in "), "{done}");
    }
    let none = ground.posthaste(&["queues"]).succeeds();
    assert!(none.starts_with("there are no queues yet: `posthaste register` makes one"), "{none}");
    assert_shape("migrate", &ground.posthaste(&["migrate", "--json"]).json());

    // What is printed makes the tables too, under another name.
    let sql = ground.posthaste(&["migrate", "--print", "--table-prefix", "other_"]).succeeds();
    let printed = ground.posthaste(&["migrate", "--print", "--table-prefix", "other_", "--json"]).json();
    assert_eq!(printed["sql"].as_str().unwrap().trim_end(), sql.trim_end());
    ground.posthaste(&["queues", "--table-prefix", "other_"]).fails(1);
    ground.sql(&sql).await;
    ground.posthaste(&["queues", "--table-prefix", "other_"]).succeeds();
    if ground.server != Server::Sqlite {
        let sentence = ground.posthaste(&["queues", "--schema", "nowhere_to_be_found"]).fails(1);
        assert!(
            sentence.contains("\"nowhere_to_be_found\": run `posthaste migrate`, or name another "),
            "{sentence}"
        );
    }
}
