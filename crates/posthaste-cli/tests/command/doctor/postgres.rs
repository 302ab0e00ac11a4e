//! What can be wrong with a PostgreSQL, as far as one database of a server shows it.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::{diagnose, diagnose_by, diagnosis};
use crate::ground::{Ground, Server};

async fn migrated() -> Ground {
    let ground = Ground::empty(Server::Postgres).await;
    ground.posthaste(&["migrate"]).succeeds();
    ground
}

async fn connect(ground: &Ground) -> PgConnection {
    PgConnection::connect(&ground.url).await.unwrap()
}

async fn run(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.unwrap();
}

async fn pid(conn: &mut PgConnection) -> i32 {
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await.unwrap().get(0)
}

fn with_parameter(url: &str, parameter: &str) -> String {
    format!("{url}{}{parameter}", if url.contains('?') { '&' } else { '?' })
}

/// A role of this test's own; who it is in a URL.
async fn role(ground: &Ground) -> (String, String) {
    let database = sqlx::query_scalar("SELECT current_database()::text");
    let database: String = database.fetch_one(&mut connect(ground).await).await.unwrap();
    let role = format!("role_{database}");
    ground.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x'")).await;
    let (_, place) = ground.url.split_once('@').expect("a user in the URL");
    let url = format!("postgres://{role}:x@{place}");
    (role, url)
}

async fn drop_role(ground: &Ground, role: &str) {
    ground.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_session_that_keeps_dead_rows_alive_is_found() {
    let ground = migrated().await;
    let mut conn = connect(&ground).await;
    let pid = pid(&mut conn).await;
    run(&mut conn, "SET application_name = 'old report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await;
    let diagnosis = diagnose(&ground, &["--long-transaction", "0s"]);
    let (summary, advice) = diagnosis.only("old-snapshot", "warning");
    assert!(summary.starts_with(&format!("session {pid} (user ")), "{summary}");
    for part in
        ["application \"old report\"", "idle in transaction) has a transaction open for ", ", since 20"]
    {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    assert!(advice.contains(&format!("pg_terminate_backend({pid})")), "{advice}");
    assert!(advice.contains("idle_in_transaction_session_timeout"), "{advice}");
    diagnosis.finds_only("old-snapshot");
    assert_eq!(diagnose(&ground, &[]).code, 0, "it is not so old yet");

    // So does one that has written.
    run(&mut conn, "ROLLBACK; BEGIN; SELECT pg_current_xact_id()").await;
    diagnose(&ground, &["--long-transaction", "0s"]).only("old-snapshot", "warning");
    run(&mut conn, "COMMIT").await;
    assert_eq!(diagnose(&ground, &["--long-transaction", "0s"]).code, 0);
    ground.remove().await;
}

#[tokio::test]
async fn a_transaction_that_is_merely_open_is_found() {
    let ground = migrated().await;
    let mut conn = connect(&ground).await;
    let pid = pid(&mut conn).await;
    run(&mut conn, "BEGIN; LOCK TABLE posthaste_incoming IN ACCESS SHARE MODE").await;
    let diagnosis = diagnose(&ground, &["--long-transaction", "0s"]);
    let (summary, _) = diagnosis.only("long-transaction", "warning");
    assert!(summary.contains(&format!("session {pid} ")) && summary.contains("others wait for"), "{summary}");
    diagnosis.finds_only("long-transaction");
    ground.remove().await;
}

#[tokio::test]
async fn no_more_sessions_are_listed_than_can_be_read() {
    let ground = migrated().await;
    let mut sessions = Vec::new();
    for _ in 0..12 {
        let mut conn = connect(&ground).await;
        run(&mut conn, "BEGIN").await;
        sessions.push(conn);
    }
    let diagnosis = diagnose(&ground, &["--long-transaction", "0s"]);
    let found = diagnosis.of("long-transaction");
    assert_eq!((found.len(), found[10].1), (11, "and 2 more of the same kind"));
    ground.remove().await;
}

#[tokio::test]
async fn a_prepared_transaction_is_found_and_cannot_command_the_terminal() {
    let ground = migrated().await;
    let gid = format!("it''s \x1b[2J {}", ground.url.rsplit('/').next().unwrap());
    let mut conn = connect(&ground).await;
    run(&mut conn, &format!("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '{gid}'")).await;
    let diagnosis = diagnose(&ground, &["--long-transaction", "0s"]);
    let (summary, advice) = diagnosis.only("prepared-transaction", "warning");
    assert!(summary.starts_with("transaction \"it's "), "{summary}");
    assert!(advice.contains(&format!("ROLLBACK PREPARED '{gid}'")), "{advice}");
    diagnosis.finds_only("prepared-transaction");

    let ran = ground.posthaste(&["doctor", "--long-transaction", "0s"]).run();
    assert!(ran.out.contains("it's") && !ran.out.contains('\x1b'), "{ran:?}");
    run(&mut conn, &format!("ROLLBACK PREPARED '{gid}'")).await;
    assert_eq!(diagnose(&ground, &["--long-transaction", "0s"]).code, 0);
    ground.remove().await;
}

#[tokio::test]
async fn rights_that_are_missing_are_found() {
    let ground = migrated().await;
    let (role, url) = role(&ground).await;
    ground
        .sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"))
        .await;
    assert_eq!(diagnose_by(&ground, &url, &[]).code, 0);
    ground.sql(&format!("REVOKE UPDATE, DELETE ON posthaste_incoming FROM {role}")).await;
    let diagnosis = diagnose_by(&ground, &url, &[]);
    let (summary, advice) = diagnosis.only("rights", "problem");
    assert_eq!(summary, format!("role {role} lacks UPDATE, DELETE on public.posthaste_incoming"));
    assert_eq!(advice, format!("as its owner: GRANT UPDATE, DELETE ON public.posthaste_incoming TO {role}"));
    diagnosis.finds_only("rights");

    // Without a look at the version, there is no knowing whether the tables fit.
    ground.sql(&format!("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}")).await;
    let diagnosis = diagnose_by(&ground, &url, &[]);
    assert_eq!(diagnosis.of("rights").len(), 8, "{diagnosis:?}");
    let (summary, _) = diagnosis.only("schema", "notice");
    assert!(summary.starts_with("not examined, because the database says: permission denied"), "{summary}");
    assert!(!diagnosis.has_checked("schema"));

    ground.sql("REVOKE USAGE ON SCHEMA public FROM PUBLIC").await;
    let diagnosis = diagnose_by(&ground, &url, &["--schema", "public"]);
    let (severity, summary, advice) = diagnosis.of("rights")[0];
    assert_eq!((severity, summary), ("problem", &*format!("role {role} may not use schema public")));
    assert!(advice.contains(&format!("GRANT USAGE ON SCHEMA public TO {role}")), "{advice}");
    drop_role(&ground, &role).await;
    ground.remove().await;
}

#[tokio::test]
async fn sessions_that_may_not_be_seen_are_said_not_to_be() {
    let ground = migrated().await;
    let (role, url) = role(&ground).await;
    ground
        .sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"))
        .await;
    let mut other = connect(&ground).await;
    run(&mut other, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let diagnosis = diagnose_by(&ground, &url, &["--long-transaction", "0s"]);
    let (summary, advice) = diagnosis.only("old-snapshot", "notice");
    assert!(summary.starts_with("not examined: sessions of other users, "), "{summary}");
    assert!(advice.contains(&format!("GRANT pg_read_all_stats TO {role}")), "{advice}");
    assert_eq!(diagnosis.code, 0);
    ground.sql(&format!("GRANT pg_read_all_stats TO {role}")).await;
    diagnose_by(&ground, &url, &["--long-transaction", "0s"]).only("old-snapshot", "warning");
    other.close().await.unwrap();
    drop_role(&ground, &role).await;
    ground.remove().await;
}

#[tokio::test]
async fn tables_that_autovacuum_does_not_come_to_are_found() {
    let ground = migrated().await;
    ground.sql("ALTER TABLE posthaste_cursor SET (autovacuum_enabled = off)").await;
    ground.sql("ALTER TABLE posthaste_outgoing SET (autovacuum_vacuum_scale_factor = 5)").await;
    let diagnosis = diagnose(&ground, &[]);
    let found = diagnosis.of("autovacuum");
    let [("warning", off, reset), ("warning", late, set)] = found[..] else { panic!("{diagnosis:?}") };
    assert!(off.starts_with("autovacuum is off for posthaste_cursor"), "{off}");
    assert!(
        late.starts_with("autovacuum comes to posthaste_outgoing only after 50 dead rows and 5 for"),
        "{late}"
    );
    diagnosis.finds_only("autovacuum");
    ground.sql(reset).await;
    ground.sql(set).await;
    assert_eq!(diagnose(&ground, &[]).code, 0, "what is advised helps");

    let blind = with_parameter(&ground.url, "options[track_counts]=off");
    let diagnosis = diagnose_by(&ground, &blind, &[]);
    assert!(diagnosis.only("autovacuum", "warning").0.starts_with("track_counts is off"));
    ground.remove().await;
}

/// The statistics are behind by up to a second. A failure says what they are: whether too few rows were counted, or a vacuum
/// left all of them, or those of some pages.
async fn until_counted(ground: &Ground, condition: &str) {
    let sql = format!(
        "SELECT {condition}, to_jsonb(s)::text FROM pg_stat_user_tables s WHERE relname = 'posthaste_incoming'"
    );
    let mut conn = connect(ground).await;
    let began = Instant::now();
    loop {
        let counted = sqlx::query_as(AssertSqlSafe(sql.clone())).fetch_one(&mut conn).await;
        let (is_so, counts): (bool, String) = counted.unwrap();
        if is_so {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not within 60 s: {condition}: {counts}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn rows_that_are_dead_and_stay_are_found() {
    let ground = migrated().await;
    // So that it does not come to it meanwhile.
    ground.sql("ALTER TABLE posthaste_incoming SET (autovacuum_enabled = off)").await;
    let mut old = connect(&ground).await;
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let mut conn = connect(&ground).await;
    run(
        &mut conn,
        "INSERT INTO posthaste_incoming (partition_id, payload_type, payload) SELECT 1, 't', '' FROM generate_series(1, 100001);
         DELETE FROM posthaste_incoming",
    )
    .await;
    conn.close().await.unwrap();
    until_counted(&ground, "n_dead_tup >= 100001").await;
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("bloat", "warning");
    assert!(summary.starts_with("posthaste_incoming has 100001 dead rows and 0 live ones"), "{summary}");
    assert!(advice.starts_with("VACUUM posthaste_incoming; "), "{advice}");
    run(&mut old, "ROLLBACK").await;
    // One that has to freeze waits for pages that somebody else has in use, such as the checkpointer; otherwise it leaves them.
    ground.sql("VACUUM (FREEZE) posthaste_incoming").await;
    until_counted(&ground, "n_dead_tup = 0").await;
    assert!(diagnose(&ground, &[]).of("bloat").is_empty());
    ground.remove().await;
}

#[tokio::test]
async fn room_is_not_judged_by_statistics_that_were_lost() {
    let ground = migrated().await;
    ground.sql("ALTER TABLE posthaste_incoming SET (autovacuum_enabled = off); ALTER TABLE posthaste_incoming ALTER payload SET STORAGE PLAIN").await;
    let insert = |rows: u32| {
        format!(
            "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
             SELECT 1, 't', decode(repeat('5a', 4100), 'hex') FROM generate_series(1, {rows})"
        )
    };
    ground.sql(&insert(33_000)).await;
    until_counted(&ground, "n_live_tup = 33000").await;
    ground.sql("SELECT pg_stat_reset()").await;
    until_counted(&ground, "n_live_tup = 0").await;
    for _ in 0..2 {
        let diagnosis = diagnose(&ground, &[]);
        let (summary, advice) = diagnosis.only("bloat", "notice");
        assert!(summary.contains("the statistics were lost"), "{summary}");
        assert!(advice.starts_with("VACUUM ANALYZE posthaste_incoming, "), "{advice}");
        // What is counted since then is not all there is.
        ground.sql(&insert(10)).await;
        until_counted(&ground, "n_live_tup >= 10").await;
    }
    ground.sql("VACUUM ANALYZE posthaste_incoming").await;
    until_counted(&ground, "n_live_tup > 30000").await;
    assert!(diagnose(&ground, &[]).of("bloat").is_empty(), "what is advised helps");
    ground.remove().await;
}

#[tokio::test]
async fn room_that_large_payloads_have_left_is_found() {
    let ground = migrated().await;
    ground.sql("ALTER TABLE posthaste_incoming SET (autovacuum_enabled = off, toast.autovacuum_enabled = off); ALTER TABLE posthaste_incoming ALTER payload SET STORAGE EXTERNAL").await;
    ground
        .sql(
            "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
             SELECT 1, 't', decode(repeat('5a', 1000000), 'hex') FROM generate_series(1, 270)",
        )
        .await;
    until_counted(&ground, "n_live_tup = 270").await;
    assert!(diagnose(&ground, &[]).of("bloat").is_empty(), "there is something in it");
    ground.sql("DELETE FROM posthaste_incoming").await;
    until_counted(&ground, "n_live_tup = 0").await;
    let diagnosis = diagnose(&ground, &[]);
    let found = diagnosis.of("bloat");
    assert!(
        found.iter().any(|(severity, summary, _)| {
            *severity == "warning" && summary.starts_with("posthaste_incoming takes ")
        }),
        "{diagnosis:?}"
    );
    ground.remove().await;
}

#[tokio::test]
async fn what_is_advised_can_be_run_whatever_the_schema_is_called() {
    let ground = Ground::empty(Server::Postgres).await;
    let in_order = ["--schema", "order"];
    ground.sql("CREATE SCHEMA \"order\"").await;
    ground.posthaste(&[&["migrate"], &in_order[..]].concat()).succeeds();
    let (role, url) = role(&ground).await;
    ground
        .sql(
            "ALTER TABLE \"order\".posthaste_cursor SET (autovacuum_enabled = off);
             ALTER TABLE \"order\".posthaste_incoming ALTER COLUMN id SET CACHE 10",
        )
        .await;
    let diagnosis = diagnose_by(&ground, &url, &in_order);
    let advices = ["autovacuum", "id-cache", "rights"].map(|code| diagnosis.of(code));
    assert!(advices.iter().all(|found| !found.is_empty()), "{diagnosis:?}");
    for (_, _, advice) in advices.concat() {
        ground.sql(advice.trim_start_matches("as its owner: ")).await;
    }
    let diagnosis = diagnose_by(&ground, &url, &in_order);
    assert_eq!(diagnosis.code, 0, "{diagnosis:?}");
    drop_role(&ground, &role).await;
    ground.remove().await;
}

#[tokio::test]
async fn room_that_nobody_uses_is_found() {
    let ground = migrated().await;
    ground.sql("ALTER TABLE posthaste_incoming SET (autovacuum_enabled = off); ALTER TABLE posthaste_incoming ALTER payload SET STORAGE PLAIN").await;
    ground
        .sql(
            "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
             SELECT 1, 't', decode(repeat('5a', 4100), 'hex') FROM generate_series(1, 33000)",
        )
        .await;
    until_counted(&ground, "n_live_tup = 33000").await;
    assert!(diagnose(&ground, &[]).of("bloat").is_empty(), "there is something in it");
    ground.sql("DELETE FROM posthaste_incoming").await;
    until_counted(&ground, "n_live_tup = 0").await;
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("bloat", "warning");
    assert!(
        summary.starts_with("posthaste_incoming takes 257 MiB, of which at least 257 MiB are empty"),
        "{summary}"
    );
    assert!(advice.contains("VACUUM FULL posthaste_incoming"), "{advice}");
    ground.remove().await;
}

#[tokio::test]
async fn ids_that_would_not_follow_the_order_are_found() {
    let ground = migrated().await;
    ground.sql("ALTER TABLE posthaste_incoming ALTER COLUMN id SET CACHE 10").await;
    let diagnosis = diagnose(&ground, &[]);
    let (summary, advice) = diagnosis.only("id-cache", "problem");
    assert!(summary.starts_with("each session takes 10 ids of posthaste_incoming at once"), "{summary}");
    diagnosis.finds_only("id-cache");
    ground.sql(advice).await;
    assert_eq!(diagnose(&ground, &[]).code, 0, "what is advised helps");
    ground.remove().await;
}

#[tokio::test]
async fn transactions_that_may_only_read_are_found() {
    let ground = migrated().await;
    let url = with_parameter(&ground.url, "options[default_transaction_read_only]=on");
    let diagnosis = diagnose_by(&ground, &url, &[]);
    assert!(diagnosis.only("read-only", "warning").0.starts_with("default_transaction_read_only is on"));
    diagnosis.finds_only("read-only");
    ground.remove().await;
}

#[tokio::test]
async fn commits_that_may_be_lost_are_worth_a_notice() {
    let ground = migrated().await;
    let url = with_parameter(&ground.url, "options[synchronous_commit]=off");
    let diagnosis = diagnose_by(&ground, &url, &[]);
    let found = diagnosis.of("durability");
    assert!(found.iter().any(|(severity, summary, _)| {
        *severity == "notice" && summary.starts_with("synchronous_commit is off for this role")
    }));
    assert_eq!(diagnosis.code, 0);
    ground.remove().await;
}

#[tokio::test]
async fn a_clock_that_differs_is_found() {
    let ground = migrated().await;
    // The clock that the sessions of this URL see: it is 90 s slow.
    ground
        .sql(
            "CREATE SCHEMA slow; CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
             'SELECT pg_catalog.clock_timestamp() - interval ''90 s'''",
        )
        .await;
    let url = with_parameter(&ground.url, "options[search_path]=slow,pg_catalog");
    let diagnosis = diagnose_by(&ground, &url, &["--schema", "public"]);
    let (summary, advice) = diagnosis.only("clock", "warning");
    assert!(
        summary.starts_with("the database's clock is 90.")
            || summary.starts_with("the database's clock is 89."),
        "{summary}"
    );
    assert!(summary.ends_with(" s behind this machine's") && advice.contains("NTP"), "{summary}");
    diagnosis.finds_only("clock");
    ground.remove().await;
}

#[tokio::test]
async fn a_pooler_in_between_is_found() {
    let pooler = std::env::var("POSTHASTE_TEST_PGBOUNCER_URL").expect(
        "POSTHASTE_TEST_PGBOUNCER_URL is not set: run `cargo xtask test`, or set it to a pgbouncer's URL",
    );
    let ground = migrated().await;
    let (server, _) = pooler.rsplit_once('/').expect("a database in the URL");
    let url = format!("{server}/{}", ground.url.rsplit('/').next().unwrap());
    let diagnosis = diagnose_by(&ground, &url, &[]);
    let (summary, advice) = diagnosis.only("notifications", "warning");
    assert!(summary.contains("a pooler that shares sessions"), "{summary}");
    assert!(advice.contains("a direct URL"), "{advice}");
    diagnosis.finds_only("notifications");
    ground.remove().await;
}

#[tokio::test]
async fn nobodys_lock_is_waited_for() {
    let ground = migrated().await;
    let mut conn = connect(&ground).await;
    run(&mut conn, "BEGIN; LOCK TABLE posthaste_meta, posthaste_incoming IN ACCESS EXCLUSIVE MODE").await;
    let diagnosis = diagnosis(ground.posthaste(&["doctor", "--json"]));
    for code in ["schema", "bloat", "autovacuum"] {
        let (summary, advice) = diagnosis.only(code, "warning");
        assert!(summary.starts_with("not examined, because ") && advice.contains("a lock"), "{summary}");
        assert!(!diagnosis.has_checked(code));
    }
    let words = ground.posthaste(&["doctor"]).run();
    assert!(words.code == 1 && !words.out.contains("all is well"), "{words:?}");
    assert!(diagnosis.has_checked("rights") && diagnosis.has_checked("clock"), "{diagnosis:?}");
    ground.remove().await;
}
