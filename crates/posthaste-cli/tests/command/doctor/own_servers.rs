//! What can be wrong with a server as a whole: on servers of the tests' own, since it would be wrong for all tests.

use std::{ffi::OsString, process::Command};

use super::{Diagnosis, diagnosis as diagnosis_of};
use crate::posthaste::Posthaste;

/// A server of a test's own.
struct OwnServer {
    xtask: OsString,
    folder: tempfile::TempDir,
    url: String,
}

impl OwnServer {
    fn start(kind: &str, settings: &str) -> Self {
        Self::start_in("UTC", kind, settings)
    }

    /// In a time zone.
    fn start_in(zone: &str, kind: &str, settings: &str) -> Self {
        let xtask =
            std::env::var_os("POSTHASTE_XTASK").expect("POSTHASTE_XTASK is not set: run `cargo xtask test`");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir().expect("a folder");
        let mut server = Self { xtask, folder, url: String::new() };
        let mut up = server.command("up");
        for database in ["POSTGRES", "MARIADB", "MYSQL"] {
            up.env_remove(format!("POSTHASTE_TEST_{database}_URL"));
        }
        up.args(["--db", kind]).env("POSTHASTE_MYSQL_SETTINGS", settings).env("TZ", zone);
        let output = up.output().expect("xtask runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        text.split('\'').nth(1).expect("an URL in quotes").clone_into(&mut server.url);
        server.posthaste(&["migrate"]).succeeds();
        server
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.xtask);
        command.args(["servers", verb]).env("TMPDIR", self.folder.path());
        command
    }

    fn posthaste(&self, arguments: &[&str]) -> Posthaste {
        Posthaste::new(arguments).env("DATABASE_URL", &self.url)
    }

    fn diagnose(&self) -> Diagnosis {
        diagnosis_of(self.posthaste(&["doctor", "--json"]))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.command("down").output().ok();
    }
}

mod postgres {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use sqlx::{Connection, PgConnection};

    use super::OwnServer;
    use crate::ground::eventually;

    #[tokio::test]
    async fn a_server_that_never_vacuums_is_found() {
        let server = OwnServer::start("postgres", "");
        assert_eq!(server.diagnose().code, 0);
        let mut conn = PgConnection::connect(&server.url).await.unwrap();
        sqlx::raw_sql("ALTER SYSTEM SET autovacuum = off").execute(&mut conn).await.unwrap();
        sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut conn).await.unwrap();
        eventually("autovacuum is off", async || {
            sqlx::query_scalar::<_, String>("SHOW autovacuum").fetch_one(&mut conn).await.unwrap() == "off"
        })
        .await;
        let diagnosis = server.diagnose();
        let (summary, advice) = diagnosis.only("autovacuum", "warning");
        assert!(summary.starts_with("autovacuum is off: "), "{summary}");
        assert!(advice.contains("ALTER SYSTEM SET autovacuum = on"), "{advice}");
        diagnosis.finds_only("autovacuum");
    }

    #[tokio::test]
    async fn a_slot_whose_standby_is_gone_is_found() {
        let server = OwnServer::start("postgres", "");
        let mut conn = PgConnection::connect(&server.url).await.unwrap();
        let text = async |conn: &mut PgConnection, sql: &'static str| -> Option<String> {
            sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
        };
        let xmin = text(&mut conn, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text").await.unwrap();
        let place = text(&mut conn, "SELECT pg_current_wal_flush_lsn()::text").await.unwrap();
        let mut standby = Standby::connect(&server.url);
        standby.ask("CREATE_REPLICATION_SLOT gone PHYSICAL", b'Z');
        standby.ask(&format!("START_REPLICATION SLOT gone PHYSICAL {place}"), b'W');
        standby.report(xmin.parse().unwrap());
        eventually("the slot has what the standby needs", async || {
            text(&mut conn, "SELECT xmin::text FROM pg_replication_slots").await.is_some()
        })
        .await;
        assert_eq!(server.diagnose().code, 0, "it is connected, and not far behind");
        drop(standby);
        eventually("the slot is not in use", async || {
            text(&mut conn, "SELECT active::text FROM pg_replication_slots").await.as_deref() == Some("false")
        })
        .await;
        let diagnosis = server.diagnose();
        let (summary, advice) = diagnosis.only("replication", "warning");
        assert!(summary.starts_with("replication slot \"gone\" keeps all rows alive"), "{summary}");
        assert!(advice.contains("SELECT pg_drop_replication_slot('gone')"), "{advice}");
        diagnosis.finds_only("replication");
        sqlx::raw_sql("SELECT pg_drop_replication_slot('gone')").execute(&mut conn).await.unwrap();
        assert_eq!(server.diagnose().code, 0, "what is advised helps");
    }

    /// As much of a standby as the server needs to believe in it.
    struct Standby(TcpStream);

    impl Standby {
        fn connect(url: &str) -> Self {
            let place = url.split(['@', '/']).find(|part| part.contains("127.0.0.1:")).expect("a place");
            let mut standby = Self(TcpStream::connect(place).unwrap());
            let mut hello = 196_608_i32.to_be_bytes().to_vec();
            hello.extend(b"user\0postgres\0replication\0true\0\0");
            standby.send(None, &hello);
            standby.read_to(b'Z');
            standby
        }

        fn send(&mut self, kind: Option<u8>, body: &[u8]) {
            let mut message: Vec<u8> = kind.into_iter().collect();
            message.extend(i32::try_from(body.len() + 4).unwrap().to_be_bytes());
            message.extend(body);
            self.0.write_all(&message).unwrap();
        }

        /// Reads messages up to one of this kind.
        fn read_to(&mut self, wanted: u8) {
            loop {
                let mut head = [0; 5];
                self.0.read_exact(&mut head).unwrap();
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) - 4;
                let mut body = vec![0; usize::try_from(length).unwrap()];
                self.0.read_exact(&mut body).unwrap();
                assert_ne!(head[0], b'E', "{}", String::from_utf8_lossy(&body));
                if head[0] == wanted {
                    return;
                }
            }
        }

        fn ask(&mut self, command: &str, answer: u8) {
            self.send(Some(b'Q'), format!("{command}\0").as_bytes());
            self.read_to(answer);
        }

        /// Says which rows it still needs: hot standby feedback.
        fn report(&mut self, xmin: u32) {
            let mut feedback = vec![b'h'];
            feedback.extend(0_i64.to_be_bytes());
            feedback.extend([xmin, 0, 0, 0].map(u32::to_be_bytes).concat());
            self.send(Some(b'd'), &feedback);
        }
    }
}

/// Settings that are found one by one, on a server that has them all.
async fn settings_that_do_not_suit_are_found(kind: &str) {
    use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

    let server = OwnServer::start(
        kind,
        "--innodb-autoinc-lock-mode=0 --transaction-isolation=SERIALIZABLE --log-bin=odd --server-id=1
         --sync-binlog=0 --max-allowed-packet=1048576",
    );
    let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
    let mut run = async |sql: &str| {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    };
    // With these two, there would be no tables.
    run("SET GLOBAL binlog_format = 'STATEMENT'").await;
    run("SET GLOBAL read_only = 1").await;
    let mut expected = vec![
        ("read-only", "read_only is ON", "the primary"),
        ("autoinc-lock-mode", "innodb_autoinc_lock_mode is 0", "innodb_autoinc_lock_mode = 2"),
        ("isolation", "isolation is SERIALIZABLE", "READ-COMMITTED"),
        ("binlog-format", "binlog_format is STATEMENT", "binlog_format = 'ROW'"),
        ("packet", "max_allowed_packet is 1048576 bytes", "max_payload"),
        ("durability", "sync_binlog is 0", "sync_binlog = 1"),
    ];
    if kind == "mariadb" {
        run("SET GLOBAL sql_mode = 'EMPTY_STRING_IS_NULL'").await;
        expected.push(("sql-mode", "EMPTY_STRING_IS_NULL", "take it out"));
    }
    let diagnosis = server.diagnose();
    for (code, wrong, remedy) in &expected {
        let found = diagnosis.of(code);
        let fits =
            |(_, summary, advice): &(&str, &str, &str)| summary.contains(wrong) && advice.contains(remedy);
        assert!(found.iter().any(fits), "{code}: {diagnosis:?}");
    }
    let all = diagnosis.findings().iter();
    let odd: Vec<_> =
        all.filter(|finding| expected.iter().all(|(code, ..)| finding["code"] != *code)).collect();
    assert!(odd.is_empty(), "{odd:?}");

    // Nobody with fewer rights than the tests' user can be told another time.
    run("SET GLOBAL read_only = 0").await;
    run("CREATE USER 'late'@'%'").await;
    run("GRANT SELECT, INSERT, UPDATE, DELETE ON posthaste.* TO 'late'@'%'").await;
    run("SET GLOBAL init_connect = 'SET timestamp = 1000000'").await;
    let (_, place) = server.url.split_once('@').unwrap();
    let late = server.posthaste(&["doctor", "--json"]).env("DATABASE_URL", &format!("mysql://late@{place}"));
    let diagnosis = diagnosis_of(late);
    let (summary, advice) = diagnosis.only("clock", "warning");
    assert!(summary.ends_with(" s behind this machine's") && advice.contains("NTP"), "{summary}");
}

/// The server's zone is not that of our session.
async fn ages_are_right_in_every_zone(kind: &str) {
    use sqlx::{Connection, MySqlConnection};

    let now = std::time::SystemTime::now();
    for zone in ["XYZ+5", "XYZ-9"] {
        let server = OwnServer::start_in(zone, kind, "");
        let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
        let difference = "SELECT CAST(timestampdiff(HOUR, utc_timestamp(), convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')) AS SIGNED)";
        let difference: i64 = sqlx::query_scalar(difference).fetch_one(&mut conn).await.unwrap();
        assert_eq!(difference, if zone == "XYZ+5" { -5 } else { 9 }, "the server is in that zone");
        sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT").execute(&mut conn).await.unwrap();
        let diagnosis = diagnosis_of(server.posthaste(&["doctor", "--json", "--long-transaction", "0s"]));
        let (summary, _) = diagnosis.only("long-transaction", "warning");
        let (_, since) = summary.split_once(", since ").unwrap();
        let since = humantime::parse_rfc3339(&since[..20]).unwrap();
        let apart = since.duration_since(now).unwrap_or_else(|early| early.duration());
        assert!(apart < std::time::Duration::from_secs(300), "{zone}: {summary}");
        assert_eq!(server.diagnose().code, 0, "{zone}: it is not so old yet");
    }
}

mod mariadb {
    #[tokio::test]
    async fn ages_are_right_in_every_zone() {
        super::ages_are_right_in_every_zone("mariadb").await;
    }

    #[tokio::test]
    async fn settings_that_do_not_suit_are_found() {
        super::settings_that_do_not_suit_are_found("mariadb").await;
    }
}

mod mysql {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use sqlx::{Connection, MySqlConnection};

    use super::{OwnServer, diagnosis_of};
    use crate::ground::eventually;

    const LOOK: [&str; 4] = ["doctor", "--json", "--long-transaction", "0s"];

    /// Nobody is listed while somebody's statement cannot be shown.
    #[tokio::test]
    async fn a_statement_that_is_no_text_is_waited_for_and_not_for_ever() {
        let server = OwnServer::start("mysql", "");
        let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
        let asleep = "SELECT count(*) FROM performance_schema.processlist WHERE state = 'User sleep'";
        let mut sleepers = async |wanted: i64| {
            eventually("sessions sleep, or do no more", async || {
                sqlx::query_scalar::<_, i64>(asleep).fetch_one(&mut conn).await.unwrap() == wanted
            })
            .await;
        };
        let mut client = Client::connect(&server.url);
        client.ask(b"START TRANSACTION WITH CONSISTENT SNAPSHOT");
        client.read();
        client.ask(b"SELECT sleep(1.5), length('\xff\xfeabc')");
        sleepers(1).await;
        // It is over soon, and its transaction is open still.
        diagnosis_of(server.posthaste(&LOOK)).only("long-transaction", "warning");
        sleepers(0).await;

        let mut client = Client::connect(&server.url);
        client.ask(b"START TRANSACTION WITH CONSISTENT SNAPSHOT");
        client.read();
        client.ask(b"SELECT sleep(600), length('\xff\xfeabc')");
        sleepers(1).await;
        let diagnosis = diagnosis_of(server.posthaste(&LOOK));
        let (summary, advice) = diagnosis.only("long-transaction", "notice");
        assert!(summary.starts_with("not examined, because a statement that is running"), "{summary}");
        assert!(advice.starts_with("look again when it is over"), "{advice}");
        assert_eq!(diagnosis.code, 0);
    }

    /// As much of a client as it takes to send a statement that is no text.
    struct Client(TcpStream);

    impl Client {
        fn connect(url: &str) -> Self {
            let place = url.split(['@', '/']).find(|part| part.contains("127.0.0.1:")).expect("a place");
            let mut client = Self(TcpStream::connect(place).unwrap());
            client.read();
            // The protocol since 4.1, with named ways to log in; 16 MiB a packet; utf8mb4; no password.
            let mut hello = 0x0008_8200_u32.to_le_bytes().to_vec();
            hello.extend((1_u32 << 24).to_le_bytes());
            hello.push(45);
            hello.extend([0; 23]);
            hello.extend(b"posthaste\0\0caching_sha2_password\0");
            client.send(1, &hello);
            client.read();
            client
        }

        fn ask(&mut self, statement: &[u8]) {
            self.send(0, &[b"\x03", statement].concat());
        }

        fn send(&mut self, number: u8, body: &[u8]) {
            let [a, b, c, _] = u32::try_from(body.len()).unwrap().to_le_bytes();
            self.0.write_all(&[&[a, b, c, number], body].concat()).unwrap();
        }

        /// Reads a packet, which is no refusal.
        fn read(&mut self) {
            let mut head = [0; 4];
            self.0.read_exact(&mut head).unwrap();
            let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
            let mut body = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut body).unwrap();
            assert_ne!(body[0], 0xff, "{}", String::from_utf8_lossy(&body));
        }
    }

    #[tokio::test]
    async fn ages_are_right_in_every_zone() {
        super::ages_are_right_in_every_zone("mysql").await;
    }

    #[tokio::test]
    async fn settings_that_do_not_suit_are_found() {
        super::settings_that_do_not_suit_are_found("mysql").await;
    }
}
