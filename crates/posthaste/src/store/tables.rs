//! Where the tables are, and the names that the SQL is given.

use crate::{OutboxError, message::excerpt};

/// Where an outbox's tables are: a prefix of their names, and a schema: on MySQL that is a database; SQLite has none.
///
/// ```
/// let tables = posthaste::Tables::default().prefix("shop_outbox_")?.schema("messaging")?;
/// # Ok::<(), posthaste::OutboxError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    pub(crate) prefix: String,
    pub(crate) schema: Option<String>,
}

impl Default for Tables {
    fn default() -> Self {
        Self { prefix: "posthaste_".to_owned(), schema: None }
    }
}

impl Tables {
    /// Every table's name begins with this; default `posthaste_`.
    ///
    /// # Errors
    ///
    /// Unless it is 1 to 32 of `[a-z0-9_]`, not a digit first.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, OutboxError> {
        self.prefix = checked(prefix)?;
        Ok(self)
    }

    /// The schema that the tables are in, or on MySQL the database; default: the connection's current one.
    ///
    /// # Errors
    ///
    /// Unless it is 1 to 32 of `[a-z0-9_]`, not a digit first.
    pub fn schema(mut self, schema: &str) -> Result<Self, OutboxError> {
        self.schema = Some(checked(schema)?);
        Ok(self)
    }
}

/// The tables' names in SQL, quoted and qualified as the database wants it.
pub(crate) struct Names {
    /// The schema or database that they are in; none: wherever the connection looks first.
    qualifier: Option<String>,
    prefix: String,
    quote: char,
}

/// Every table there is; `pending` on MySQL alone.
const TABLES: [&str; 9] =
    ["meta", "queue", "partition", "incoming", "pending", "tick", "outgoing", "cursor", "dead_letter"];

impl Names {
    pub(crate) fn new(qualifier: Option<&str>, tables: &Tables, quote: char) -> Self {
        Self { qualifier: qualifier.map(str::to_owned), prefix: tables.prefix.clone(), quote }
    }

    pub(crate) fn table(&self, name: &str) -> String {
        let table = self.unqualified(name);
        self.qualifier
            .as_ref()
            .map_or(table.clone(), |qualifier| format!("{}.{table}", self.quoted(qualifier)))
    }

    /// The name of a table, or of an index, without where it is.
    pub(crate) fn unqualified(&self, name: &str) -> String {
        self.quoted(&format!("{}{name}", self.prefix))
    }

    fn quoted(&self, name: &str) -> String {
        let quote = self.quote;
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
    }

    /// What removes these tables, each before those that it refers to; `pending` only if there is one.
    pub(crate) fn drop_sql(&self, has_pending: bool) -> String {
        let there = TABLES.iter().rev().filter(|table| has_pending || **table != "pending");
        there.map(|table| format!("DROP TABLE IF EXISTS {};\n", self.table(table))).collect()
    }

    /// A statement without its comments, with the names filled in.
    pub(crate) fn fill(&self, sql: &str) -> String {
        let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
        let mut sql = code.collect::<Vec<_>>().join("\n");
        for table in TABLES {
            sql = sql.replace(&format!("{{{table}}}"), &self.table(table));
        }
        sql
    }
}

fn checked(name: &str) -> Result<String, OutboxError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_well = name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if starts_well && name.len() <= 32 && name.bytes().all(allowed) {
        return Ok(name.to_owned());
    }
    Err(OutboxError::InvalidTableName(excerpt(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_taken() {
        for good in ["a", "_", "a1_", &"x".repeat(32)] {
            assert_eq!(Tables::default().prefix(good).unwrap().prefix, good);
            assert_eq!(Tables::default().schema(good).unwrap().schema.as_deref(), Some(good));
        }
        for bad in ["", "1a", "A", "a-b", "a b", "ä", "a\"b", "a;drop table x", "a\0", &"x".repeat(33)] {
            let error = Tables::default().prefix(bad).unwrap_err();
            assert!(matches!(error, OutboxError::InvalidTableName(_)), "{bad:?}: {error}");
            assert!(Tables::default().schema(bad).is_err(), "{bad:?}");
        }
    }
}
