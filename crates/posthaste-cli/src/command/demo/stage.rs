//! Where the demo takes place: which database, which tables, and a folder for the ledger.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
};

use posthaste::Tables;
use sqlx::{ConnectOptions, Connection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::{producers::TILLS, second::Workplace};
use crate::{
    Context,
    database::{Address, Database},
    failure::Failure,
    output::printable,
};

/// The tills' and two to look with; the workers have their own.
const CONNECTIONS: u32 = TILLS + 2;

/// What the tables' names begin with in a file of its own: what the other commands look for.
const OWN_PREFIX: &str = "posthaste_";

pub struct Stage {
    folder: TempDir,
    url: String,
    /// Made for this run; removed with the folder.
    own_file: Option<PathBuf>,
    /// Was named, and made by us because it was not there.
    made_file: Option<Box<SqliteConnectOptions>>,
    /// Which database it is, without anything that is secret.
    pub place: String,
    pub prefix: String,
    pub schema: Option<String>,
    pub tables: Tables,
}

impl Stage {
    /// On a file of its own, unless a database is named on the command line: what is in `DATABASE_URL` may be needed.
    pub async fn set(context: &Context) -> Result<(Self, Database), Failure> {
        if context.common.table_prefix.is_some() {
            return Err(Failure::Usage(
                "the demo gives its tables names that nobody else has: leave out --table-prefix".to_owned(),
            ));
        }
        let folder = tempfile::Builder::new().prefix("posthaste-demo-").tempdir();
        let folder = folder.map_err(|error| {
            Failure::Problem(format!("cannot make a folder in {}: {error}", std::env::temp_dir().display()))
        })?;
        let named = context.common.database_url.clone();
        let own_file = named.is_none().then(|| folder.path().join("shop.db"));
        let prefix = match own_file {
            Some(_) => OWN_PREFIX.to_owned(),
            None => format!("demo_{:08x}_", fastrand::u32(..)),
        };
        let schema = context.common.schema.clone();
        let tables = tables(&prefix, schema.as_deref())?;
        let url = match (named, &own_file) {
            (Some(url), _) => url,
            (None, file) => format!("sqlite://{}", file.iter().map(|file| in_url(file)).collect::<String>()),
        };
        let address = Address::of(&url)?;
        let place = match own_file {
            Some(_) => "an SQLite file of its own".to_owned(),
            None => format!("the {}", printable(&address.to_string())),
        };
        let (mut made_file, mut create) = (None, false);
        if let Address::Sqlite(options) = &address {
            if schema.is_some() {
                return Err(Failure::Usage("SQLite has no schemas: leave out --schema".to_owned()));
            }
            // Whoever makes it may remove it again, so it must not be somebody else who does at the same time.
            let is_new = own_file.is_none() && is_made(options.get_filename());
            made_file = is_new.then(|| options.clone());
            // The journal of a file that is there becomes a WAL, too, as soon as the outbox is in it: it needs one.
            create = is_new || !options.get_filename().exists();
        }
        let opened = address.open(create, CONNECTIONS, context.common.connect_timeout).await;
        if let (Err(_), Some(options)) = (&opened, &made_file) {
            std::fs::remove_file(options.get_filename()).ok();
        }
        let database = opened?;
        Ok((Self { folder, url, own_file, made_file, place, prefix, schema, tables }, database))
    }

    /// Removes the file that was made for this run, unless somebody else has put something into it meanwhile. The pool must be
    /// closed.
    pub async fn remove_made_file(&self) -> Result<(), Failure> {
        let Some(options) = &self.made_file else { return Ok(()) };
        let mut conn = options.clone().create_if_missing(false).connect().await?;
        // SQLite has tables of its own, which stay.
        let rest = "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
        let rest: i64 = sqlx::query_scalar(rest).fetch_one(&mut conn).await?;
        // The last one to close it removes the WAL.
        conn.close().await?;
        if rest == 0 {
            std::fs::remove_file(options.get_filename())?;
        }
        Ok(())
    }

    pub fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    pub fn workplace(&self) -> Workplace {
        Workplace {
            url: self.url.clone(),
            prefix: self.prefix.clone(),
            schema: self.schema.clone(),
            ledger: self.ledger(),
        }
    }

    /// Whether the tables go with the folder.
    pub const fn is_own_file(&self) -> bool {
        self.own_file.is_some()
    }

    /// Keeps it, and says how to look at it. What else the URL has in it may be secret.
    pub fn keep(self) -> String {
        let Self { folder, own_file, place, prefix, schema, .. } = self;
        let Some(file) = own_file else {
            let schema = schema.map(|schema| format!(" --schema {schema}")).unwrap_or_default();
            return format!(
                "the tables {prefix}* are kept in {place}; with the same --database-url, look at them with\n  \
                 posthaste status --table-prefix {prefix}{schema}\n  \
                 posthaste dead-letters list --table-prefix {prefix}{schema}"
            );
        };
        let folder = folder.keep();
        let url = quoted(&format!("sqlite:{}", in_url(&file)));
        format!(
            "it is kept in {}; look at it with\n  \
             posthaste status --database-url {url}\n  \
             posthaste dead-letters list --database-url {url}",
            printable(&folder.display().to_string())
        )
    }
}

/// The tables with this prefix, in this schema.
pub fn tables(prefix: &str, schema: Option<&str>) -> Result<Tables, Failure> {
    let tables = Tables::default().prefix(prefix)?;
    Ok(match schema {
        Some(schema) => tables.schema(schema)?,
        None => tables,
    })
}

/// Whether the file was not there, and is now.
fn is_made(file: &Path) -> bool {
    OpenOptions::new().write(true).create_new(true).open(file).is_ok()
}

/// A path as a part of a URL.
fn in_url(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3F")
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:%".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}
