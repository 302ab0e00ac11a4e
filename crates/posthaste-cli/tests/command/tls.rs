//! TLS to the server is as the URL says: what it demands is had, or the command does not go on.

use crate::ground::{Ground, Server};

/// The same URL with another way to encrypt.
fn with(url: &str, mode: &str) -> String {
    let base = url.split('?').next().unwrap_or(url);
    format!("{base}?{mode}")
}

/// A server that has none.
async fn what_the_server_does_not_have_is_not_done_without(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    let name = if ground.server == Server::Postgres { "sslmode=require" } else { "ssl-mode=REQUIRED" };
    let sentence = ground.posthaste(&["queues"]).env("DATABASE_URL", &with(&ground.url, name)).fails(3);
    assert!(sentence.contains("server does not support TLS"), "{sentence}");
    let name = if ground.server == Server::Postgres { "sslmode=prefer" } else { "ssl-mode=PREFERRED" };
    ground.posthaste(&["queues"]).env("DATABASE_URL", &with(&ground.url, name)).succeeds();
}

/// A server that has it, and a user who is let in by no other way.
async fn what_the_url_demands_is_had(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    let user = format!("tls_{}", std::process::id());
    ground.sql(&format!("CREATE USER {user} IDENTIFIED BY 'opensesame' REQUIRE SSL")).await;
    ground.sql(&format!("GRANT ALL ON *.* TO {user}")).await;
    let url = |mode: &str| with(&ground.url.replace("posthaste@", &format!("{user}:opensesame@")), mode);
    let run = |mode: &str| ground.posthaste(&["queues"]).env("DATABASE_URL", &url(mode));

    let sentence = run("ssl-mode=DISABLED").fails(2);
    assert!(sentence.starts_with("the server takes no password that is not encrypted"), "{sentence}");
    run("ssl-mode=REQUIRED").succeeds();
    let sentence = run("ssl-mode=VERIFY_CA").fails(3);
    assert!(sentence.contains("UnknownIssuer"), "{sentence}");
    // The server has made itself an authority, which is in its folder.
    let folder: String = match &ground.pool {
        crate::ground::AnyPool::MySql(pool) => {
            sqlx::query_scalar("SELECT @@datadir").fetch_one(pool).await.unwrap()
        }
        _ => unreachable!("these are tests of MySQL"),
    };
    run(&format!("ssl-mode=VERIFY_CA&ssl-ca={folder}ca.pem")).succeeds();
    ground.sql(&format!("DROP USER {user}")).await;
}

mod postgres {
    use super::{Ground, Server, what_the_server_does_not_have_is_not_done_without};

    #[tokio::test]
    async fn tls_is_demanded_of_a_server_that_has_none() {
        let ground = Ground::empty(Server::Postgres).await;
        what_the_server_does_not_have_is_not_done_without(&ground).await;
        ground.remove().await;
    }
}

mod mariadb {
    use super::{Ground, Server, what_the_server_does_not_have_is_not_done_without};

    #[tokio::test]
    async fn tls_is_demanded_of_a_server_that_has_none() {
        let ground = Ground::empty(Server::Mariadb).await;
        what_the_server_does_not_have_is_not_done_without(&ground).await;
        ground.remove().await;
    }
}

mod mysql {
    use super::{Ground, Server, what_the_url_demands_is_had};

    #[tokio::test]
    async fn tls_is_demanded_of_a_server_that_has_it() {
        let ground = Ground::empty(Server::Mysql).await;
        what_the_url_demands_is_had(&ground).await;
        ground.remove().await;
    }
}
