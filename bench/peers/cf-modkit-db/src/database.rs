//! What the outbox leaves to its users: connecting as it wants it, the table that transactional handlers write to, and the
//! questions that only its tables can answer.

use std::{collections::HashMap, sync::Arc};

use anyhow::{Context, Result};
use harness::{Database, Origin, Target};
use modkit_db::{ConnectOpts, Db, connect_db};
use sea_orm::{ConnectOptions, ConnectionTrait, DatabaseConnection, DbBackend, DbErr, Statement, Value};
use tokio::{sync::Barrier, task::JoinSet};

const MAKE_EFFECTS: &str = "CREATE TABLE effects (producer int NOT NULL, number bigint NOT NULL)";
const COUNT_EFFECTS: &str = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM (SELECT DISTINCT producer, number FROM effects) AS different)";
/// One of each at most: to count them all would keep the server busy while it cleans up.
const COUNT_LEFT: &str = "SELECT (SELECT count(*) FROM (SELECT 1 FROM modkit_outbox_incoming LIMIT 1) AS i) + (SELECT count(*) FROM (SELECT 1 FROM modkit_outbox_outgoing LIMIT 1) AS o), (SELECT count(*) FROM (SELECT 1 FROM modkit_outbox_body LIMIT 1) AS b)";

/// The system's own pool.
pub async fn connect(target: &Target, connections: u32) -> Result<Db> {
    let options = ConnectOpts { max_conns: Some(connections), ..Default::default() };
    match target.database {
        Database::Postgres => Ok(connect_db(&target.url, options).await?),
        Database::Mariadb => connect_read_committed(&target.url, options, connections).await,
        Database::Sqlite => {
            let pragmas = "mode=rwc&journal_mode=WAL&synchronous=FULL&busy_timeout=60000";
            Ok(connect_db(&format!("{}?{pragmas}", target.url), options).await?)
        }
    }
}

/// It wants MariaDB at READ COMMITTED, but has no way to say so for its own sessions, which take what the server has when they
/// begin: so the server has it until all of them have begun.
async fn connect_read_committed(url: &str, options: ConnectOpts, connections: u32) -> Result<Db> {
    let server = beside(url).await?;
    server.execute_unprepared("SET GLOBAL tx_isolation = 'READ-COMMITTED'").await?;
    let opened = async {
        let db = connect_db(url, options).await?;
        open_all(&db, connections).await?;
        anyhow::Ok(db)
    }
    .await;
    server.execute_unprepared("SET GLOBAL tx_isolation = DEFAULT").await?;
    opened
}

/// Holds as many transactions at once as the pool has connections.
async fn open_all(db: &Db, connections: u32) -> Result<()> {
    let count = usize::try_from(connections)?;
    let all_open = Arc::new(Barrier::new(count));
    let mut transactions = JoinSet::new();
    for _ in 0..count {
        let (db, all_open) = (db.clone(), Arc::clone(&all_open));
        transactions.spawn(async move {
            let wait_for_all = db.transaction(|_| {
                Box::pin(async move {
                    all_open.wait().await;
                    Ok(())
                })
            });
            wait_for_all.await.1
        });
    }
    while let Some(done) = transactions.join_next().await {
        done??;
    }
    Ok(())
}

/// A connection beside the system's.
pub async fn beside(url: &str) -> Result<DatabaseConnection> {
    let mut options = ConnectOptions::new(url);
    options.max_connections(1).sqlx_logging(false);
    Ok(sea_orm::Database::connect(options).await?)
}

/// Handlers hear the id of a partition's row: which of the queue's partitions that is.
pub async fn partitions_by_id(conn: &DatabaseConnection, queue: &str) -> Result<HashMap<i64, u32>> {
    let backend = conn.get_database_backend();
    let ask = match backend {
        DbBackend::MySql => "SELECT id, `partition` FROM modkit_outbox_partitions WHERE queue = ?",
        _ => "SELECT id, partition FROM modkit_outbox_partitions WHERE queue = $1",
    };
    let rows = conn.query_all(Statement::from_sql_and_values(backend, ask, [queue.into()])).await?;
    let partition = |row: &sea_orm::QueryResult| {
        let number: i16 = row.try_get_by_index(1)?;
        Ok((row.try_get_by_index(0)?, u32::try_from(number)?))
    };
    rows.iter().map(partition).collect()
}

async fn two_counts(conn: &DatabaseConnection, question: &str) -> Result<(u64, u64)> {
    let ask = Statement::from_string(conn.get_database_backend(), question);
    let row = conn.query_one(ask).await?.context("a count without a row")?;
    let (one, other): (i64, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    Ok((one.try_into()?, other.try_into()?))
}

/// Whether nothing is left of any message.
pub async fn is_empty(conn: &DatabaseConnection) -> Result<bool> {
    Ok(two_counts(conn, COUNT_LEFT).await? == (0, 0))
}

pub async fn make_effects(conn: &DatabaseConnection) -> Result<()> {
    conn.execute_unprepared(MAKE_EFFECTS).await?;
    Ok(())
}

/// Rows, and different rows, of what was inserted.
pub async fn count_effects(conn: &DatabaseConnection) -> Result<(u64, u64)> {
    two_counts(conn, COUNT_EFFECTS).await
}

/// One statement for all.
pub async fn insert_effects(conn: &dyn ConnectionTrait, origins: &[Origin]) -> Result<(), DbErr> {
    let backend = conn.get_database_backend();
    let producers = origins.iter().map(|origin| origin.producer.cast_signed());
    let numbers = origins.iter().map(|origin| origin.number.cast_signed());
    let insert = match backend {
        DbBackend::Postgres => Statement::from_sql_and_values(
            backend,
            "INSERT INTO effects SELECT * FROM UNNEST($1::int4[], $2::int8[])",
            [Value::from(producers.collect::<Vec<_>>()), Value::from(numbers.collect::<Vec<_>>())],
        ),
        DbBackend::MySql | DbBackend::Sqlite => {
            let rows = vec!["(?, ?)"; origins.len()].join(", ");
            let pairs = producers.zip(numbers);
            let values = pairs.flat_map(|(producer, number)| [Value::from(producer), Value::from(number)]);
            Statement::from_sql_and_values(backend, format!("INSERT INTO effects VALUES {rows}"), values)
        }
    };
    conn.execute(insert).await.map(drop)
}
