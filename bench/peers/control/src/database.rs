//! What lies in the database besides its own tables: the ledger and the effects, which are the judge's; and the questions that only its
//! tables can answer.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result};
use modkit_db::{
    ConnectOpts, Db, DbTx, connect_db,
    secure::{AccessScope, secure_insert},
};
use posthaste_torture_protocol::{circumstances::Circumstances, content::Name, history::Handling};
use sea_orm::{
    ActiveValue::Set, ConnectOptions, ConnectionTrait, DatabaseConnection, DbErr, Statement, Value,
};

use crate::settings;

/// How long to wait for a connection: longer than any outage, so that it is the database that says what is wrong.
const ACQUIRE: Duration = Duration::from_secs(20);

const INSERT_EFFECTS: &str = "INSERT INTO torture_effects (handled_at, process, call_number, partition_number, seq, id, producer,
    transaction_number, place, digest) SELECT * FROM UNNEST($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[],
    $7::int8[], $8::int8[], $9::int8[], $10::int8[])";
const PARTITIONS: &str = "SELECT id, partition FROM modkit_outbox_partitions WHERE starts_with(queue, $1)";
const WAITING: &str =
    "SELECT (SELECT coalesce(sum(p.sequence - o.processed_seq), 0) FROM modkit_outbox_partitions p
    JOIN modkit_outbox_processor o ON o.partition_id = p.id WHERE starts_with(p.queue, $1))::int8
    + (SELECT count(*) FROM modkit_outbox_incoming i JOIN modkit_outbox_partitions p ON p.id = i.partition_id
    WHERE starts_with(p.queue, $1))";
const LOCK: &str = "SELECT pg_advisory_lock(5)";

/// Where its own interface does not go.
pub struct Beside(DatabaseConnection);

/// The system's own pool.
pub async fn connect(circumstances: &Circumstances) -> Result<Db> {
    let options = ConnectOpts {
        max_conns: Some(settings::connections(&circumstances.setup)),
        acquire_timeout: Some(ACQUIRE),
        test_before_acquire: true,
        ..Default::default()
    };
    Ok(connect_db(&url(circumstances), options).await?)
}

fn url(circumstances: &Circumstances) -> String {
    format!("{}?sslmode=disable", circumstances.url)
}

impl Beside {
    pub async fn connect(circumstances: &Circumstances) -> Result<Self> {
        let mut options = ConnectOptions::new(url(circumstances));
        options.max_connections(1).acquire_timeout(ACQUIRE).sqlx_logging(false);
        Ok(Self(sea_orm::Database::connect(options).await?))
    }

    /// Keeps others who ask for the same waiting, until this is dropped.
    pub async fn lock(&self) -> Result<()> {
        self.0.execute_unprepared(LOCK).await?;
        Ok(())
    }

    /// Handlers hear the id of a partition's row: which of its queue's partitions that is.
    pub async fn partitions_by_id(&self, prefix: &str) -> Result<HashMap<i64, u32>> {
        let rows = self.0.query_all(self.statement(PARTITIONS, prefix)).await?;
        let partition = |row: &sea_orm::QueryResult| {
            let number: i16 = row.try_get_by_index(1)?;
            Ok((row.try_get_by_index(0)?, u32::try_from(number)?))
        };
        rows.iter().map(partition).collect()
    }

    /// How many messages wait to be handled.
    pub async fn waiting(&self, prefix: &str) -> Result<i64> {
        let row = self.0.query_one(self.statement(WAITING, prefix)).await?;
        Ok(row.context("a sum without a row")?.try_get_by_index(0)?)
    }

    fn statement(&self, sql: &str, prefix: &str) -> Statement {
        Statement::from_sql_and_values(self.0.get_database_backend(), sql, [prefix.into()])
    }
}

mod ledger {
    use modkit_db::secure::Scopable;
    use sea_orm::entity::prelude::*;

    /// It lets nobody execute plain SQL in a producer's transaction, so the ledger is an entity, which must have a key.
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel, Scopable)]
    #[sea_orm(table_name = "torture_ledger")]
    #[secure(unrestricted)]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub producer: i64,
        #[sea_orm(primary_key, auto_increment = false)]
        pub transaction_number: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

pub async fn write_ledger(tx: &DbTx<'_>, producer: u32, transaction: u64) -> Result<()> {
    let row = ledger::ActiveModel {
        producer: Set(producer.into()),
        transaction_number: Set(transaction.cast_signed()),
    };
    secure_insert::<ledger::Entity>(row, &AccessScope::allow_all(), tx).await?;
    Ok(())
}

/// One statement for all.
pub async fn write_effects(conn: &dyn ConnectionTrait, effects: &[Handling]) -> Result<(), DbErr> {
    let name = |effect: &Handling| effect.name.unwrap_or(Name { producer: 0, transaction: 0, place: 0 });
    let column =
        |field: &dyn Fn(&Handling) -> i64| Value::from(effects.iter().map(field).collect::<Vec<i64>>());
    let columns = [
        column(&|effect| effect.at.cast_signed()),
        column(&|effect| effect.process.into()),
        column(&|effect| effect.call.cast_signed()),
        column(&|effect| effect.partition.into()),
        column(&|effect| effect.seq),
        column(&|effect| effect.id),
        column(&|effect| name(effect).producer.into()),
        column(&|effect| name(effect).transaction.cast_signed()),
        column(&|effect| name(effect).place.into()),
        column(&|effect| effect.digest.cast_signed()),
    ];
    let insert = Statement::from_sql_and_values(conn.get_database_backend(), INSERT_EFFECTS, columns);
    conn.execute(insert).await.map(drop)
}
