//! Where the demo takes place: which database, which tables, and a folder for the ledger.

use std::path::PathBuf;

use posthaste::Tables;
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
    /// Which database it is, without anything that is secret.
    pub place: String,
    pub prefix: String,
    pub tables: Tables,
}

impl Stage {
    /// On a file of its own, unless a database is named on the command line: what is in `DATABASE_URL` may be needed.
    pub async fn set(context: &Context) -> Result<(Self, Database), Failure> {
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
        let tables = Tables::default().prefix(&prefix)?;
        let url = match (named, &own_file) {
            (Some(url), _) => url,
            (None, file) => format!("sqlite://{}", file.iter().map(|file| in_url(file)).collect::<String>()),
        };
        let address = Address::of(&url)?;
        let place = match own_file {
            Some(_) => "an SQLite file of its own".to_owned(),
            None => format!("the {}", printable(&address.to_string())),
        };
        // A file that is there stays as it is set up.
        let create = matches!(&address, Address::Sqlite(options) if !options.get_filename().exists());
        let database = address.open(create, CONNECTIONS, context.common.connect_timeout).await?;
        Ok((Self { folder, url, own_file, place, prefix, tables }, database))
    }

    pub fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    pub fn workplace(&self) -> Workplace {
        Workplace { url: self.url.clone(), prefix: self.prefix.clone(), ledger: self.ledger() }
    }

    /// Whether the tables go with the folder.
    pub const fn is_own_file(&self) -> bool {
        self.own_file.is_some()
    }

    /// Keeps it, and says how to look at it. What else the URL has in it may be secret.
    pub fn keep(self) -> String {
        let Self { folder, own_file, place, prefix, .. } = self;
        let Some(file) = own_file else {
            return format!(
                "the tables {prefix}* are kept in {place}; with the same --database-url, look at them with\n  \
                 posthaste status --table-prefix {prefix}\n  \
                 posthaste dead-letters list --table-prefix {prefix}"
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

/// A path as a part of a URL.
fn in_url(path: &std::path::Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3F")
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:%".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}
