//! `dead-letters`.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::Partitions;
use serde_json::{Value, json};

use crate::{
    ground::{AnyPool, Ground, Server},
    handlers::Judge,
    snapshots::assert_shape,
    terminal::OnTerminal,
};

on_every_database!(
    rejected_messages_are_listed_and_shown,
    what_is_redelivered_is_delivered_again,
    what_is_discarded_is_cleaned_up,
    what_is_rejected_again_at_once_is_not_redelivered_again,
    many_are_dealt_with_page_by_page,
    two_at_once_never_send_the_same_back,
    named_ones_are_all_taken_or_none,
    what_makes_no_sense_is_refused,
    people_are_asked_before_anything_is_thrown_away,
    what_comes_while_somebody_is_asked_is_left_alone,
);

impl Ground {
    /// Enqueues messages that are rejected, and waits until they are dead letters.
    async fn reject(&self, queue: &str, count: u32) -> Judge {
        let judge = Judge::strict();
        let workers = self.deliver(queue, Partitions::of(2), judge.clone()).await;
        self.enqueue_all(queue, (0..count).map(|n| format!("bad {n}"))).await;
        self.eventually("all are rejected", || {
            self.letters(&["--queue", queue, "--status", "pending"]) >= count
        });
        workers.stop().await;
        judge
    }

    /// How many there are, as a page of the list has them.
    fn letters(&self, which: &[&str]) -> u32 {
        let list = self.posthaste(&[&["dead-letters", "list", "--json", "-n", "10000"], which].concat());
        u32::try_from(list.json()["dead_letters"].as_array().unwrap().len()).unwrap()
    }

    /// One of the commands that change dead letters.
    fn change(&self, verb: &str, arguments: &[&str]) -> Value {
        self.posthaste(&[&["dead-letters", verb, "--json"], arguments].concat()).json()
    }
}

fn ids(list: &Value) -> Vec<i64> {
    list["dead_letters"].as_array().unwrap().iter().map(|letter| letter["id"].as_i64().unwrap()).collect()
}

async fn rejected_messages_are_listed_and_shown(ground: &Ground) {
    let none = ground.posthaste(&["migrate"]).succeeds();
    assert!(none.starts_with("the tables are in place"));
    assert_eq!(
        ground.posthaste(&["dead-letters", "list"]).succeeds(),
        "there are no dead letters that fit\n"
    );
    let judge = Judge::strict();
    let workers = ground.deliver("orders", Partitions::of(2), judge).await;
    ground
        .posthaste(&[
            "enqueue",
            "orders",
            "bad\u{202e}",
            "--key",
            "k\x1b[2J",
            "--header",
            "a=\x07",
            "--type",
            "t",
        ])
        .succeeds();
    ground.posthaste(&["enqueue", "orders", "bad {}"]).succeeds();
    ground.eventually("both are rejected", || ground.letters(&[]) == 2);
    workers.stop().await;

    let list = ground.posthaste(&["dead-letters", "list", "--json"]).json();
    assert_shape("dead-letters-list", &list);
    let first = &list["dead_letters"][0];
    assert_eq!((&first["payload"], &first["encoding"]), (&json!("bad\u{202e}"), &json!("text")));
    assert_eq!((&first["status"], &first["attempts"]), (&json!("pending"), &json!(1)));
    assert_eq!(first["headers"], json!([{ "name": "a", "value": "\u{7}" }]));

    let table = ground.posthaste(&["dead-letters", "list"]).succeeds();
    assert!(table.starts_with("ID  QUEUE   PARTITION  SEQ  KEY"), "{table}");
    assert!(table.contains("cannot read \\u{1b}[2Jbad"), "{table}");
    let id = first["id"].to_string();
    let shown = ground.posthaste(&["dead-letters", "show", &id]).succeeds();
    for line in [
        &*format!("id         {id}\n"),
        "queue      orders\n",
        "key        k\\u{1b}[2J\n",
        "type       t\n",
        "attempts   1\n",
        "reason     cannot read \\u{1b}[2Jbad\\u{202e}\n",
        "header     a = \\u{7}\n",
        "payload    bad\\u{202e}\n",
    ] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    assert!(
        [&table, &shown].iter().all(|text| !text.contains(['\x1b', '\x07', '\u{202e}'])),
        "{table}{shown}"
    );
    assert_eq!(ground.posthaste(&["dead-letters", "show", &id, "--json"]).json(), *first);
    let hex = ground.posthaste(&["dead-letters", "show", &id, "--format", "hex"]).succeeds();
    assert!(hex.ends_with("payload    626164e280ae\n"), "{hex}");

    let sentence = ground.posthaste(&["dead-letters", "show", "-1"]).fails(1);
    assert!(sentence.starts_with("there is no dead letter -1: "), "{sentence}");
    let sentence = ground.posthaste(&["dead-letters", "show", "999"]).fails(1);
    assert!(sentence.starts_with("there is no dead letter 999: "), "{sentence}");
    for (which, count) in [
        (&["--key", "k\x1b[2J"][..], 1),
        (&["--key", "other"], 0),
        (&["--type", "t"], 1),
        (&["--status", "pending"], 2),
        (&["--status", "resolved"], 0),
        (&["--reason", "bad {}"], 1),
        (&["--older-than", "1h"], 0),
        (&["--queue", "orders", "--partition", "0", "--reason", "{}"], 1),
        (&["--id", &id], 1),
        (&["--id", "-5"], 0),
        (&["--after", "-1"], 2),
        (&["--after", &id], 1),
    ] {
        assert_eq!(ground.letters(which), count, "{which:?}");
    }
}

async fn what_is_redelivered_is_delivered_again(ground: &Ground) {
    let judge = ground.reject("orders", 3).await;
    let dry = ground.change("redeliver", &["--queue", "orders", "--dry-run"]);
    assert_shape("dead-letters-dry-run", &dry);
    let pending = ground.posthaste(&["dead-letters", "list", "--json"]).json();
    assert_eq!(dry["ids"], json!(ids(&pending)));
    assert_eq!((&dry["matched"], &dry["changed"]), (&json!(3), &json!(0)));
    let said = ground.posthaste(&["dead-letters", "redeliver", "--all", "--dry-run", "-n", "2"]).succeeds();
    assert!(said.starts_with("would redeliver 2 dead letters:\nID "), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
    assert_eq!(ground.letters(&["--status", "pending"]), 3, "a dry run changes nothing");

    judge.relent();
    let workers = ground.deliver("orders", Partitions::of(2), judge).await;
    let done = ground.change("redeliver", &["--queue", "orders"]);
    assert_shape("dead-letters-redeliver", &done);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(3), &json!(3)));
    ground.eventually("all are delivered", || {
        ground.posthaste(&["status", "--json"]).json()["queues"][0]["partitions"][0]["cursor_seq"] == 6
    });
    workers.stop().await;
    let resolved = ground.posthaste(&["dead-letters", "list", "--status", "resolved", "--json"]).json();
    assert_eq!(ids(&resolved), ids(&pending));
    assert_eq!(
        resolved["dead_letters"][0]["redelivered_as"], done["redelivered"][0]["redelivered_as"],
        "{done}"
    );
    let again = ground.posthaste(&["dead-letters", "redeliver", "--all"]).succeeds();
    assert_eq!(again, "there are no dead letters that fit: nothing to redeliver\n");
}

async fn what_is_discarded_is_cleaned_up(ground: &Ground) {
    ground.reject("orders", 3).await;
    let sentence = ground.posthaste(&["dead-letters", "discard", "--all"]).fails(2);
    assert!(sentence.contains("say --yes"), "{sentence}");
    assert_eq!(ground.letters(&["--status", "pending"]), 3);
    let one = ground.posthaste(&["dead-letters", "discard", "--all", "--yes", "-n", "1"]).succeeds();
    assert_eq!(one, "discarded 1 dead letter\n");
    ground.posthaste(&["dead-letters", "redeliver", "--all", "-n", "1"]).succeeds();

    let would = ground.posthaste(&["dead-letters", "cleanup", "--all", "--dry-run"]).succeeds();
    assert!(would.starts_with("would delete 2 dead letters:\n"), "{would}");
    assert!(would.contains("discarded") && would.contains("resolved"), "{would}");
    let old = ground.change("cleanup", &["--unchanged-for", "1h", "--yes"]);
    assert_eq!((&old["matched"], &old["changed"]), (&json!(0), &json!(0)));
    let done = ground.change("cleanup", &["--status", "resolved", "--yes"]);
    assert_shape("dead-letters-cleanup", &done);
    assert_eq!(done["changed"], 1);
    let done = ground.posthaste(&["dead-letters", "cleanup", "--all", "-y"]).succeeds();
    assert_eq!(done, "deleted 1 dead letter\n");
    assert_eq!((ground.letters(&[]), ground.letters(&["--status", "pending"])), (1, 1));
}

async fn what_is_rejected_again_at_once_is_not_redelivered_again(ground: &Ground) {
    let judge = ground.reject("orders", 250).await;
    let workers = ground.deliver("orders", Partitions::of(2), judge).await;
    let done = ground.change("redeliver", &["--all"]);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(250), &json!(250)));
    ground.eventually("all are rejected again", || ground.letters(&["--status", "pending"]) == 250);
    workers.stop().await;
    assert_eq!(ground.letters(&[]), 500, "each was sent back once");
}

async fn many_are_dealt_with_page_by_page(ground: &Ground) {
    ground.reject("orders", 250).await;
    let page = ground.posthaste(&["dead-letters", "list", "--json"]).json();
    let (first, last) = (ids(&page), page["next_after"].to_string());
    assert_eq!((first.len(), first.last().unwrap().to_string()), (100, last.clone()));
    let table = ground.posthaste(&["dead-letters", "list"]).succeeds();
    assert!(table.ends_with(&format!("there are more: the next page is --after {last}\n")), "{table}");
    let rest = ground.posthaste(&["dead-letters", "list", "-n", "150", "--after", &last, "--json"]).json();
    assert_eq!((ids(&rest).len(), &rest["next_after"]), (150, &json!(null)));
    assert!(ids(&rest).iter().all(|id| !first.contains(id)));

    let would = ground.posthaste(&["dead-letters", "discard", "--all", "--dry-run"]).succeeds();
    assert!(would.ends_with("\n… and 240 more\n"), "{would}");
    let some = ground.change("discard", &["--queue", "orders", "-n", "120", "--yes"]);
    assert_eq!((&some["matched"], &some["changed"]), (&json!(120), &json!(120)));
    let left = ground.posthaste(&["dead-letters", "list", "--status", "pending", "-n", "1", "--json"]).json();
    assert_eq!(ids(&left), [ids(&rest)[20]], "the oldest were taken first");
    let said = ground.posthaste(&["dead-letters", "discard", "--all", "--yes"]).succeeds();
    assert_eq!(said, "discarded 130 dead letters\n");
    let said = ground.posthaste(&["dead-letters", "cleanup", "--all", "--yes"]).succeeds();
    assert_eq!(said, "deleted 250 dead letters\n");
    assert_eq!(ground.count("posthaste_dead_letter").await, 0);
}

async fn two_at_once_never_send_the_same_back(ground: &Ground) {
    ground.reject("orders", 250).await;
    let redeliver = ["dead-letters", "redeliver", "--all", "--json"];
    let both = [(); 2].map(|()| ground.posthaste(&redeliver).start());
    let changed = both.map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        done["changed"].as_u64().unwrap()
    });
    assert_eq!(changed.iter().sum::<u64>(), 250, "{changed:?}");
    assert_eq!((ground.letters(&["--status", "resolved"]), ground.letters(&[])), (250, 250));
}

async fn named_ones_are_all_taken_or_none(ground: &Ground) {
    ground.reject("orders", 3).await;
    let all = ids(&ground.posthaste(&["dead-letters", "list", "--json"]).json());
    let [first, second, third] = [0, 1, 2].map(|n| all[n].to_string());
    ground.posthaste(&["dead-letters", "discard", "--id", &first, "--yes"]).succeeds();
    for dry_run in [&[][..], &["--dry-run"]] {
        let arguments =
            ["dead-letters", "redeliver", "--id", &second, "--id", &first, "--id", "99999", "--id", &third];
        let sentence = ground.posthaste(&[&arguments, dry_run].concat()).fails(1);
        let expected =
            format!("dead letters {first}, 99999 are not there, not pending, or somebody is at them");
        assert!(sentence.starts_with(&expected), "{sentence}");
        assert_eq!(ground.letters(&["--status", "pending"]), 2);
    }
    let done = ground.change("redeliver", &["--id", &third, "--id", &second, "--id", &third]);
    let sent = done["redelivered"].as_array().unwrap();
    assert_eq!(sent.iter().map(|sent| sent["id"].to_string()).collect::<Vec<_>>(), [second, third]);
}

async fn what_makes_no_sense_is_refused(ground: &Ground) {
    ground.register("orders", Partitions::of(2)).await;
    for verb in ["redeliver", "discard", "cleanup"] {
        let sentence = ground.posthaste(&["dead-letters", verb, "--yes"]).fails(2);
        assert!(sentence.starts_with("which dead letters are to be "), "{sentence}");
        let sentence = ground.posthaste(&["dead-letters", verb, "--yes", "-n", "5"]).fails(2);
        assert!(sentence.contains("Say --all"), "{sentence}");
    }
    for (arguments, says) in [
        (
            &["redeliver", "--status", "resolved"][..],
            "dead letters that are resolved cannot be redelivered: they must be pending",
        ),
        (
            &["cleanup", "--status", "pending", "--yes"],
            "dead letters that are pending cannot be deleted: they must be resolved or discarded",
        ),
        (&["discard", "--all"], "discard asks first, and here is no terminal to ask on: "),
        (&["list", "--queue", "ordres"], "there is no queue \"ordres\": "),
        (&["redeliver", "--queue", "ordres"], "there is no queue \"ordres\": "),
        (&["list", "--queue", "orders", "--partition", "2"], "queue \"orders\" has no partition 2: "),
        (&["list", "--key", ""], "a key of 0 bytes is not valid: "),
        (&["list", "--reason", ""], "a text of 0 bytes to look for in reasons: "),
        (&["list", "--type", "ä"], "\"ä\" is not a payload type: "),
    ] {
        let sentence = ground.posthaste(&[&["dead-letters"], arguments].concat()).fails(2);
        assert!(sentence.starts_with(says), "{arguments:?}: {sentence}");
    }
    for arguments in [
        &["list", "-n", "0"][..],
        &["list", "-n", "10001"],
        &["redeliver", "--id", "1", "-n", "1"],
        &["list", "--older-than", "-1h"],
        &["show"],
        &["show", "one"],
    ] {
        let ran = ground.posthaste(&[&["dead-letters"], arguments].concat()).run();
        assert_eq!((ran.code, &*ran.out), (2, ""), "{ran:?}");
    }
}

async fn people_are_asked_before_anything_is_thrown_away(ground: &Ground) {
    ground.reject("orders", 2).await;
    let ask = |arguments: &[&str], answer: &str| {
        let arguments = [&["dead-letters"], arguments].concat();
        let mut process = OnTerminal::start(ground.posthaste(&arguments));
        process.until("[y/N] ");
        process.types(answer);
        process.ends()
    };
    for answer in ["n\n", "\n", "yo\n", "\x04"] {
        let (code, shown) = ask(&["discard", "--queue", "orders"], answer);
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains("Discard 2 dead letters of orders? [y/N] "), "{shown}");
        assert!(shown.contains("posthaste: nothing was changed"), "{shown}");
    }
    assert_eq!(ground.letters(&["--status", "pending"]), 2);
    let (code, shown) = ask(&["discard", "--all"], "YES\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("discarded 2 dead letters"), "{shown}");
    let (code, shown) = ask(&["cleanup", "--all"], "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("Delete 2 dead letters? [y/N] "), "{shown}");
    assert_eq!(ground.letters(&[]), 0);
}

async fn what_comes_while_somebody_is_asked_is_left_alone(ground: &Ground) {
    let judge = ground.reject("orders", 4).await;
    let mut process = OnTerminal::start(ground.posthaste(&["dead-letters", "discard", "--all"]));
    process.until("Discard 4 dead letters? [y/N] ");
    ground.posthaste(&["dead-letters", "discard", "--all", "--yes", "-n", "2"]).succeeds();
    let workers = ground.deliver("orders", Partitions::of(2), judge).await;
    ground.enqueue_all("orders", (4..6).map(|n| format!("bad {n}"))).await;
    ground.eventually("they are rejected", || ground.letters(&["--status", "pending"]) == 4);
    workers.stop().await;
    process.types("y\n");
    let (code, shown) = process.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("discarded 2 dead letters; somebody else was at 2 more"), "{shown}");
    assert_eq!(ground.letters(&["--status", "pending"]), 2, "nobody was asked about these");

    // Nor is it deleted if it was discarded meanwhile, however old it is.
    let mut process = OnTerminal::start(ground.posthaste(&["dead-letters", "cleanup", "--all"]));
    process.until("Delete 4 dead letters? [y/N] ");
    ground.posthaste(&["dead-letters", "cleanup", "--all", "--yes", "-n", "2"]).succeeds();
    ground.posthaste(&["dead-letters", "discard", "--all", "--yes"]).succeeds();
    process.types("y\n");
    let (code, shown) = process.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("deleted 2 dead letters; somebody else was at 2 more"), "{shown}");
    assert_eq!(ground.letters(&["--status", "discarded"]), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_interrupted_finishes_its_page_and_says_how_far_it_got_on_postgres() {
    let ground = Ground::migrated(Server::Postgres).await;
    ground.reject("orders", 250).await;
    let held = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$; \
                CREATE TRIGGER hold BEFORE UPDATE ON posthaste_dead_letter FOR EACH ROW \
                WHEN (NEW.seq = 150) EXECUTE FUNCTION hold()";
    ground.sql(held).await;
    let AnyPool::Postgres(pool) = &ground.pool else { unreachable!() };
    let mut holder = pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *holder).await.unwrap();
    let mut process = ground.posthaste(&["dead-letters", "discard", "--all", "--yes"]).start();
    let waits = "SELECT count(*) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'";
    let began = std::time::Instant::now();
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(pool).await.unwrap() == 0 {
        assert!(began.elapsed().as_secs() < 60, "it never came to the second page");
    }
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGINT).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(process.try_wait().unwrap(), None, "it finishes what it has begun");
    holder.rollback().await.unwrap();
    let ended = process.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(
        String::from_utf8(ended.stderr).unwrap(),
        "discarded 200 of 250 dead letters, then it ended\nposthaste: interrupted before it was done\n"
    );
    assert_eq!(ground.letters(&["--status", "discarded"]), 200);
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_asked_can_walk_away() {
    let ground = Ground::migrated(Server::Sqlite).await;
    ground.reject("orders", 1).await;
    let mut process = OnTerminal::start(ground.posthaste(&["dead-letters", "discard", "--all"]));
    process.until("[y/N] ");
    process.interrupt();
    let (code, shown) = process.ends();
    assert_eq!(code, Some(130), "{shown}");
    assert_eq!(ground.letters(&["--status", "pending"]), 1);
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_half_way_says_how_far_it_got() {
    let ground = Ground::migrated(Server::Sqlite).await;
    ground.reject("orders", 150).await;
    ground
        .sql(
            "CREATE TRIGGER stop BEFORE UPDATE ON posthaste_dead_letter \
             WHEN NEW.id > 100 BEGIN SELECT RAISE(ABORT, 'enough of it'); END",
        )
        .await;
    let ran = ground.posthaste(&["dead-letters", "discard", "--all", "--yes"]).run();
    assert_eq!((ran.code, &*ran.out), (1, ""), "{ran:?}");
    assert_eq!(
        ran.err,
        "discarded 100 of 150 dead letters, then it ended\nposthaste: the database says: enough of it\n"
    );
    assert_eq!(ground.letters(&["--status", "discarded"]), 100);
    ground.remove().await;
}

/// Some of them change while it is at others.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_there_at_first_is_redelivered() {
    let ground = Ground::migrated(Server::Sqlite).await;
    ground.reject("orders", 150).await;
    ground
        .sql(
            "CREATE TRIGGER others AFTER UPDATE ON posthaste_dead_letter WHEN NEW.id = 1 BEGIN \
             UPDATE posthaste_dead_letter SET changed_at = NEW.changed_at WHERE id > 120; END",
        )
        .await;
    let said = ground.posthaste(&["dead-letters", "redeliver", "--all"]).succeeds();
    assert_eq!(said, "redelivered 120 dead letters; somebody else was at 30 more\n");
    let left = ground.posthaste(&["dead-letters", "list", "--status", "pending", "--json"]).json();
    assert_eq!(ids(&left), (121..=150).collect::<Vec<_>>());
    assert_eq!(ground.letters(&["--status", "resolved"]), 120);
    ground.remove().await;
}
