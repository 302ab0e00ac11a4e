//! `bench`: what it measures is not tested, but that it does, and leaves nothing behind.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    ground::{AnyPool, Ground, Server},
    posthaste::Posthaste,
    snapshots::assert_shape,
};

on_every_database!(empty: it_measures_checks_and_clears_away, it_clears_away_when_it_is_interrupted);

async fn it_measures_checks_and_clears_away(ground: &Ground) {
    let before = ground.tables().await;
    let measured = ground
        .posthaste(&["bench", "--seconds", "1", "--producers", "2", "--partitions", "4", "--json"])
        .json();
    assert_shape("bench", &measured);
    assert_eq!(measured["ok"], true, "{measured}");
    assert!(measured["messages"].as_u64() > Some(0) && measured["p50_ms"].as_f64() > Some(0.0), "{measured}");
    assert_eq!(ground.tables().await, before);
}

async fn it_clears_away_when_it_is_interrupted(ground: &Ground) {
    let before = ground.tables().await;
    let child = ground.posthaste(&["bench", "--seconds", "60"]).start();
    let mut there = before.clone();
    while there == before {
        there = ground.tables().await;
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(ground.tables().await, before, "{ended:?}");
}

#[test]
fn names_for_its_tables_are_refused() {
    let sentence = Posthaste::new(&["bench", "--table-prefix", "shop_"]).fails(2);
    assert!(sentence.ends_with("leave out --table-prefix"), "{sentence}");
}

#[test]
fn without_a_database_it_uses_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let text = Posthaste::new(&["bench", "--seconds", "1"]).in_folder(folder.path()).run();
    assert_eq!(text.code, 0, "{text:?}");
    assert!(
        text.out.contains("throughput") && text.out.contains("0 missing, 0 twice, 0 out of order"),
        "{text:?}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_would_take_all_memory_is_refused() {
    let sentence =
        Posthaste::new(&["bench", "--producers", "64", "--batch", "10000", "--payload", "1048576"]).fails(2);
    assert!(sentence.ends_with("the limit is 268435456"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_it_is_interrupted_again_it_says_what_remains_on_postgres() {
    let ground = Ground::empty(Server::Postgres).await;
    let child = ground.posthaste(&["bench", "--seconds", "60"]).start();
    let mut tables = Vec::new();
    while tables.len() < 8 {
        tables = ground.tables().await;
    }
    let AnyPool::Postgres(pool) = &ground.pool else { unreachable!() };
    let mut holder = pool.begin().await.unwrap();
    let held = sqlx::AssertSqlSafe(format!("LOCK TABLE {} IN ACCESS SHARE MODE", tables[0]));
    sqlx::raw_sql(held).execute(&mut *holder).await.unwrap();
    let interrupt = || kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    interrupt();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND wait_event_type = 'Lock' AND query LIKE 'DROP TABLE%'";
    let began = std::time::Instant::now();
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(pool).await.unwrap() == 0 {
        assert!(began.elapsed().as_secs() < 60, "it never came to remove its tables");
    }
    interrupt();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    holder.rollback().await.unwrap();
    // What it says to do does it, whether or not the server has gone on with what it was asked.
    let said = String::from_utf8(ended.stderr).unwrap();
    let removal: String = said.lines().filter(|line| line.starts_with("DROP TABLE ")).collect();
    ground.sql(&removal).await;
    assert_eq!(ground.tables().await, Vec::<String>::new());
    ground.remove().await;
}
