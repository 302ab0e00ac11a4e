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

on_every_database!(a_database_that_is_not_there);

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
