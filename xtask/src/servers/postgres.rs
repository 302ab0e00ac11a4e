//! PostgreSQL: from the distribution's packages, or from `POSTHASTE_POSTGRES_BIN`.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Engine, apt, home::Place, process, program_in, version};
use crate::{
    database::Database,
    failure::{Context, Failure, Result},
};

/// A folder with PostgreSQL's programs, for another version than the newest installed one.
const BIN_VARIABLE: &str = "POSTHASTE_POSTGRES_BIN";
/// Where Debian keeps them, one folder a version.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
/// While the package is being installed, this keeps it from making and starting a server of its own.
const NO_MAIN_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/posthaste-no-main-cluster.conf";

pub struct Postgres {
    pub(super) bin: PathBuf,
    version: String,
}

impl Postgres {
    pub fn locate() -> Result<Self> {
        let bin = match std::env::var_os(BIN_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => match installed() {
                Some(folder) => folder,
                None => install()?,
            },
        };
        let server = program_in(&bin, "postgres", BIN_VARIABLE)?;
        program_in(&bin, "initdb", BIN_VARIABLE)?;
        let version = version::check(Database::Postgres, Command::new(server).arg("--version"))?;
        Ok(Self { bin, version })
    }

    fn major(&self) -> u32 {
        self.version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or_default()
    }
}

fn installed() -> Option<PathBuf> {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let newest = fs::read_dir(DEBIAN_VERSIONS)
        .ok()?
        .flatten()
        .filter(|entry| entry.path().join("bin/postgres").is_file())
        .max_by_key(number)
        .map(|entry| entry.path().join("bin"));
    newest.or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(|folder| folder.join("postgres").is_file())
    })
}

fn install() -> Result<PathBuf> {
    let guard = Path::new(NO_MAIN_CLUSTER);
    if nix::unistd::geteuid().is_root() && apt::has_apt() {
        if let Some(folder) = guard.parent() {
            fs::create_dir_all(folder).or_cannot(|| format!("make {}", folder.display()))?;
        }
        fs::write(guard, "create_main_cluster = false\n").or_cannot(|| format!("write {NO_MAIN_CLUSTER}"))?;
    }
    let installing = apt::install("PostgreSQL", &["postgresql"], "POSTHASTE_TEST_POSTGRES_URL");
    fs::remove_file(guard).ok();
    installing?;
    installed().ok_or_else(|| {
        Failure::CannotRun(format!("apt-get installed PostgreSQL, but not in {DEBIAN_VERSIONS}"))
    })
}

impl Engine for Postgres {
    fn database(&self) -> Database {
        Database::Postgres
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        let mut command: Vec<OsString> = vec![self.bin.join("initdb").into()];
        command.extend(
            ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
                .map(Into::into),
        );
        command.extend(["--pgdata".into(), place.data().into()]);
        process::prepare(&command, place, "make a PostgreSQL cluster")
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        let mut settings = vec![
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            "unix_socket_directories=".to_owned(),
            "max_connections=400".to_owned(),
            "shared_buffers=256MB".to_owned(),
            // The tests kill processes and servers, not the operating system: its cache is as good as the disk.
            "fsync=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "max_wal_size=4GB".to_owned(),
            // For the tests of two-phase commit and of statement counts.
            "max_prepared_transactions=64".to_owned(),
            "shared_preload_libraries=pg_stat_statements".to_owned(),
            // Tests count by it, each in a database of its own: none may be pushed out by the others.
            "pg_stat_statements.max=50000".to_owned(),
            "timezone=UTC".to_owned(),
            "log_timezone=UTC".to_owned(),
        ];
        if self.major() >= 14 {
            // A restart after a crash does not open every file of every database.
            settings.push("recovery_init_sync_method=syncfs".to_owned());
        }
        let mut command: Vec<OsString> =
            vec![self.bin.join("postgres").into(), "-D".into(), place.data().into()];
        for setting in settings {
            command.extend(["-c".into(), setting.into()]);
        }
        command
    }

    fn ready_line(&self) -> &'static str {
        "database system is ready to accept connections"
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }
}
