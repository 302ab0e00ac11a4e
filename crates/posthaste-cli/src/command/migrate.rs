//! `posthaste migrate`: makes the tables, or upgrades them.

use serde::Serialize;

use crate::{
    Context,
    args::Migrate,
    database::{Address, on},
    exit,
    failure::Outcome,
    output::printable,
};

#[derive(Serialize)]
struct Migrated {
    database: String,
    table_prefix: String,
    /// None if it is that of the connection.
    schema: Option<String>,
}

pub async fn run(options: &Migrate, context: &Context) -> Outcome {
    let (tables, address) = (context.tables()?, context.address()?);
    if options.print {
        let sql = match address {
            Address::Postgres(_) => posthaste::migration_sql::<sqlx::Postgres>(&tables),
            Address::MySql(_) => posthaste::migration_sql::<sqlx::MySql>(&tables),
            Address::Sqlite(_) => posthaste::migration_sql::<sqlx::Sqlite>(&tables),
        };
        if context.out.json {
            context.out.object(&serde_json::json!({ "sql": sql }))?;
        } else {
            context.out.line(sql.trim_end())?;
        }
        return Ok(exit::DONE);
    }
    on!(context.open_or_create().await?, pool => posthaste::migrate_with(&pool, &tables).await?);
    let done = Migrated {
        database: address.to_string(),
        table_prefix: context.common.table_prefix().to_owned(),
        schema: context.common.schema.clone(),
    };
    let text =
        format_args!("the tables are in place: {}* in {}", done.table_prefix, printable(&done.database));
    context.out.report(&done, text)?;
    Ok(exit::DONE)
}
