//! Private throw-away database servers: on loopback, on free ports, in a temporary folder, as an unprivileged user.
//!
//! What each kind of server needs is in its own file; how any of them is run and stopped is in `process`.

mod apt;
mod durable;
pub mod faketime;
mod home;
mod mariadb;
mod mysql;
mod mysql_family;
mod pgbouncer;
mod ports;
mod postgres;
mod private_copy;
mod process;
mod registry;
mod standby;
mod version;

use std::{collections::BTreeMap, ffi::OsString, path::Path, process::Command, thread};

use clap::Args;

pub use self::standby::promote;
use self::{
    home::{Home, Place},
    pgbouncer::Pgbouncer,
    ports::Port,
    process::{Lifetime, Server},
    registry::Record,
};
use crate::{
    database::Database,
    failure::{Failure, Result},
    interrupt,
    output::say,
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

/// Names the folder that tests make their SQLite databases in.
const SQLITE_FOLDER: &str = "POSTHASTE_TEST_SQLITE_FOLDER";

/// One kind of server: where it is on this machine, and how it wants to be run.
trait Engine: Send + Sync {
    fn database(&self) -> Database;
    fn version(&self) -> &str;
    /// Makes an empty database cluster.
    fn initialise(&self, place: &Place) -> Result<()>;
    /// What runs the server in the foreground, as whoever runs the command.
    fn command(&self, place: &Place, port: u16) -> Vec<OsString>;
    /// What its log says when it takes connections.
    fn ready_line(&self) -> &'static str;
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

/// A server program in a folder that a variable names.
fn program_in(folder: &Path, name: &str, variable: &str) -> Result<std::path::PathBuf> {
    let program = folder.join(name);
    program.is_file().then_some(program).ok_or_else(|| {
        Failure::CannotRun(format!(
            "there is no {name} in {}: set {variable} to a folder that has it",
            folder.display()
        ))
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
    /// Databases that could not be had, and why; empty unless the caller said that they may be missing.
    pub missing: BTreeMap<Database, String>,
    /// Before the PostgreSQL, in transaction mode.
    pooler_url: Option<String>,
    // Servers before their folder: they are dropped in this order.
    servers: Vec<Server>,
    home: Home,
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
        let mut excuse = |database: Database, failure: Failure| match failure {
            Failure::CannotRun(why) if may_be_missing.contains(&database) => {
                missing.insert(database, why);
                Ok(())
            }
            failure => Err(failure),
        };
        let mut engines = Vec::new();
        let up = registry::read()?;
        for &database in databases {
            if let Some(url) = database.named_url()? {
                refuse_port(ports, database)?;
                let variable = database.url_variable().unwrap_or_default();
                addresses.push(Address { database, url, description: format!("named by {variable}") });
            } else if let Some(server) =
                up.iter().find(|server| server.database == database && server.is_alive())
            {
                refuse_port(ports, database)?;
                let description = format!("{}, up since `cargo xtask servers up`", server.version);
                addresses.push(Address { database, url: server.url.clone(), description });
            } else {
                match locate(database) {
                    Ok(engine) => engines.extend(engine),
                    Err(failure) => excuse(database, failure)?,
                }
            }
        }
        let home = Home::temporary()?;
        let mut servers = Vec::new();
        for (database, server) in start(&engines, &home, ports, Lifetime::Mine, &mut |_| Ok(()))? {
            match server {
                Ok(server) => servers.push(server),
                Err(failure) => excuse(database, failure)?,
            }
        }
        addresses.extend(servers.iter().map(|server| Address {
            database: server.record.database,
            url: server.record.url.clone(),
            description: server.record.version.clone(),
        }));
        let mut fleet = Self { addresses, missing, pooler_url: pgbouncer::named_url(), servers, home };
        fleet.put_pooler_before_postgres()?;
        Ok(fleet)
    }

    /// A pooler before the PostgreSQL of the fleet, if it has one and nobody named another.
    fn put_pooler_before_postgres(&mut self) -> Result<()> {
        let postgres = self.addresses.iter().find(|address| address.database == Database::Postgres);
        if let Some(postgres) = postgres.filter(|_| self.pooler_url.is_none()) {
            let pooler = start_pooler(&postgres.url, &self.home)?;
            self.pooler_url = Some(pooler.record.url.clone());
            self.servers.push(pooler);
        }
        Ok(())
    }

    /// The environment by which a command finds the databases, with a folder for its own temporary files that goes
    /// when the fleet goes.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let mut variables = vec![("TMPDIR", self.home.scratch()?.into_os_string())];
        variables.extend(self.home.for_files().map(|folder| (SQLITE_FOLDER, OsString::from(folder))));
        // Tests that need a server of their own, to stop and to start, ask this program for it.
        variables.extend(
            std::env::current_exe().ok().map(|program| ("POSTHASTE_XTASK", program.into_os_string())),
        );
        variables.extend(self.pooler_url.iter().map(|url| (pgbouncer::URL_VARIABLE, OsString::from(url))));
        for address in &self.addresses {
            if let Some(variable) = address.database.url_variable() {
                variables.push((variable, OsString::from(&address.url)));
            }
        }
        Ok(variables)
    }
}

fn start_pooler(postgres_url: &str, home: &Home) -> Result<Server> {
    let engine = Pgbouncer::locate(postgres_url)?;
    let place = home.place_named("pgbouncer")?;
    Server::start(&engine, &place, Port::Any, Lifetime::Mine, &mut |_| Ok(()))
}

/// A server of its own for measuring, which is nobody else's and lives as long as this.
pub struct Measured {
    // In this order they are dropped: the folder last.
    pooler: Option<Server>,
    server: Server,
    home: Home,
}

impl Measured {
    pub fn start(database: Database) -> Result<Self> {
        let engine =
            locate(database)?.ok_or_else(|| Failure::CannotRun(format!("{database} has no server")))?;
        let home = Home::temporary()?;
        let engines: [Box<dyn Engine>; 1] = [Box::new(durable::Durable(engine))];
        let started = start(&engines, &home, &BTreeMap::new(), Lifetime::Mine, &mut |_| Ok(()))?;
        let (_, server) = started
            .into_iter()
            .next()
            .ok_or_else(|| Failure::CannotRun(format!("{database} was not started")))?;
        Ok(Self { pooler: None, server: server?, home })
    }

    /// Puts a transaction pooler before a PostgreSQL, and returns its URL.
    pub fn put_pooler_before_it(&mut self) -> Result<String> {
        let pooler = start_pooler(&self.server.record.url, &self.home)?;
        Ok(self.pooler.insert(pooler).record.url.clone())
    }

    pub fn record(&self) -> &Record {
        &self.server.record
    }
}

/// Prepares all of them side by side, then starts them one by one. What one of them fails at is its own result.
fn start(
    engines: &[Box<dyn Engine>],
    home: &Home,
    ports: &BTreeMap<Database, u16>,
    lifetime: Lifetime,
    spawned: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<Vec<(Database, Result<Server>)>> {
    let mut prepared = Vec::new();
    for engine in engines {
        let port = ports.get(&engine.database()).map_or(Ok(Port::Any), |port| Port::given(*port))?;
        prepared.push((engine, port, home.place(engine.database())?));
    }
    let initialised: Vec<Result<()>> = thread::scope(|scope| {
        let initialising: Vec<_> =
            prepared.iter().map(|(engine, _, place)| scope.spawn(|| engine.initialise(place))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        initialising.into_iter().map(join).collect()
    });
    // Started by this thread, which outlives them: a server that is ours ends when the thread that started it does.
    let mut servers = Vec::new();
    for ((engine, port, place), initialised) in prepared.into_iter().zip(initialised) {
        let server = initialised.and_then(|()| Server::start(&**engine, &place, port, lifetime, spawned));
        if server.is_err() {
            home.clear(engine.database().name())?;
        }
        servers.push((engine.database(), server));
    }
    Ok(servers)
}

impl ServerOptions {
    fn databases(&self) -> Result<Vec<Database>> {
        Database::parse_all(&self.databases)
    }

    /// Each port for one of the databases that were asked for, and no port twice.
    fn ports(&self) -> Result<BTreeMap<Database, u16>> {
        let asked_for = self.databases()?;
        let mut ports = BTreeMap::new();
        for text in &self.ports {
            let refuse = |why: &str| Failure::CannotRun(format!("--port {text}: {why}"));
            let how = "write it as DATABASE=PORT, like postgres=5433";
            let (name, port) = text.split_once('=').ok_or_else(|| refuse(how))?;
            let database = Database::parse(name)?;
            let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| refuse(how))?;
            if database == Database::Sqlite || !asked_for.contains(&database) {
                return Err(refuse("no such server is started; name it with --db too"));
            }
            if ports.values().any(|given| *given == port) || ports.insert(database, port).is_some() {
                return Err(refuse("give each server one port of its own"));
            }
        }
        Ok(ports)
    }
}

fn refuse_port(ports: &BTreeMap<Database, u16>, database: Database) -> Result<()> {
    if ports.contains_key(&database) {
        return Err(Failure::CannotRun(format!(
            "--port {database}=…: there is a {database} already; leave --port out"
        )));
    }
    Ok(())
}

/// `cargo xtask servers up`
pub fn up(options: &ServerOptions) -> Result<()> {
    let (databases, ports) = (options.databases()?, options.ports()?);
    let home = Home::permanent()?;
    let started = start_and_record(&databases, &ports, &home);
    if registry::read()?.is_empty() {
        home.remove()?;
    }
    for record in started? {
        say!("export {}='{}'", record.database.url_variable().unwrap_or_default(), record.url);
    }
    Ok(())
}

/// Starts what is not up yet, and returns all that is up then; all or nothing.
fn start_and_record(
    databases: &[Database],
    ports: &BTreeMap<Database, u16>,
    home: &Home,
) -> Result<Vec<Record>> {
    let mut up = registry::read()?;
    up.retain(Record::is_alive);
    let mut engines = Vec::new();
    for &database in databases {
        if database.named_url()?.is_some() {
            refuse_port(ports, database)?;
            let variable = database.url_variable().unwrap_or_default();
            say!("# {database}: {variable} names a server already; none started");
        } else if up.iter().any(|record| record.database == database) {
            refuse_port(ports, database)?;
            say!("# {database}: already up");
        } else if database == Database::Sqlite {
            say!("# sqlite: needs no server");
        } else {
            engines.extend(locate(database)?);
        }
    }
    // Written down as soon as there is a process: whatever happens to this one, `down` finds it.
    let mut records = up.clone();
    let mut write_down = |record: &Record| {
        records.retain(|known| known.database != record.database);
        records.push(record.clone());
        registry::write(&records)
    };
    let started = start(&engines, home, ports, Lifetime::UntilDown, &mut write_down)?;
    let started: Result<Vec<Server>> = started.into_iter().map(|(_, server)| server).collect();
    if let Ok(servers) = started.as_ref() {
        up.extend(servers.iter().map(|server| server.record.clone()));
    }
    up.sort_by_key(|record| record.database);
    registry::write(&up)?;
    started?.into_iter().for_each(Server::leave_running);
    Ok(up)
}

/// `cargo xtask servers restart`
pub fn restart() -> Result<()> {
    let home = Home::permanent()?;
    let mut records = registry::read()?;
    for at in 0..records.len() {
        let record = records[at].clone();
        record.stop()?;
        if let Some(engine) = locate(record.database)? {
            let (place, port) = (home.existing_place(&record.place), Port::Given(record.port));
            // Written down as soon as there is a process, as by `up`.
            let mut write_down = |started: &Record| {
                records[at] = started.clone();
                registry::write(&records)
            };
            let server = Server::start(&*engine, &place, port, Lifetime::UntilDown, &mut write_down)?;
            server.leave_running();
        }
    }
    for record in records {
        say!("{}: restarted (port {})", record.database, record.port);
    }
    Ok(())
}

/// `cargo xtask servers down`
pub fn down(keep: bool) -> Result<()> {
    let home = Home::permanent()?;
    let records = registry::read()?;
    for record in &records {
        record.stop()?;
    }
    if keep {
        registry::write(&[])?;
    } else {
        home.remove()?;
    }
    if records.is_empty() {
        say!("no servers are up");
    }
    for record in records {
        say!("{}: stopped (port {})", record.database, record.port);
    }
    Ok(())
}

/// `cargo xtask servers status`
pub fn status() -> Result<()> {
    let records = registry::read()?;
    if records.is_empty() {
        say!("no servers are up; start them with `cargo xtask servers up`");
        return Ok(());
    }
    let mut gone = Vec::new();
    for record in &records {
        let Record { database, version, pid, url, .. } = record;
        let state = if record.is_alive() { "up" } else { "gone" };
        say!("{:<9} {state:<5} {version:<10} pid {pid:<8} {url}", database.name());
        if !record.is_alive() {
            gone.push(database.name());
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
