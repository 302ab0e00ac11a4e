//! Private throw-away database servers: on loopback, on free ports, in a temporary folder, as an unprivileged user.
//!
//! What each kind of server needs is in its own file; how any of them is run and stopped is in `process`.

mod apt;
mod home;
mod mariadb;
mod mysql;
mod mysql_family;
mod ports;
mod postgres;
mod process;
mod registry;
mod version;

use std::{collections::BTreeMap, ffi::OsString, path::Path, process::Command, thread};

use clap::Args;
use nix::sys::signal::Signal;

use self::{home::Home, ports::Port, process::Lifetime, process::Server};
use crate::{
    database::Database,
    failure::{Failure, Result},
    interrupt,
};

#[derive(Args)]
pub struct ServerOptions {
    /// Only this database; may be repeated [sqlite, postgres, mariadb, mysql]
    #[arg(long = "db", value_name = "DATABASE")]
    databases: Vec<String>,
    /// Use this port instead of a free one, as postgres=5433; may be repeated
    #[arg(long = "port", value_name = "DATABASE=PORT")]
    ports: Vec<String>,
}

/// One kind of server: where it is on this machine, and how it wants to be run.
trait Engine: Send + Sync {
    fn database(&self) -> Database;
    fn version(&self) -> &str;
    /// Makes an empty database cluster in `folder`.
    fn initialise(&self, folder: &Path) -> Result<()>;
    /// What runs the server in the foreground, as whoever runs the command.
    fn command(&self, folder: &Path, port: u16) -> Vec<OsString>;
    /// Whether it answers.
    fn is_ready(&self, folder: &Path, port: u16) -> bool;
    /// How to end it fast; nothing in it is worth keeping.
    fn stop_signal(&self) -> Signal;
    fn url(&self, port: u16) -> String;
}

/// The server software on this machine, installed first if it is missing and can be.
fn locate(database: Database) -> Result<Option<Box<dyn Engine>>> {
    Ok(match database {
        Database::Sqlite => None,
        Database::Postgres => Some(Box::new(postgres::Postgres::locate()?)),
        Database::Mariadb => Some(Box::new(mariadb::Mariadb::locate()?)),
        Database::Mysql => Some(Box::new(mysql::Mysql::locate()?)),
    })
}

/// Where the tests find a database.
pub struct Address {
    pub database: Database,
    pub url: String,
    /// For people: the version, or who named it.
    pub description: String,
}

/// Addresses for the tests, and the servers behind those that were started for them.
pub struct Fleet {
    pub addresses: Vec<Address>,
    /// Databases that could not be had, and why; empty unless the caller said that it may be missing.
    pub missing: BTreeMap<Database, String>,
    // Servers before their folder: they are dropped in this order.
    _servers: Vec<Server>,
    _home: Home,
}

impl Fleet {
    /// A server for each database: the one that the environment names, else the one that `servers up` started, else
    /// a new one that lives as long as the fleet.
    pub fn gather(
        databases: &[Database],
        ports: &BTreeMap<Database, u16>,
        may_be_missing: &[Database],
    ) -> Result<Self> {
        let mut addresses = Vec::new();
        let mut missing = BTreeMap::new();
        let mut engines = Vec::new();
        let up = registry::read()?;
        for database in databases {
            if let Some(url) = database.named_url()? {
                let variable = database.url_variable().unwrap_or_default();
                addresses.push(Address {
                    database: *database,
                    url,
                    description: format!("named by {variable}"),
                });
            } else if let Some(server) =
                up.iter().find(|server| server.database == *database && server.is_alive())
            {
                let description = format!("{}, up since `cargo xtask servers up`", server.version);
                addresses.push(Address { database: *database, url: server.url.clone(), description });
            } else {
                match locate(*database) {
                    Ok(engine) => engines.extend(engine),
                    Err(Failure::CannotRun(why)) if may_be_missing.contains(database) => {
                        missing.insert(*database, why);
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        let home = Home::temporary()?;
        let servers = start(&engines, &home, ports, Lifetime::Mine)?;
        addresses.extend(servers.iter().map(|server| Address {
            database: server.record.database,
            url: server.record.url.clone(),
            description: server.record.version.clone(),
        }));
        Ok(Self { addresses, missing, _servers: servers, _home: home })
    }

    /// The environment by which a command finds the databases, with a folder for its own temporary files that goes
    /// when the fleet goes.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let mut variables = vec![("TMPDIR", self._home.scratch()?.into_os_string())];
        for address in &self.addresses {
            if let Some(variable) = address.database.url_variable() {
                variables.push((variable, OsString::from(&address.url)));
            }
        }
        Ok(variables)
    }
}

/// Prepares all of them side by side, then starts them.
fn start(
    engines: &[Box<dyn Engine>],
    home: &Home,
    ports: &BTreeMap<Database, u16>,
    lifetime: Lifetime,
) -> Result<Vec<Server>> {
    let mut prepared = Vec::new();
    for engine in engines {
        let port = match ports.get(&engine.database()) {
            Some(port) => Port::given(*port)?,
            None => Port::Any,
        };
        prepared.push((engine, port, home.folder(engine.database().name())?));
    }
    thread::scope(|scope| {
        let initialising: Vec<_> =
            prepared.iter().map(|(engine, _, folder)| scope.spawn(|| engine.initialise(folder))).collect();
        initialising
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    // Started by this thread, which outlives them: a server that is ours ends when the thread that started it does.
    prepared
        .into_iter()
        .map(|(engine, port, folder)| Server::start(&**engine, &folder, port, lifetime))
        .collect()
}

impl ServerOptions {
    fn databases(&self) -> Result<Vec<Database>> {
        Database::parse_all(&self.databases)
    }

    fn ports(&self) -> Result<BTreeMap<Database, u16>> {
        let parse = |text: &String| {
            let refuse = || {
                Failure::CannotRun(format!("--port {text}: write it as DATABASE=PORT, like postgres=5433"))
            };
            let (name, port) = text.split_once('=').ok_or_else(refuse)?;
            let database = Database::parse(name)?;
            Ok((database, port.parse().ok().filter(|port| *port > 0).ok_or_else(refuse)?))
        };
        self.ports.iter().map(parse).collect()
    }
}

/// `cargo xtask servers up`
pub fn up(options: &ServerOptions) -> Result<()> {
    let (databases, ports) = (options.databases()?, options.ports()?);
    let home = Home::permanent()?;
    let started = start_and_record(&databases, &ports, &home);
    if started.is_err() && registry::read()?.is_empty() {
        Home::remove_permanent()?;
    }
    for record in started? {
        println!("export {}='{}'", record.database.url_variable().unwrap_or_default(), record.url);
    }
    Ok(())
}

/// Starts what is not up yet, and returns all that is up then.
fn start_and_record(
    databases: &[Database],
    ports: &BTreeMap<Database, u16>,
    home: &Home,
) -> Result<Vec<registry::Record>> {
    let mut records = registry::read()?;
    records.retain(registry::Record::is_alive);
    let mut engines = Vec::new();
    for database in databases {
        if database.named_url()?.is_some() {
            let variable = database.url_variable().unwrap_or_default();
            println!("# {database}: {variable} names a server already; none started");
        } else if records.iter().any(|record| record.database == *database) {
            println!("# {database}: already up");
        } else if *database == Database::Sqlite {
            println!("# sqlite: needs no server");
        } else {
            engines.extend(locate(*database)?);
        }
    }
    let servers = start(&engines, home, ports, Lifetime::UntilDown)?;
    records.extend(servers.iter().map(|server| server.record.clone()));
    records.sort_by_key(|record| record.database);
    registry::write(&records)?;
    for server in servers {
        server.leave_running();
    }
    Ok(records)
}

/// `cargo xtask servers down`
pub fn down() -> Result<()> {
    let records = registry::read()?;
    if records.is_empty() {
        println!("no servers are up");
    }
    let _alone = Home::permanent()?;
    for record in &records {
        record.stop()?;
        println!("{}: stopped (port {})", record.database, record.port);
    }
    Home::remove_permanent()
}

/// `cargo xtask servers status`
pub fn status() -> Result<()> {
    let records = registry::read()?;
    if records.is_empty() {
        println!("no servers are up; start them with `cargo xtask servers up`");
        return Ok(());
    }
    let mut gone = Vec::new();
    for record in &records {
        let state = if record.is_alive() { "up" } else { "gone" };
        println!(
            "{:<9} {state:<5} {:<10} pid {:<8} {}",
            record.database.name(),
            record.version,
            record.pid,
            record.url
        );
        if !record.is_alive() {
            gone.push(record.database.name());
        }
    }
    if gone.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} ended by itself; start it again with `cargo xtask servers up`",
        gone.join(", ")
    )))
}

/// `cargo xtask servers run -- command`
pub fn run(options: &ServerOptions, command: &[OsString]) -> Result<()> {
    let fleet = Fleet::gather(&options.databases()?, &options.ports()?, &[])?;
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::CannotRun("no command given: write it after --".to_owned()))?;
    let status = interrupt::wait(Command::new(program).args(arguments).envs(fleet.environment()?))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Failed(format!("{} failed: {status}", program.to_string_lossy())))
}
