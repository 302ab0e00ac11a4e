//! `cargo xtask servers promote`: the PostgreSQL that is up gets a standby, which has all that is committed; then it is ended as by a
//! crash, never to come back, and the standby takes its place.

use std::{ffi::OsString, path::PathBuf, thread::sleep, time::Duration};

use super::{
    Engine,
    home::{Home, Place},
    ports::Port,
    postgres::Postgres,
    process::{self, Lifetime, Server},
    registry::{self, Record},
};
use crate::{
    database::Database,
    failure::{Failure, Result},
    interrupt,
    output::say,
};

/// The places that servers take turns in: the first is where `up` starts one.
const PLACES: [&str; 2] = ["postgres", "postgres-standby"];
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often to look before it is given up: a minute, as the looks take some time too.
const MOST_LOOKS: u32 = 600;

/// Fails unless the standby is connected as it says.
fn is_connected_as(how: &str) -> String {
    format!(
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_replication WHERE {how}) THEN RAISE 'not yet'; END IF; END $$"
    )
}

/// `cargo xtask servers promote`
pub fn promote(both_for: Duration) -> Result<()> {
    let home = Home::permanent()?;
    let mut records = registry::read()?;
    if records.is_empty() {
        home.remove()?;
    }
    let is_postgres = |record: &Record| record.database == Database::Postgres && record.is_alive();
    let at = records.iter().position(is_postgres).ok_or_else(|| {
        Failure::CannotRun(
            "no PostgreSQL is up: start one with `cargo xtask servers up --db postgres`".to_owned(),
        )
    })?;
    let standby = Standby { postgres: Postgres::locate()?, primary: records[at].clone() };
    let name = if records[at].place == PLACES[0] { PLACES[1] } else { PLACES[0] };
    home.clear(name)?;
    let place = home.place_named(name)?;
    standby.initialise(&place)?;
    // Written down as soon as there is a process: whatever happens to this one, `down` finds it.
    let mut write_down =
        |record: &Record| registry::write(&records.iter().chain([record]).cloned().collect::<Vec<_>>());
    let server = Server::start(&standby, &place, Port::Any, Lifetime::UntilDown, &mut write_down)?;
    standby.let_primary_wait_for_it(&place)?;
    sleep(both_for);

    // For whoever wants to know when; a comment, to shells.
    say!("# the standby has all that is committed: the server ends now");
    standby.primary.stop()?;
    standby.promote(&place)?;
    records[at] = server.record.clone();
    registry::write(&records)?;
    server.leave_running();
    home.clear(&standby.primary.place)?;
    say!("export {}='{}'", Database::Postgres.url_variable().unwrap_or_default(), records[at].url);
    Ok(())
}

/// A PostgreSQL that follows another.
struct Standby {
    postgres: Postgres,
    primary: Record,
}

impl Standby {
    /// From here on, nothing counts as committed on the primary that the standby does not have.
    fn let_primary_wait_for_it(&self, place: &Place) -> Result<()> {
        // Connected first: with nobody to wait for, every commit would hang.
        self.await_on_primary(place, &is_connected_as("state = 'streaming'"))?;
        self.on_primary(
            place,
            &["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"],
        )?;
        self.await_on_primary(place, &is_connected_as("sync_state = 'sync'"))
    }

    fn await_on_primary(&self, place: &Place, statement: &str) -> Result<()> {
        let mut looks = 0;
        loop {
            looks += 1;
            match self.on_primary(place, &[statement]) {
                Err(Failure::CannotRun(_)) if looks < MOST_LOOKS => {
                    interrupt::check()?;
                    sleep(LOOK_AGAIN);
                }
                done => return done,
            }
        }
    }

    fn on_primary(&self, place: &Place, statements: &[&str]) -> Result<()> {
        let mut command = self.program("psql");
        command.extend(["--no-psqlrc", "--quiet", "--dbname", &self.primary.url].map(Into::into));
        command
            .extend(statements.iter().flat_map(|statement| ["--command".into(), OsString::from(statement)]));
        process::prepare(&command, &place.beside(), "make the standby a synchronous one")
    }

    /// Returns when it takes writes.
    fn promote(&self, place: &Place) -> Result<()> {
        let mut command = self.program("pg_ctl");
        command.extend(["promote", "--wait", "--pgdata"].map(Into::into));
        command.push(place.data().into());
        process::prepare(&command, &place.beside(), "promote the standby")
    }

    fn program(&self, name: &str) -> Vec<OsString> {
        let program: PathBuf = self.postgres.bin.join(name);
        vec![program.into()]
    }
}

impl Engine for Standby {
    fn database(&self) -> Database {
        self.postgres.database()
    }

    fn version(&self) -> &str {
        self.postgres.version()
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        let mut command = self.program("pg_basebackup");
        command
            .extend(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--dbname"].map(Into::into));
        command.extend([self.primary.url.clone().into(), "--pgdata".into(), place.data().into()]);
        process::prepare(&command, place, "copy the PostgreSQL cluster")
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        self.postgres.command(place, port)
    }

    fn ready_line(&self) -> &'static str {
        "database system is ready to accept read-only connections"
    }

    fn url(&self, port: u16) -> String {
        self.postgres.url(port)
    }
}
