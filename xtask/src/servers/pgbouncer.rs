//! pgbouncer, in transaction mode, in front of a PostgreSQL: for the tests of what a pooler takes away.

use std::ffi::OsString;

use super::{
    Engine,
    home::Place,
    mysql_family::find_program,
    private_copy::{PrivateCopy, Suite},
};
use crate::{
    database::Database,
    failure::{Failure, Result},
};

/// Names a pooler to the tests.
pub const URL_VARIABLE: &str = "POSTHASTE_TEST_PGBOUNCER_URL";

pub struct Pgbouncer {
    program: Vec<OsString>,
    /// Where the PostgreSQL behind it is.
    host: String,
    port: String,
    user: String,
}

impl Pgbouncer {
    /// The pooler on this machine, or a private copy: the package would start a service.
    pub fn locate(postgres_url: &str) -> Result<Self> {
        let program = match find_program("pgbouncer") {
            Some(program) => vec![program.into()],
            None => PrivateCopy::of("pgbouncer", "pgbouncer", Suite::Own, URL_VARIABLE)?
                .command("usr/sbin/pgbouncer")?,
        };
        let place = postgres_url.split('/').nth(2).unwrap_or_default();
        let (credentials, place) = place.rsplit_once('@').unwrap_or(("postgres", place));
        let user = credentials.split(':').next().unwrap_or_default().to_owned();
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "5432"));
        if host.is_empty() {
            return Err(Failure::CannotRun(format!(
                "the PostgreSQL URL names no host: name a pooler in {URL_VARIABLE}"
            )));
        }
        Ok(Self { program, host: host.to_owned(), port: port.to_owned(), user })
    }

    fn configuration(place: &Place) -> std::path::PathBuf {
        place.theirs.join("pgbouncer.ini")
    }

    fn settings(&self, port: u16) -> String {
        let Self { host, port: behind, user, .. } = self;
        format!(
            "[databases]\none_session = host={host} port={behind} user={user} dbname=postgres pool_size=1\n\
             * = host={host} port={behind} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n\
             ignore_startup_parameters = extra_float_digits\n"
        )
    }
}

impl Engine for Pgbouncer {
    fn database(&self) -> Database {
        Database::Postgres
    }

    fn version(&self) -> &str {
        "pgbouncer"
    }

    fn initialise(&self, _place: &Place) -> Result<()> {
        Ok(())
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        // The shell writes the file as the user who is to read it, and becomes the pooler. A process in the background of a script
        // inherits that SIGQUIT is ignored, by which the pooler is stopped.
        let script = "printf %s \"$1\" > \"$0\" && shift && exec env --default-signal=QUIT \"$@\" \"$0\"";
        let mut command: Vec<OsString> = vec![
            "sh".into(),
            "-c".into(),
            script.into(),
            Self::configuration(place).into(),
            self.settings(port).into(),
        ];
        command.extend(self.program.iter().cloned());
        command
    }

    fn ready_line(&self) -> &'static str {
        "process up"
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }
}

/// Whether the environment names one.
pub fn named_url() -> Option<String> {
    std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty())
}
