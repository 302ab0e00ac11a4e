//! G12: the server goes down as in a crash, and comes back.

use std::process::Command;

use posthaste::{EnqueueMessage, Partitions};
use sqlx::{Connection, Pool};

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::Server,
    modes::{InMode, Mode, make_effects},
    stage::{Memory, SOON, assert_consistent, builder_on, settled, show_logs, within},
};

cases! {
    [leased, transactional, batch]:
        g12_after_a_crash_of_the_server_delivery_resumes (flavor = "multi_thread", worker_threads = 2)
            except(sqlite = "there is no server");
}

/// A server of this test's own.
struct OwnServer {
    xtask: std::ffi::OsString,
    folder: tempfile::TempDir,
}

impl OwnServer {
    fn xtask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.xtask);
        command.arg("servers").args(arguments).env("TMPDIR", self.folder.path());
        for database in ["POSTGRES", "MARIADB", "MYSQL"] {
            command.env_remove(format!("POSTHASTE_TEST_{database}_URL"));
        }
        let output = command.output().expect("xtask runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn start<S: Server>() -> (Self, String) {
        let xtask =
            std::env::var_os("POSTHASTE_XTASK").expect("POSTHASTE_XTASK is not set: run `cargo xtask test`");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir().expect("a folder");
        let server = Self { xtask, folder };
        let url =
            server.xtask(&["up", "--db", S::NAME]).split('\'').nth(1).expect("an URL in quotes").to_owned();
        (server, url)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        Command::new(&self.xtask).args(["servers", "down"]).env("TMPDIR", self.folder.path()).output().ok();
    }
}

async fn g12_after_a_crash_of_the_server_delivery_resumes<S: Server>(mode: Mode) {
    show_logs();
    let (server, url) = OwnServer::start::<S>();
    let pool = Pool::<S::Db>::connect_with(S::Db::options(&url)).await.unwrap();
    make_effects(&pool).await;
    let memory = Memory::new();
    let handle = builder_on(pool.clone())
        .queue("q", Partitions::of(4))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    let mut sent = 0;
    for round in 0..2_u32 {
        for n in 0..50 {
            handle
                .outbox()
                .enqueue(&pool, "q", EnqueueMessage::new("x").partition((n + round) % 4))
                .await
                .unwrap();
            sent += 1;
        }
        // Some of them are delivered, some are not.
        server.xtask(&["restart"]);
        <S::Db as sqlx::Database>::Connection::connect_with(&S::Db::options(&url)).await.expect("it answers");
        within(SOON, "all is settled", async || settled(&pool).await == sent).await;
        // And new messages are delivered without anybody's help.
        handle.outbox().enqueue(&pool, "q", EnqueueMessage::new("x")).await.unwrap();
        sent += 1;
        within(SOON, "all is settled", async || settled(&pool).await == sent).await;
    }
    handle.stop().await;
    let mut ids = memory.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), usize::try_from(sent).unwrap(), "each at least once");
    assert_consistent(&pool).await;
    mode.assert_effects(&pool).await;
    pool.close().await;
    drop(server);
}
