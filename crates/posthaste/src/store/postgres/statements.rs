//! The statements, rendered once with the names of the tables.

use std::sync::Arc;

use crate::store::Tables;

/// The tables' names in SQL, quoted and qualified.
pub(super) struct Names<'a> {
    schema: Option<&'a str>,
    prefix: &'a str,
}

const TABLES: [&str; 8] =
    ["meta", "queue", "partition", "incoming", "tick", "outgoing", "cursor", "dead_letter"];

impl<'a> Names<'a> {
    /// In a schema, or wherever the search path leads.
    pub(super) fn new(schema: Option<&'a str>, tables: &'a Tables) -> Self {
        Self { schema, prefix: &tables.prefix }
    }

    pub(super) fn table(&self, name: &str) -> String {
        let table = quoted(&format!("{}{name}", self.prefix));
        self.schema.map_or(table.clone(), |schema| format!("{}.{table}", quoted(schema)))
    }

    /// A statement without its comments, with the names filled in.
    pub(super) fn fill(&self, sql: &str) -> String {
        let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
        let mut sql = code.collect::<Vec<_>>().join("\n");
        for table in TABLES {
            sql = sql.replace(&format!("{{{table}}}"), &self.table(table));
        }
        sql.replace("{incoming_stamp}", &quoted(&format!("{}incoming_stamp", self.prefix)))
            .replace("{incoming_literal}", &format!("'{}'", self.table("incoming").replace('\'', "''")))
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// All statements, by the names of their files.
        pub(super) struct Statements {
            /// Without a comment: what is locked while recovering.
            pub(super) incoming: String,
            $(pub(super) $name: Arc<str>,)*
        }

        impl Statements {
            pub(super) fn render(schema: &str, tables: &Tables) -> Self {
                let names = Names::new(Some(schema), tables);
                Self {
                    incoming: names.table("incoming"),
                    $($name: names.fill(include_str!(concat!("sql/", stringify!($name), ".sql"))).into(),)*
                }
            }
        }
    };
}

statements!(
    acquire,
    enqueue,
    find_queue,
    lock,
    look,
    recover,
    register_queue,
    settle,
    strays,
    survey,
    suspects,
    tick,
    vacuum,
    waiting,
);
