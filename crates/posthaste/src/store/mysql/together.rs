//! What several partitions ask for in one go: their statements behind each other in one text, those that write in one
//! transaction. Who writes alone commits alone, and every commit waits for the disk.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, mysql::MySqlRow};

use super::{
    BEGIN, MySqlStore, REST,
    cursor::{self, Offer, Tip},
    text::{Done, Value, filled, run},
};
use crate::{
    OutboxError,
    limits::SEGMENT,
    store::{
        Acquired, Claim, Queue, Result, Settled, Settlement,
        answer::answer,
        batch::{count, millis, no_cursor, size},
        together::{self, Ask, Together},
    },
};

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

fn read(store: &MySqlStore, partition_id: i32, processed_seq: i64, most: i32) -> String {
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
        let looks: Vec<_> = asks.iter().map(|ask| ask.look(store)).collect();
        let mut offers = Vec::with_capacity(asks.len());
        for (ask, Done { rows, .. }) in asks.iter().zip(run_all(store, &looks).await?) {
            let tip = rows.first().map(Tip::of).transpose()?;
            offers.push(tip.ok_or_else(|| no_cursor(&ask.queue, &ask.claim))?.offer(&ask.claim));
        }
        let wanted: Vec<_> =
            asks.iter().zip(&offers).filter_map(|(ask, offer)| Some((ask, offer.as_ref().ok()?))).collect();
        let appends = wanted.iter().map(|(ask, offer)| ask.append(store, offer)).collect();
        let reads = wanted
            .iter()
            .map(|(ask, offer)| read(store, ask.claim.partition_id, offer.processed_seq, offer.most));
        let (appended, reads) = write_then_read(store, appends, reads.collect()).await?;
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
    fn look(&self, store: &MySqlStore) -> String {
        let (owner, id) = (self.claim.owner.as_bytes(), i64::from(self.claim.partition_id));
        let values =
            [Value::Bytes(owner), Value::Number(id), Value::Number(id), Value::Reader, Value::Number(id)];
        filled(&store.sql().look, values)
    }

    fn append(&self, store: &MySqlStore, offer: &Offer) -> String {
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
        let looks: Vec<_> = asks.iter().map(|ask| ask.look(store)).collect();
        let mut nexts = Vec::with_capacity(asks.len());
        for (ask, Done { rows, .. }) in asks.iter().zip(run_all(store, &looks).await?) {
            let rows = if ask.settlement.go_on { cursor::in_order(rows)? } else { rows };
            nexts.push(cursor::next_of(&rows, &ask.queue, &ask.claim, &ask.settlement)?);
        }
        let moves = asks.iter().zip(&nexts).map(|(ask, next)| ask.append(store, next)).collect();
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
    fn look(&self, store: &MySqlStore) -> String {
        let id = self.claim.partition_id;
        if self.settlement.go_on {
            return read(store, id, self.settlement.processed_seq, size(self.claim.batch_size));
        }
        filled(&store.sql().head, [Value::Number(id.into())])
    }

    fn append(&self, store: &MySqlStore, next: &Settled) -> String {
        let Self { claim, settlement, .. } = self;
        let (owner, goes_on) = (claim.owner.as_bytes(), matches!(next, Settled::Next(_)));
        let id = i64::from(claim.partition_id);
        let hold = if goes_on { Some(claim.lease) } else { settlement.backoff };
        let hold = || hold.map_or(Value::Null, |hold| Value::Number(millis(hold)));
        let last_error = settlement.last_error.as_deref().filter(|_| !goes_on);
        filled(
            &store.sql().settle,
            [
                Value::Number(settlement.processed_seq),
                Value::Number(if goes_on { 1 } else { count(settlement.attempts).into() }),
                if goes_on { Value::Bytes(owner) } else { Value::Null },
                hold(),
                hold(),
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
