//! What can be wrong with a MySQL or a MariaDB, as far as one database of a server shows it.

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};

use super::{diagnose, diagnose_by};
use crate::ground::Ground;

/// Stamps tests for both.
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        on_both!(@ mariadb Mariadb $($test),+);
        on_both!(@ mysql Mysql $($test),+);
    };
    (@ $module:ident $server:ident $($test:ident),+) => {
        mod $module {
            use crate::ground::{Ground, Server};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    let ground = Ground::empty(Server::$server).await;
                    ground.posthaste(&["migrate"]).succeeds();
                    super::$test(&ground).await;
                    ground.remove().await;
                }
            )+
        }
    };
}

on_both!(
    a_transaction_that_is_open_for_long_is_found,
    rights_that_are_missing_are_found,
    what_may_not_be_seen_is_said,
    tables_without_transactions_are_found,
    nobodys_lock_is_waited_for,
);

async fn connect(ground: &Ground) -> MySqlConnection {
    MySqlConnection::connect(&ground.url).await.unwrap()
}

async fn run(conn: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.unwrap();
}

fn database(ground: &Ground) -> &str {
    ground.url.rsplit('/').next().unwrap().split('?').next().unwrap()
}

/// A user of this test's own, with these rights; who it is in a URL.
async fn user(ground: &Ground, rights: &[&str]) -> (String, String) {
    // A name has at most 32 characters.
    let name = format!("u{}", database(ground).trim_start_matches("posthaste_cli_"));
    let name = name[..name.len().min(32)].to_owned();
    ground.sql(&format!("CREATE USER '{name}'@'%'")).await;
    for right in rights {
        ground.sql(&format!("GRANT {right} TO '{name}'@'%'")).await;
    }
    let (_, place) = ground.url.split_once('@').expect("a user in the URL");
    let url = format!("mysql://{name}@{place}");
    (name, url)
}

async fn a_transaction_that_is_open_for_long_is_found(ground: &Ground) {
    let mut conn = connect(ground).await;
    let id: i64 =
        sqlx::raw_sql("SELECT CAST(connection_id() AS SIGNED)").fetch_one(&mut conn).await.unwrap().get(0);
    run(&mut conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    let diagnosis = diagnose(ground, &["--long-transaction", "0s"]);
    // The list is the server's, so other tests may be in it.
    let found = diagnosis.of("long-transaction");
    let ours = found.iter().find(|(_, summary, _)| summary.starts_with(&format!("session {id} (user ")));
    let (severity, summary, advice) = ours.unwrap_or_else(|| panic!("{diagnosis:?}"));
    assert_eq!(*severity, "warning");
    assert!(
        summary.contains(&format!("database {:?}, Sleep) has a transaction open for ", database(ground))),
        "{summary}"
    );
    assert!(advice.starts_with(&format!("KILL {id} ends it")), "{advice}");
    assert_eq!(diagnose(ground, &[]).code, 0, "it is not so old yet");
    conn.close().await.unwrap();
}

async fn rights_that_are_missing_are_found(ground: &Ground) {
    let db = database(ground);
    let rights = [&*format!("SELECT, INSERT, UPDATE, DELETE ON {db}.*")];
    let (name, url) = user(ground, &rights).await;
    assert_eq!(diagnose_by(ground, &url, &[]).code, 0);
    ground.sql(&format!("REVOKE UPDATE, DELETE ON {db}.* FROM '{name}'@'%'")).await;
    let diagnosis = diagnose_by(ground, &url, &[]);
    assert_eq!(diagnosis.of("rights").len(), 9, "{diagnosis:?}");
    for (severity, summary, advice) in diagnosis.of("rights") {
        assert!(
            severity == "problem"
                && summary.starts_with(&format!("{name}@% lacks UPDATE, DELETE on {db}.posthaste_"))
        );
        ground.sql(advice).await;
    }
    diagnosis.finds_only("rights");
    assert_eq!(diagnose_by(ground, &url, &[]).code, 0, "what is advised helps");
    ground.sql(&format!("DROP USER '{name}'@'%'")).await;
}

async fn what_may_not_be_seen_is_said(ground: &Ground) {
    let db = database(ground);
    let (name, url) = user(ground, &[&format!("SELECT, INSERT, UPDATE, DELETE ON {db}.*")]).await;
    let diagnosis = diagnose_by(ground, &url, &["--long-transaction", "0s"]);
    for code in ["long-transaction", "history"] {
        let (summary, advice) = diagnosis.only(code, "notice");
        assert_eq!(summary, "not examined, because this user may not see what others do");
        assert!(advice.contains("GRANT PROCESS ON *.*"), "{advice}");
        assert!(!diagnosis.has_checked(code));
    }
    assert_eq!(diagnosis.code, 0);
    ground.sql(&format!("GRANT PROCESS ON *.* TO '{name}'@'%'")).await;
    let diagnosis = diagnose_by(ground, &url, &[]);
    assert!(diagnosis.has_checked("long-transaction") && diagnosis.has_checked("history"), "{diagnosis:?}");
    ground.sql(&format!("DROP USER '{name}'@'%'")).await;
}

async fn tables_without_transactions_are_found(ground: &Ground) {
    ground.sql("ALTER TABLE posthaste_cursor ENGINE = MyISAM").await;
    let diagnosis = diagnose(ground, &[]);
    let (summary, advice) = diagnosis.only("engine", "problem");
    assert!(summary.starts_with("posthaste_cursor is of engine \"MyISAM\", not InnoDB"), "{summary}");
    assert!(advice.contains(".`posthaste_cursor` ENGINE = InnoDB"), "{advice}");
    diagnosis.finds_only("engine");
}

async fn nobodys_lock_is_waited_for(ground: &Ground) {
    let mut conn = connect(ground).await;
    run(&mut conn, "LOCK TABLES posthaste_meta WRITE, posthaste_incoming WRITE").await;
    let diagnosis = diagnose(ground, &[]);
    for code in ["schema", "rights"] {
        let (summary, advice) = diagnosis.only(code, "warning");
        assert!(
            summary.starts_with("not examined, because ") && advice.contains("a lock"),
            "{summary} {advice}"
        );
    }
    assert!(diagnosis.has_checked("clock"), "{diagnosis:?}");
    conn.close().await.unwrap();
}
