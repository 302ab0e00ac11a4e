//! What several partitions ask for in one go: their statements behind each other in one text, those that write in one
//! transaction. Who writes alone commits alone, and every commit waits for the disk.

use std::{fmt, sync::Arc};

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, MySqlConnection, mysql::MySqlRow};

use super::{
    BEGIN, MySqlStore, REST,
    cursor::{self, Offer, Tip},
};
use crate::{
    OutboxError,
    limits::SEGMENT,
    store::{
        Acquired, Claim, Queue, READER, Result, Settled, Settlement,
        answer::answer,
        batch::{count, millis, no_cursor, size},
        together::{self, Ask, Together},
    },
};

/// A value in the text of a statement. None of them can be taken for SQL.
enum Value<'v> {
    Number(i64),
    Bytes(&'v [u8]),
    Reader,
    Null,
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => {
                f.write_str("x'")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str("'")
            }
            Self::Reader => write!(f, "'{READER}'"),
            Self::Null => f.write_str("NULL"),
        }
    }
}

/// A statement with its values. If the name of a table looks like a place for one, there is no telling, and each partition asks
/// alone.
fn filled<const N: usize>(sql: &str, values: [Value<'_>; N]) -> Result<String> {
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    if parts.clone().count() != N {
        return Err(OutboxError::Unsuitable("a name with a question mark".to_owned()));
    }
    Ok(parts.zip(values).fold(first, |text, (part, value)| format!("{text}{value}{part}")))
}

/// What came of one of several statements.
struct Done {
    rows: Vec<MySqlRow>,
    affected: u64,
}

async fn run(conn: &mut MySqlConnection, text: String) -> Result<Vec<Done>> {
    let (mut done, mut rows) = (Vec::new(), Vec::new());
    let mut answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(conn);
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Right(row) => rows.push(row),
            Either::Left(end) => {
                done.push(Done { rows: std::mem::take(&mut rows), affected: end.rows_affected() });
            }
        }
    }
    Ok(done)
}

/// Once: if others are in the way, they may be in the way of one partition only.
async fn run_all(store: &MySqlStore, statements: &[String]) -> Result<Vec<Done>> {
    let running = async {
        let mut taken = store.connection().await?;
        let done = run(&mut taken, statements.join("; ")).await;
        if done.as_ref().is_err_and(OutboxError::leaves_connection_usable) {
            let rollback = AssertSqlSafe(format!("ROLLBACK; {REST}"));
            let end = sqlx::raw_sql(rollback).execute(&mut *taken).await;
            taken.keep_if_usable(end.map_err(OutboxError::from))?;
            return done;
        }
        taken.keep_if_usable(done)
    };
    let done = answer(running).await?;
    // One of them that the server skipped would be taken for another.
    if done.len() != statements.len() {
        return Err(sqlx::Error::Protocol(format!("{} answers to {}", done.len(), statements.len())).into());
    }
    Ok(done)
}

fn read(store: &MySqlStore, partition_id: i32, processed_seq: i64, most: i32) -> Result<String> {
    let last = processed_seq + i64::from(most);
    let values = [i64::from(partition_id), processed_seq, last + SEGMENT, last, processed_seq + 1, last];
    filled(&store.sql().read, values.map(Value::Number))
}

/// A lease to take.
pub(super) struct Acquiring {
    queue: Arc<Queue>,
    claim: Claim,
}

impl Ask<MySqlStore> for Acquiring {
    type Answer = Result<Acquired>;

    fn partition_id(&self) -> i32 {
        self.claim.partition_id
    }

    fn most(&self) -> u32 {
        self.claim.batch_size
    }

    fn gathered(store: &MySqlStore) -> &Together<MySqlStore, Self> {
        &store.shared.acquires
    }

    async fn answer(&self, store: &MySqlStore) -> Result<Result<Acquired>> {
        Ok(cursor::acquire(store, &self.queue, &self.claim).await)
    }

    async fn answers(store: &MySqlStore, asks: &[Self]) -> Result<Vec<Result<Acquired>>> {
        let looks: Vec<_> = asks.iter().map(|ask| ask.look(store)).collect::<Result<_>>()?;
        let mut offers = Vec::with_capacity(asks.len());
        for (ask, Done { rows, .. }) in asks.iter().zip(run_all(store, &looks).await?) {
            let tip = rows.first().map(Tip::of).transpose()?;
            offers.push(tip.ok_or_else(|| no_cursor(&ask.queue, &ask.claim))?.offer(&ask.claim));
        }
        let wanted: Vec<_> =
            asks.iter().zip(&offers).filter_map(|(ask, offer)| Some((ask, offer.as_ref().ok()?))).collect();
        let appends = wanted.iter().map(|(ask, offer)| ask.append(store, offer)).collect::<Result<_>>()?;
        let reads = wanted
            .iter()
            .map(|(ask, offer)| read(store, ask.claim.partition_id, offer.processed_seq, offer.most));
        let (appended, reads) = write_then_read(store, appends, reads.collect::<Result<_>>()?).await?;
        let (mut appended, mut reads) = (appended.into_iter(), reads.into_iter());
        let mut answers = Vec::with_capacity(asks.len());
        for (ask, offer) in asks.iter().zip(offers) {
            answers.push(match offer {
                Err(nothing) => Ok(nothing),
                Ok(offer) => {
                    let (is_ours, rows) = (appended.next() == Some(1), reads.next().unwrap_or_default());
                    if is_ours { ask.taken(store, offer, rows).await } else { Ok(Acquired::Raced) }
                }
            });
        }
        Ok(answers)
    }
}

impl Acquiring {
    fn look(&self, store: &MySqlStore) -> Result<String> {
        let (owner, id) = (self.claim.owner.as_bytes(), i64::from(self.claim.partition_id));
        let values =
            [Value::Bytes(owner), Value::Number(id), Value::Number(id), Value::Reader, Value::Number(id)];
        filled(&store.sql().look, values)
    }

    fn append(&self, store: &MySqlStore, offer: &Offer) -> Result<String> {
        let (owner, lease) = (self.claim.owner.as_bytes(), millis(self.claim.lease));
        filled(
            &store.sql().acquire,
            [
                Value::Number(offer.attempts.into()),
                Value::Bytes(owner),
                Value::Number(lease),
                Value::Number(lease),
                Value::Reader,
                Value::Number(offer.epoch),
                Value::Number(self.claim.partition_id.into()),
                Value::Bytes(owner),
            ],
        )
    }

    async fn taken(&self, store: &MySqlStore, offer: Offer, rows: Vec<MySqlRow>) -> Result<Acquired> {
        match offer.leased(&cursor::in_order(rows)?, &self.queue, &self.claim)? {
            Ok(leased) => Ok(Acquired::Batch(leased)),
            // Alone, it finds out what to make of a message that is missing.
            Err(_) => cursor::acquire(store, &self.queue, &self.claim).await,
        }
    }
}

/// How many rows each of the first ones wrote, in one transaction; and what the others read behind it. A process that falls silent
/// in the middle, after an error, does not keep locks for long.
async fn write_then_read(
    store: &MySqlStore,
    writes: Vec<String>,
    reads: Vec<String>,
) -> Result<(Vec<u64>, Vec<Vec<MySqlRow>>)> {
    let count = writes.len();
    if count == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let begin: Vec<_> = BEGIN.split("; ").map(str::to_owned).collect();
    let (before, end) = (begin.len(), ["COMMIT", REST].map(str::to_owned));
    let after = end.len();
    let statements = [begin, writes, end.to_vec(), reads].concat();
    let mut done = run_all(store, &statements).await?.into_iter().skip(before);
    let written = done.by_ref().take(count).map(|done| done.affected).collect();
    Ok((written, done.skip(after).map(|done| done.rows).collect()))
}

/// A batch to settle, in which nothing is to be buried.
pub(super) struct Settling {
    queue: Arc<Queue>,
    claim: Claim,
    settlement: Settlement,
}

impl Ask<MySqlStore> for Settling {
    type Answer = Result<Settled>;

    fn partition_id(&self) -> i32 {
        self.claim.partition_id
    }

    fn most(&self) -> u32 {
        if self.settlement.go_on { self.claim.batch_size } else { 0 }
    }

    fn gathered(store: &MySqlStore) -> &Together<MySqlStore, Self> {
        &store.shared.settlements
    }

    async fn answer(&self, store: &MySqlStore) -> Result<Result<Settled>> {
        Ok(cursor::settle(store, &self.queue, &self.claim, &self.settlement).await)
    }

    async fn answers(store: &MySqlStore, asks: &[Self]) -> Result<Vec<Result<Settled>>> {
        let looks: Vec<_> = asks.iter().map(|ask| ask.look(store)).collect::<Result<_>>()?;
        let mut nexts = Vec::with_capacity(asks.len());
        for (ask, Done { rows, .. }) in asks.iter().zip(run_all(store, &looks).await?) {
            let rows = if ask.settlement.go_on { cursor::in_order(rows)? } else { rows };
            nexts.push(cursor::next_of(&rows, &ask.queue, &ask.claim, &ask.settlement)?);
        }
        let moves =
            asks.iter().zip(&nexts).map(|(ask, next)| ask.append(store, next)).collect::<Result<_>>()?;
        let (moved, _) = write_then_read(store, moves, Vec::new()).await?;
        Ok(moved
            .into_iter()
            .zip(nexts)
            .map(|(rows, next)| Ok(if rows == 1 { next } else { Settled::Lost }))
            .collect())
    }
}

impl Settling {
    /// For the next batch; or, if the lease is to be let go, for the head.
    fn look(&self, store: &MySqlStore) -> Result<String> {
        let id = self.claim.partition_id;
        if self.settlement.go_on {
            return read(store, id, self.settlement.processed_seq, size(self.claim.batch_size));
        }
        filled(&store.sql().head, [Value::Number(id.into())])
    }

    fn append(&self, store: &MySqlStore, next: &Settled) -> Result<String> {
        let Self { claim, settlement, .. } = self;
        let (owner, goes_on) = (claim.owner.as_bytes(), matches!(next, Settled::Next(_)));
        let id = i64::from(claim.partition_id);
        let lease = || if goes_on { Value::Number(millis(claim.lease)) } else { Value::Null };
        let last_error = settlement.last_error.as_deref().filter(|_| !goes_on);
        filled(
            &store.sql().settle,
            [
                Value::Number(settlement.processed_seq),
                Value::Number(if goes_on { 1 } else { count(settlement.attempts).into() }),
                if goes_on { Value::Bytes(owner) } else { Value::Null },
                lease(),
                lease(),
                last_error.map_or(Value::Null, |error| Value::Bytes(error.as_bytes())),
                Value::Reader,
                Value::Number(id),
                Value::Number(settlement.epoch),
                Value::Bytes(owner),
                Value::Number(settlement.processed_seq),
                Value::Number(id),
            ],
        )
    }
}

pub(super) async fn acquire(store: &MySqlStore, queue: &Arc<Queue>, claim: &Claim) -> Result<Acquired> {
    if claim.is_transactional {
        return cursor::acquire(store, queue, claim).await;
    }
    together::ask(store, Acquiring { queue: Arc::clone(queue), claim: claim.clone() }).await?
}

pub(super) async fn settle(
    store: &MySqlStore,
    queue: &Arc<Queue>,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    if claim.is_transactional || !settlement.burials.is_empty() {
        return cursor::settle(store, queue, claim, settlement).await;
    }
    let settling =
        Settling { queue: Arc::clone(queue), claim: claim.clone(), settlement: settlement.clone() };
    together::ask(store, settling).await?
}
