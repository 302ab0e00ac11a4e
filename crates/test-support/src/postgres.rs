//! PostgreSQL copies databases: `CREATE DATABASE … TEMPLATE`.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{fresh_name, url::with_database};

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("the server answers")
}

async fn run(conn: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn exists(conn: &mut PgConnection, name: &str) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(conn).await.expect("the server answers")
}

pub async fn empty(url: &str) -> String {
    let name = fresh_name();
    let mut conn = connect(url).await;
    run(&mut conn, &format!("CREATE DATABASE {name}")).await;
    conn.close().await.expect("the session ends");
    name
}

pub async fn copy_of(url: &str, template: &str, prepare: impl AsyncFnOnce(&str)) -> String {
    let name = fresh_name();
    let mut conn = connect(url).await;
    if !exists(&mut conn, template).await {
        // Of several tests that find no template, one prepares it, and the others wait for it.
        run(&mut conn, &format!("SELECT pg_advisory_lock(hashtext('{template}'))")).await;
        if !exists(&mut conn, template).await {
            let draft = format!("{template}_draft");
            run(&mut conn, &format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await;
            run(&mut conn, &format!("CREATE DATABASE {draft}")).await;
            prepare(&with_database(url, &draft)).await;
            // A session in it would keep others from copying it.
            run(&mut conn, &format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS false")).await;
            // Under its name only when it is complete.
            run(&mut conn, &format!("ALTER DATABASE {draft} RENAME TO {template}")).await;
        }
    }
    run(&mut conn, &format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
    conn.close().await.expect("the session ends");
    name
}

pub async fn remove(url: &str, name: &str) {
    run(&mut connect(url).await, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}
