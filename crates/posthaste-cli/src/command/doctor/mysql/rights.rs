//! What this user may do with the tables.

use sqlx::{AssertSqlSafe, MySqlConnection, mysql::MySqlDatabaseError};

use crate::command::doctor::finding::{Examination, Finding};

pub const RIGHTS: Examination =
    Examination { code: "rights", fine: "this user may do with the tables what is needed" };

/// The server says which right is missing of a table, or of a column of it.
const DENIED: [u16; 2] = [1142, 1143];

/// A column of each table, to try an UPDATE with.
const fn column_of(table: &str) -> &'static str {
    match table.as_bytes() {
        b"meta" => "schema_version",
        b"queue" => "partitions",
        b"tick" | b"pending" => "id",
        b"partition" => "number",
        _ => "partition_id",
    }
}

/// Has each kind of statement explained: that takes the same rights, and does nothing.
pub async fn rights(
    conn: &mut MySqlConnection,
    database: &str,
    prefix: &str,
    tables: &[&str],
) -> Result<Vec<Finding>, sqlx::Error> {
    let me: String = sqlx::query_scalar("SELECT CURRENT_USER()").fetch_one(&mut *conn).await?;
    let mut findings = Vec::new();
    for table in tables {
        let name = format!("`{}`.`{prefix}{table}`", database.replace('`', "``"));
        let column = column_of(table);
        let tries = [
            ("SELECT", format!("EXPLAIN SELECT 1 FROM {name} WHERE 1 = 0")),
            ("INSERT", format!("EXPLAIN INSERT INTO {name} ({column}) VALUES (0)")),
            ("UPDATE", format!("EXPLAIN UPDATE {name} SET {column} = 0")),
            ("DELETE", format!("EXPLAIN DELETE FROM {name}")),
        ];
        let mut lacks = Vec::new();
        for (right, sql) in tries {
            match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await {
                Ok(_) => {}
                Err(error) if is_denied(&error) => lacks.push(right),
                Err(error) => return Err(error),
            }
        }
        if !lacks.is_empty() {
            let lacks = lacks.join(", ");
            findings.push(Finding::problem(
                format!("{me} lacks {lacks} on {database}.{prefix}{table}"),
                format!("GRANT {lacks} ON {name} TO {}", account(&me)),
            ));
        }
    }
    Ok(findings)
}

fn is_denied(error: &sqlx::Error) -> bool {
    let said = error.as_database_error().and_then(|said| said.try_downcast_ref::<MySqlDatabaseError>());
    said.is_some_and(|said| DENIED.contains(&said.number()))
}

/// As a statement names an account.
fn account(me: &str) -> String {
    let (user, host) = me.rsplit_once('@').unwrap_or((me, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    format!("{}@{}", quoted(user), quoted(host))
}
