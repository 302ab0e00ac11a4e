//! MariaDB: from the distribution's packages, or from `POSTHASTE_MARIADB_BIN`.

use std::{ffi::OsString, path::PathBuf, process::Command};

use super::{Engine, apt, home::Place, mysql_family, process, program_in, version};
use crate::{
    database::Database,
    failure::{Failure, Result},
};

/// A folder with MariaDB's programs, for another version than the installed one.
const BIN_VARIABLE: &str = "POSTHASTE_MARIADB_BIN";
/// The programs without the service: installing these starts nothing.
const PACKAGES: [&str; 2] = ["mariadb-server-core", "mariadb-client-core"];

pub struct Mariadb {
    server: PathBuf,
    install_db: PathBuf,
    version: String,
}

impl Mariadb {
    pub fn locate() -> Result<Self> {
        let (server, install_db) = match std::env::var_os(BIN_VARIABLE).map(PathBuf::from) {
            Some(folder) => (
                program_in(&folder, "mariadbd", BIN_VARIABLE)?,
                program_in(&folder, "mariadb-install-db", BIN_VARIABLE)?,
            ),
            None => match installed() {
                Some(programs) => programs,
                None => {
                    apt::install("MariaDB", &PACKAGES, "POSTHASTE_TEST_MARIADB_URL")?;
                    installed().ok_or_else(|| {
                        Failure::CannotRun(
                            "apt-get installed MariaDB, but mariadbd is not to be found".to_owned(),
                        )
                    })?
                }
            },
        };
        let version = version::check(Database::Mariadb, Command::new(&server).arg("--version"))?;
        Ok(Self { server, install_db, version })
    }
}

fn installed() -> Option<(PathBuf, PathBuf)> {
    // It needs this one of the client's programs.
    mysql_family::find_program("my_print_defaults")?;
    Some((mysql_family::find_program("mariadbd")?, mysql_family::find_program("mariadb-install-db")?))
}

impl Engine for Mariadb {
    fn database(&self) -> Database {
        Database::Mariadb
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        if place.theirs.as_os_str().as_encoded_bytes().contains(&b' ') {
            let path = place.theirs.display();
            return Err(Failure::CannotRun(format!(
                "mariadb-install-db cannot make a folder whose path has a space ({path}): set TMPDIR"
            )));
        }
        mysql_family::write_start_file(place)?;
        let mut command: Vec<OsString> = vec![self.install_db.clone().into(), "--no-defaults".into()];
        command.extend(mysql_family::data_settings(place));
        command.extend(
            ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
                .map(Into::into),
        );
        process::prepare(&command, place, "make a MariaDB data folder")
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        let mut command: Vec<OsString> = vec![self.server.clone().into(), "--no-defaults".into()];
        command.extend(mysql_family::settings(place, port));
        command
    }

    fn ready_line(&self) -> &'static str {
        mysql_family::READY_LINE
    }

    fn url(&self, port: u16) -> String {
        mysql_family::url(port)
    }
}
