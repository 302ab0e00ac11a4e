//! What can be wrong with a SQLite file.

use std::{
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use sqlx::{Connection, SqliteConnection};

use super::{diagnose, diagnose_by};
use crate::ground::{AnyPool, Ground, Server};

async fn migrated() -> Ground {
    let ground = Ground::empty(Server::Sqlite).await;
    ground.posthaste(&["migrate"]).succeeds();
    ground
}

fn file(ground: &Ground) -> PathBuf {
    PathBuf::from(ground.url.strip_prefix("sqlite://").unwrap())
}

async fn connect(ground: &Ground) -> SqliteConnection {
    SqliteConnection::connect(&ground.url).await.unwrap()
}

async fn journal_mode(ground: &Ground) -> String {
    sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut connect(ground).await).await.unwrap()
}

#[tokio::test]
async fn another_journal_is_found_and_left_alone() {
    let ground = migrated().await;
    ground.sql("PRAGMA journal_mode = DELETE").await;
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("journal-mode", "warning");
    assert!(summary.starts_with("the journal mode is \"delete\""), "{summary}");
    assert!(advice.contains("PRAGMA journal_mode = WAL"), "{advice}");
    diagnosis.finds_only("journal-mode");
    assert_eq!(journal_mode(&ground).await, "delete", "it only looks");
    ground.remove().await;
}

#[tokio::test]
async fn a_log_that_a_reader_keeps_from_being_emptied_is_found() {
    let ground = migrated().await;
    let mut reader = connect(&ground).await;
    let mut tx = reader.begin().await.unwrap();
    sqlx::raw_sql("SELECT * FROM posthaste_meta").fetch_all(&mut *tx).await.unwrap();
    ground.sql("CREATE TABLE filler (x BLOB)").await;
    for _ in 0..17 {
        ground.sql("INSERT INTO filler VALUES (zeroblob(4194304))").await;
    }
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("wal-size", "warning");
    assert!(
        summary.starts_with("the WAL has 68 MiB") || summary.starts_with("the WAL has 69 MiB"),
        "{summary}"
    );
    assert!(advice.contains("wal_checkpoint(TRUNCATE)"), "{advice}");
    diagnosis.finds_only("wal-size");
    // The file itself is larger now than what is read for its health.
    let (summary, advice) = diagnosis.only("integrity", "notice");
    assert!(
        summary.starts_with("not examined, because the file has ") && advice.contains("quick_check"),
        "{summary}"
    );
    assert!(!diagnosis.has_checked("integrity"));
    tx.rollback().await.unwrap();
    reader.close().await.unwrap();
    ground.sql("PRAGMA wal_checkpoint(TRUNCATE)").await;
    assert_eq!(diagnose(&ground, &[]).code, 0, "what is advised helps");
    ground.remove().await;
}

#[tokio::test]
async fn a_writer_who_keeps_the_others_waiting_is_found() {
    let ground = migrated().await;
    let mut writer = connect(&ground).await;
    let tx = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let diagnosis = diagnose(&ground, &["--long-transaction", "200ms"]);
    let (summary, _) = diagnosis.only("long-transaction", "warning");
    assert!(summary.starts_with("somebody has been writing for longer than 200ms"), "{summary}");
    diagnosis.finds_only("long-transaction");
    tx.rollback().await.unwrap();
    assert_eq!(diagnose(&ground, &["--long-transaction", "200ms"]).code, 0);
    writer.close().await.unwrap();
    ground.remove().await;
}

#[tokio::test]
async fn a_file_that_may_only_be_read_is_found() {
    let ground = migrated().await;
    let diagnosis = diagnose_by(&ground, &format!("{}?mode=ro", ground.url), &[]);
    let (summary, advice) = diagnosis.only("rights", "problem");
    assert!(summary.contains("test.db cannot be written to: "), "{summary}");
    assert!(advice.contains("take mode=ro"), "{advice}");
    diagnosis.finds_only("rights");
    assert!(!diagnosis.has_checked("long-transaction"), "nobody knows");
    ground.remove().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_folder_that_may_not_be_written_to_is_found() {
    use std::{
        fs::{Permissions, copy, set_permissions},
        os::unix::{fs::PermissionsExt, process::CommandExt},
        process::Command,
    };

    let ground = migrated().await;
    let file = file(&ground);
    let folder = file.parent().unwrap();
    // Root may write everywhere, so then it is run as somebody else, who may not even see where it was built.
    let (program, is_root) = (folder.join("posthaste"), nix::unistd::geteuid().is_root());
    copy(env!("CARGO_BIN_EXE_posthaste"), &program).unwrap();
    let allow = |mode| set_permissions(folder, Permissions::from_mode(mode)).unwrap();
    let keeps_it_open = connect(&ground).await;
    ground.sql("SELECT * FROM posthaste_meta").await;
    for name in ["test.db", "test.db-wal", "test.db-shm"] {
        set_permissions(folder.join(name), Permissions::from_mode(0o666)).unwrap();
    }
    allow(0o555);
    let mut command = Command::new(&program);
    command.args(["doctor", "--json"]).env("DATABASE_URL", &ground.url);
    if is_root {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    allow(0o755);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(report["findings"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["findings"][0]["code"], "rights");
    let summary = report["findings"][0]["summary"].as_str().unwrap();
    assert!(summary.starts_with("nothing can be made in the folder "), "{summary}");
    keeps_it_open.close().await.unwrap();
    ground.remove().await;
}

#[tokio::test]
async fn a_damaged_file_is_found() {
    let ground = migrated().await;
    ground.sql("CREATE TABLE filler (x BLOB); CREATE INDEX filler_x ON filler (x)").await;
    for n in 0..200 {
        ground.sql(&format!("INSERT INTO filler VALUES (zeroblob({}))", 1000 + n)).await;
    }
    ground.sql("PRAGMA wal_checkpoint(TRUNCATE)").await;
    // The last pages are the filler's, since everything else was there before.
    let mut file = std::fs::OpenOptions::new().write(true).open(file(&ground)).unwrap();
    file.seek(SeekFrom::End(-40_960)).unwrap();
    file.write_all(&[0x5a; 40_960]).unwrap();
    drop(file);
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("integrity", "problem");
    assert!(summary.starts_with("the file is damaged: "), "{summary}");
    assert!(advice.contains("restore a backup"), "{advice}");
    diagnosis.finds_only("integrity");
    ground.remove().await;
}

#[tokio::test]
async fn a_file_that_cannot_even_be_read_is_found_damaged() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 3] = [
        ("its second half is gone", |file| {
            let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2 / 4096 * 4096).unwrap();
        }),
        ("the list of tables is overwritten", |file| overwrite(file, 100, 300)),
        ("it is no database any more", |file| overwrite(file, 0, 100)),
    ];
    for (what, harm) in harms {
        let ground = migrated().await;
        ground.sql("PRAGMA wal_checkpoint(TRUNCATE)").await;
        let AnyPool::Sqlite(pool) = &ground.pool else { unreachable!() };
        pool.close().await;
        harm(&file(&ground));
        let diagnosis = diagnose(&ground, &[]);
        let (summary, advice) = diagnosis.only("integrity", "problem");
        assert!(summary.starts_with("the file is damaged: "), "{what}: {summary}");
        assert!(advice.contains("restore a backup"), "{advice}");
        diagnosis.finds_only("integrity");
        assert!(!diagnosis.has_checked("rights") || diagnosis.has_checked("schema"), "{what}: {diagnosis:?}");
    }
}

fn overwrite(file: &Path, place: u64, bytes: usize) {
    let mut file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(place)).unwrap();
    file.write_all(&vec![0x5a; bytes]).unwrap();
}

#[tokio::test]
async fn somebody_who_excludes_even_readers_is_found() {
    let ground = migrated().await;
    ground.sql("PRAGMA journal_mode = DELETE").await;
    let mut writer = connect(&ground).await;
    let tx = writer.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    let diagnosis = diagnose(&ground, &["--long-transaction", "200ms"]);
    let (summary, _) = diagnosis.only("long-transaction", "warning");
    assert!(summary.starts_with("somebody has been writing for longer than 200ms"), "{summary}");
    diagnosis.finds_only("long-transaction");
    let (summary, advice) = diagnosis.only("schema", "notice");
    assert_eq!(
        (summary, advice),
        ("not examined, because somebody else writes", "see long-transaction"),
        "{diagnosis:?}"
    );
    tx.rollback().await.unwrap();
    writer.close().await.unwrap();
    ground.remove().await;
}
