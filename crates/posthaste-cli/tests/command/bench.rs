//! `bench`: what it measures is not tested, but that it does, and leaves nothing behind.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{ground::Ground, posthaste::Posthaste, snapshots::assert_shape};

on_every_database!(it_measures_checks_and_clears_away, it_clears_away_when_it_is_interrupted);

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
    assert_eq!(ground.tables().await, before);
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
