//! What gives messages to processors, and settles.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sqlx::{
    Postgres, Row, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{PostgresStore, answer, query};
use crate::store::{
    Acquired, Claim, Leased, Queue, READER, Result, Settled, Settlement,
    batch::{Read, count, incomplete, messages, millis, no_cursor, size},
    together::{self, Ask, Together},
};

/// From when on PostgreSQL counts times, as it sends them: the year 2000, in microseconds since 1970.
const YEAR_2000_US: i64 = 946_684_800_000_000;

/// What the database says about a partition.
#[derive(Default)]
pub(super) struct Answer {
    /// What became of it; none if the statement had nothing to say.
    fate: Option<PgRow>,
    /// The messages of the batch by their seqs, without their rows if they are not there.
    messages: Vec<(i64, Option<PgRow>)>,
}

/// Which rows are about which of the partitions.
fn answers(rows: Vec<PgRow>, partition_ids: impl Iterator<Item = i32>) -> Result<Vec<Answer>> {
    let (mut answers, mut places, mut messages) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for row in rows {
        let Some(partition_id) = row.try_get::<Option<i32>, _>("partition_id")? else {
            messages.push((row.try_get::<i64, _>("id")?, Some(row)));
            continue;
        };
        let answer: &mut Answer = answers.entry(partition_id).or_default();
        match row.try_get::<Option<i64>, _>("first_seq")? {
            None => answer.fate = Some(row),
            Some(first_seq) => {
                places.insert((partition_id, first_seq), row.try_get::<Vec<i64>, _>("ids")?);
            }
        }
    }
    messages.sort_unstable_by_key(|(id, _)| *id);
    let mut message = |wanted| {
        let found = messages.binary_search_by_key(&wanted, |(id, _)| *id).ok();
        found.and_then(|found| messages.get_mut(found)?.1.take())
    };
    // In the order of their seqs.
    for ((partition_id, first_seq), ids) in places {
        let answer = answers.entry(partition_id).or_default();
        answer.messages.extend((first_seq..).zip(ids).map(|(seq, id)| (seq, message(id))));
    }
    Ok(partition_ids.map(|id| answers.remove(&id).unwrap_or_default()).collect())
}

/// A lease to take.
pub(super) struct Acquiring(Claim);

impl Acquiring {
    fn statement(store: &PostgresStore, asks: &[Self]) -> Query<'static, Postgres, PgArguments> {
        query(&store.sql().acquire)
            .bind(READER)
            .bind(asks.iter().any(|Self(claim)| claim.is_transactional))
            .bind(each(asks, |Self(claim)| claim.partition_id))
            .bind(each(asks, |Self(claim)| claim.owner))
            .bind(each(asks, |Self(claim)| millis(claim.lease)))
            .bind(each(asks, |Self(claim)| size(claim.batch_size)))
            .bind(each(asks, |Self(claim)| claim.handled_epoch))
    }
}

impl Ask<PostgresStore> for Acquiring {
    type Answer = Answer;

    fn partition_id(&self) -> i32 {
        self.0.partition_id
    }

    fn most(&self) -> u32 {
        self.0.batch_size
    }

    fn gathered(store: &PostgresStore) -> &Together<PostgresStore, Self> {
        &store.shared.acquires
    }

    async fn answer(&self, store: &PostgresStore) -> Result<Answer> {
        only(Self::answers(store, std::slice::from_ref(self)).await?)
    }

    async fn answers(store: &PostgresStore, asks: &[Self]) -> Result<Vec<Answer>> {
        answers(store.fetch(Self::statement(store, asks)).await?, asks.iter().map(Self::partition_id))
    }
}

pub(super) async fn acquire(store: &PostgresStore, queue: &Queue, claim: &Claim) -> Result<Acquired> {
    let acquiring = Acquiring(claim.clone());
    let Answer { fate, messages } = match goes_alone(store, claim) {
        true => acquiring.answer(store).await?,
        false => together::ask(store, acquiring).await?,
    };
    let fate = fate.ok_or_else(|| no_cursor(queue, claim))?;
    let Some(epoch) = fate.try_get::<Option<i64>, _>("epoch")? else {
        return not_acquired(&fate);
    };
    match leased(&fate, &messages, queue, claim, fate.try_get("last_error")?)? {
        Ok(leased) => Ok(Acquired::Batch(leased)),
        Err(missing) => Err(incomplete(queue, claim, missing, is_mine(store, claim, epoch).await)),
    }
}

fn not_acquired(row: &PgRow) -> Result<Acquired> {
    let (processed, head): (i64, i64) = (row.try_get("processed_seq")?, row.try_get("head")?);
    if processed >= head {
        return Ok(Acquired::Empty);
    }
    if row.try_get("is_paused")? {
        return Ok(Acquired::Paused);
    }
    if !row.try_get::<bool, _>("is_held")? {
        let is_locked: bool = row.try_get("is_locked")?;
        return Ok(if is_locked { Acquired::Locked } else { Acquired::Raced });
    }
    let left: Option<f64> = row.try_get("seconds_left")?;
    Ok(Acquired::Held(Duration::try_from_secs_f64(left.unwrap_or_default()).unwrap_or_default()))
}

/// A batch to settle.
pub(super) struct Settling {
    claim: Claim,
    settlement: Settlement,
    queue: Arc<str>,
    partition: u32,
}

impl Settling {
    fn new(queue: &Queue, claim: &Claim, settlement: &Settlement) -> Self {
        let partition = queue.number_of(claim.partition_id);
        Self {
            claim: claim.clone(),
            settlement: settlement.clone(),
            queue: Arc::clone(&queue.name),
            partition,
        }
    }
    fn statement(store: &PostgresStore, asks: &[Self]) -> Query<'static, Postgres, PgArguments> {
        let burials =
            || asks.iter().flat_map(|ask| ask.settlement.burials.iter().map(move |burial| (ask, burial)));
        query(&store.sql().settle)
            .bind(READER)
            .bind(asks.iter().all(|ask| !ask.claim.is_transactional))
            .bind(each(asks, Self::partition_id))
            .bind(each(asks, |ask| ask.claim.owner))
            .bind(each(asks, |ask| ask.settlement.epoch))
            .bind(each(asks, |ask| ask.settlement.processed_seq))
            .bind(each(asks, |ask| millis(ask.claim.lease)))
            .bind(each(asks, |ask| size(ask.most())))
            .bind(each(asks, |ask| count(ask.settlement.attempts)))
            .bind(each(asks, |ask| ask.settlement.last_error.clone()))
            .bind(each(asks, |ask| ask.settlement.backoff.map(millis)))
            .bind(burials().map(|(ask, _)| ask.partition_id()).collect::<Vec<_>>())
            .bind(burials().map(|(_, burial)| burial.id).collect::<Vec<_>>())
            .bind(burials().map(|(_, burial)| burial.seq).collect::<Vec<_>>())
            .bind(burials().map(|(_, burial)| burial.reason.clone()).collect::<Vec<_>>())
            .bind(burials().map(|(_, burial)| count(burial.attempts)).collect::<Vec<_>>())
            .bind(burials().map(|(ask, _)| ask.queue.to_string()).collect::<Vec<_>>())
            .bind(burials().map(|(ask, _)| ask.partition.cast_signed()).collect::<Vec<_>>())
    }
}

impl Ask<PostgresStore> for Settling {
    type Answer = Answer;

    fn partition_id(&self) -> i32 {
        self.claim.partition_id
    }

    fn most(&self) -> u32 {
        if self.settlement.go_on { self.claim.batch_size } else { 0 }
    }

    fn gathered(store: &PostgresStore) -> &Together<PostgresStore, Self> {
        &store.shared.settlements
    }

    async fn answer(&self, store: &PostgresStore) -> Result<Answer> {
        only(Self::answers(store, std::slice::from_ref(self)).await?)
    }

    async fn answers(store: &PostgresStore, asks: &[Self]) -> Result<Vec<Answer>> {
        answers(store.fetch(Self::statement(store, asks)).await?, asks.iter().map(Self::partition_id))
    }
}

fn only(answers: Vec<Answer>) -> Result<Answer> {
    Ok(answers.into_iter().next().ok_or(sqlx::Error::RowNotFound)?)
}

/// A claim of a handler that works in transactions has other locks and another commit than the rest. Behind a pooler a statement
/// is one of a transaction, and others may have to wait for what is between them.
fn goes_alone(store: &PostgresStore, claim: &Claim) -> bool {
    claim.is_transactional || store.is_pooled()
}

fn each<A, T>(asks: &[A], value: impl Fn(&A) -> T) -> Vec<T> {
    asks.iter().map(value).collect()
}

pub(super) async fn settle(
    store: &PostgresStore,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let settling = Settling::new(queue, claim, settlement);
    let answer = match goes_alone(store, claim) {
        true => settling.answer(store).await?,
        false => together::ask(store, settling).await?,
    };
    match settled(queue, claim, settlement, &answer)? {
        Ok(settled) => Ok(settled),
        Err((epoch, missing)) => Err(incomplete(queue, claim, missing, is_mine(store, claim, epoch).await)),
    }
}

pub(super) async fn settle_within(
    store: &PostgresStore,
    mut transaction: Transaction<'_, Postgres>,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let settling = [Settling::new(queue, claim, settlement)];
    let statement = Settling::statement(store, &settling).persistent(!store.is_pooled());
    let rows = answer(statement.fetch_all(&mut *transaction)).await?;
    let found = only(answers(rows, std::iter::once(claim.partition_id))?)?;
    // If a message is missing in the next batch, this one is settled all the same; whoever acquires will find out.
    let settled = settled(queue, claim, settlement, &found)?.unwrap_or(Settled::Released { has_more: true });
    match settled {
        Settled::Lost => answer(transaction.rollback()).await?,
        _ => {
            kill_point!(TransactionBeforeCommit);
            answer(transaction.commit()).await?;
        }
    }
    Ok(settled)
}

/// What came of settling; or the epoch of the lease under which a message is missing, and its seq.
fn settled(
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
    answer: &Answer,
) -> Result<Result<Settled, (i64, i64)>> {
    let Some(fate) = &answer.fate else { return Ok(Ok(Settled::Lost)) };
    if !fate.try_get::<bool, _>("goes_on")? {
        let has_more = fate.try_get::<i64, _>("head")? > settlement.processed_seq;
        return Ok(Ok(Settled::Released { has_more }));
    }
    let epoch = fate.try_get("epoch")?;
    let next = leased(fate, &answer.messages, queue, claim, None)?;
    Ok(next.map(Settled::Next).map_err(|missing| (epoch, missing)))
}

/// The batch under a lease that was just taken or renewed; or the seq of the message that is missing in it.
fn leased(
    fate: &PgRow,
    rows: &[(i64, Option<PgRow>)],
    queue: &Queue,
    claim: &Claim,
    last_error: Option<String>,
) -> Result<Result<Leased, i64>> {
    let (epoch, processed_seq) = (fate.try_get("epoch")?, fate.try_get("processed_seq")?);
    let attempts: i32 = fate.try_get("attempts")?;
    let attempts = u32::try_from(attempts).unwrap_or_default();
    if rows.is_empty() {
        return Ok(Err(processed_seq + 1));
    }
    let rows = rows.iter().map(|(seq, row)| Ok((*seq, row.as_ref())));
    Ok(match messages(rows, queue, claim, processed_seq, attempts.saturating_sub(1), YEAR_2000_US)? {
        Read::Messages(messages) => Ok(Leased { epoch, processed_seq, attempts, last_error, messages }),
        Read::Missing(seq) => Err(seq),
    })
}

/// Whether the newest link of a partition's cursor is this one, and ours.
async fn is_mine(store: &PostgresStore, claim: &Claim, epoch: i64) -> Result<bool> {
    let statement = query(&store.sql().look).bind(READER).bind(claim.partition_id).bind(claim.owner);
    let rows = store.fetch(statement).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let newest: i64 = row.try_get("epoch")?;
    Ok(newest == epoch && row.try_get::<Option<bool>, _>("is_mine")? == Some(true))
}

pub(super) async fn waiting(store: &PostgresStore, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
    let rows = store.fetch(query(&store.sql().waiting).bind(READER).bind(partition_ids).bind(owner)).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}
