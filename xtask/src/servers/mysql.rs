//! MySQL: an installed one, one in `POSTHASTE_MYSQL_BIN`, or a private copy from Debian's unstable suite.
//!
//! Debian's stable releases have no MySQL. The unstable suite moves, so that copy may fail some day; then it says so, and a
//! server can be named instead.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Engine,
    home::Place,
    mysql_family,
    private_copy::{PrivateCopy, Suite},
    process, program_in, version,
};
use crate::{database::Database, failure::Result};

/// A folder with MySQL's programs.
const BIN_VARIABLE: &str = "POSTHASTE_MYSQL_BIN";

pub struct Mysql {
    /// What comes before mysqld's own arguments: the program, or the loader that runs it.
    program: Vec<OsString>,
    /// Where the private copy is, which mysqld must be told.
    root: Option<PathBuf>,
    version: String,
}

impl Mysql {
    pub fn locate() -> Result<Self> {
        if let Some(folder) = std::env::var_os(BIN_VARIABLE).map(PathBuf::from) {
            let server = program_in(&folder, "mysqld", BIN_VARIABLE)?;
            return Self::new(vec![server.into()], None);
        }
        if let Some(server) = mysql_family::find_program("mysqld").filter(|server| !is_mariadb(server)) {
            return Self::new(vec![server.into()], None);
        }
        let copy =
            PrivateCopy::of("MySQL", "mysql-server-core", Suite::Unstable, "POSTHASTE_TEST_MYSQL_URL")?;
        Self::new(copy.command("usr/sbin/mysqld")?, Some(copy.root))
    }

    fn new(program: Vec<OsString>, root: Option<PathBuf>) -> Result<Self> {
        let mut command = Command::new(&program[0]);
        let version = version::check(
            Database::Mysql,
            command.args(&program[1..]).args(["--no-defaults", "--version"]),
        )?;
        Ok(Self { program, root, version })
    }

    fn with_settings(&self, settings: Vec<OsString>) -> Vec<OsString> {
        let mut command = self.program.clone();
        command.push("--no-defaults".into());
        if let Some(root) = &self.root {
            command.push(mysql_family::path_setting("--basedir=", &root.join("usr")));
            command.push(mysql_family::path_setting("--lc-messages-dir=", &root.join("usr/share/mysql")));
            command.push(mysql_family::path_setting(
                "--character-sets-dir=",
                &root.join("usr/share/mysql/charsets"),
            ));
            command.push(mysql_family::path_setting("--plugin-dir=", &root.join("usr/lib/mysql/plugin")));
        }
        command.extend(
            ["--mysqlx=0", "--secure-file-priv=NULL", "--innodb-redo-log-capacity=64M"].map(Into::into),
        );
        command.extend(settings);
        command
    }
}

/// MariaDB's packages install a `mysqld` too.
fn is_mariadb(server: &Path) -> bool {
    Command::new(server)
        .arg("--version")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("MariaDB"))
}

impl Engine for Mysql {
    fn database(&self) -> Database {
        Database::Mysql
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        mysql_family::write_start_file(place)?;
        let mut settings = mysql_family::data_settings(place);
        settings.push("--initialize-insecure".into());
        process::prepare(&self.with_settings(settings), place, "make a MySQL data folder")
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        self.with_settings(mysql_family::settings(place, port))
    }

    fn ready_line(&self) -> &'static str {
        mysql_family::READY_LINE
    }

    fn url(&self, port: u16) -> String {
        mysql_family::url(port)
    }
}
