//! What goes wrong before anything is done: one sentence, the right exit code, and no secret.

use crate::{
    ground::{Ground, Server},
    posthaste::Posthaste,
};

#[test]
fn a_file_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let sentence = Posthaste::new(&["status"]).in_folder(folder.path()).fails(3);
    assert!(sentence.starts_with("there is no database file posthaste.db: "), "{sentence}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_url_that_cannot_be_is_refused_without_being_repeated() {
    for url in
        ["oracle://scott:tiger@db/x", "tiger", "", "postgres://scott:tiger@db:x/y", "mysql://scott:tiger@:x"]
    {
        let sentence = Posthaste::new(&["status", "--database-url", url]).fails(2);
        assert!(sentence.starts_with("the database URL ") && !sentence.contains("tiger"), "{sentence}");
    }
}

#[test]
fn a_database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite:shop?mode=memory&cache=shared"] {
        let sentence = Posthaste::new(&["migrate", "--database-url", url]).fails(2);
        assert!(sentence.ends_with("name a file"), "{sentence}");
    }
}

#[test]
fn nobody_there() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://scott:tiger@127.0.0.1:{port}/shop");
        let sentence = Posthaste::new(&["status"]).env("DATABASE_URL", &url).fails(3);
        assert!(sentence.starts_with("the database is out of reach: "), "{sentence}");
        assert!(!sentence.contains("tiger"), "{sentence}");
    }
}

#[test]
fn somebody_there_who_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://scott:tiger@{}/shop", silent.local_addr().unwrap());
        let sentence =
            Posthaste::new(&["status", "--connect-timeout", "300ms"]).env("DATABASE_URL", &url).fails(3);
        assert_eq!(sentence, "the database is out of reach: no answer within 300ms");
    }
}

on_every_database!(a_database_that_is_not_there, tables_of_a_later_version);

async fn a_database_that_is_not_there(ground: &Ground) {
    let url = ground.url.replace("posthaste_cli_", "nothing_").replace("test.db", "nothing.db");
    let sentence = ground.posthaste(&["status"]).env("DATABASE_URL", &url).fails(3);
    let expected = if ground.server == Server::Sqlite {
        "there is no database file"
    } else {
        "the database does not let us in"
    };
    assert!(sentence.starts_with(expected), "{sentence}");
}

async fn tables_of_a_later_version(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    ground.sql("UPDATE posthaste_meta SET schema_version = 900, least_library = 800").await;
    for command in [
        &["queues"][..],
        &["peek", "orders"],
        &["tail", "orders"],
        &["enqueue", "orders", "x"],
        &["dead-letters", "list"],
        &["dead-letters", "redeliver", "--all"],
        &["migrate"],
    ] {
        let sentence = ground.posthaste(command).fails(1);
        let expected =
            "the outbox's tables have version 900, which needs a posthaste for version 800 or later";
        assert!(sentence.starts_with(expected), "{command:?}: {sentence}");
    }
}

/// The same server, as somebody else. Without its parameters: MySQL takes no password over a connection for which they say no TLS.
fn as_user(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let server = rest.split_once('@').map_or(rest, |(_, server)| server);
    let server = server.split_once('?').map_or(server, |(server, _)| server);
    format!("{scheme}://{user}:{password}@{server}")
}

fn is_kept_out(ground: &Ground, user: &str) {
    let url = as_user(&ground.url, user, "tiger");
    for command in [&["queues"][..], &["tail", "orders"], &["enqueue", "orders", "x"], &["migrate"]] {
        let sentence = ground.posthaste(command).env("DATABASE_URL", &url).fails(3);
        assert!(sentence.starts_with("the database does not let us in: "), "{sentence}");
        assert!(!sentence.contains("tiger"), "{sentence}");
    }
}

/// A name for a user that nobody has, not even a test that failed.
fn new_name() -> String {
    format!("cli_{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos())
}

async fn a_wrong_password_on(server: Server) {
    let ground = Ground::fresh(server).await;
    let user = new_name();
    ground.sql(&format!("CREATE USER {user} IDENTIFIED BY 'right'")).await;
    is_kept_out(&ground, &user);
    ground.sql(&format!("DROP USER {user}")).await;
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_on_mysql() {
    a_wrong_password_on(Server::Mysql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_on_mariadb() {
    a_wrong_password_on(Server::Mariadb).await;
}

/// A server may be set up to ask nobody for a password; a role that cannot log in is kept out all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_log_in_on_postgres() {
    let ground = Ground::fresh(Server::Postgres).await;
    let role = new_name();
    ground.sql(&format!("CREATE ROLE {role} NOLOGIN")).await;
    is_kept_out(&ground, &role);
    ground.sql(&format!("DROP ROLE {role}")).await;
    is_kept_out(&ground, &role);
    ground.remove().await;
}
