//! `posthaste bench`: a quick look at how fast an outbox is on this database, from this machine. It checks what it measures: all
//! of it is delivered, once and in order, or it does not count.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use posthaste::{
    Backend, Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxError, OutboxHandle,
    OutboxProfile, Partitions, Tables,
};
use serde::Serialize;
use sqlx::Pool;
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    Context,
    args::Bench,
    database::{Address, on},
    exit,
    failure::{Failure, Outcome},
    interrupt::Interrupts,
    output::printable,
    percentile::percentile,
};

const QUEUE: &str = "bench";
/// Messages a second while latency is measured: few, so that it is not the queue that is measured.
const LATENCY_RATE: u32 = 200;
/// How long nothing may arrive before what is missing is given up.
const STANDSTILL: Duration = Duration::from_secs(30);

/// How long the tables may take to be removed.
const PATIENCE: Duration = Duration::from_secs(20);
/// And between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of payloads that all producers hold at a time.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    /// Everything arrived, once and in order.
    ok: bool,
    database: String,
    messages: u64,
    /// From the first transaction to the last delivery.
    per_s: f64,
    /// From commit to handler, at an easy pace.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    missing: u64,
    duplicates: u64,
    out_of_order: u64,
}

pub async fn run(options: &Bench, context: &Context) -> Outcome {
    check(options)?;
    if context.common.table_prefix.is_some() {
        return Err(Failure::Usage(
            "the bench gives its tables names that nobody else has: leave out --table-prefix".to_owned(),
        ));
    }
    // Unless a database is named, a file of its own will do.
    let folder = tempfile::tempdir()?;
    let address = if context.common.names_a_database() {
        context.address()?
    } else {
        Address::of(&format!("sqlite:{}", folder.path().join("bench.db").display()))?
    };
    let name = address.to_string();
    let connections = options.producers.saturating_add(2);
    let database =
        address.open(!context.common.names_a_database(), connections, context.common.connect_timeout).await?;
    let measured = on!(database, pool => Box::pin(bench(pool, options, name, context)).await)?;
    print(&measured, context)?;
    Ok(if measured.ok { exit::DONE } else { exit::PROBLEM })
}

/// What would take more memory than anybody can mean.
fn check(options: &Bench) -> Result<(), Failure> {
    let Bench { producers, batch, payload, .. } = options;
    let bytes = [producers, batch, payload].into_iter().map(|number| u64::from(*number)).product::<u64>();
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{producers} producers with {batch} messages of {payload} bytes each are {bytes} bytes at a time: the limit is {MAX_BYTES}"
    )))
}

/// In tables of its own, which are removed whatever happens.
async fn bench<DB: Backend>(
    pool: Pool<DB>,
    options: &Bench,
    database: String,
    context: &Context,
) -> Result<Measured, Failure> {
    let mut tables = Tables::default().prefix(&format!("bench_{:08x}_", fastrand::u32(..)))?;
    if let Some(schema) = &context.common.schema {
        tables = tables.schema(schema)?;
    }
    let mut interrupts = Interrupts::listen();
    let mut early = interrupts.clone();
    let measuring = async {
        // To its end: a table that a server is still about to make would be there after all were removed.
        posthaste::migrate_with(&pool, &tables).await?;
        tokio::select! {
            measured = measure(&pool, &tables, options, database, context) => measured,
            () = early.first() => Err(Failure::Interrupted),
        }
    };
    let measured = tokio::select! {
        measured = Box::pin(measuring) => measured,
        () = interrupts.second() => Err(Failure::Interrupted),
    };
    let removed = tokio::select! {
        removed = tokio::time::timeout(PATIENCE, remove(&pool, &tables)) => match removed {
            Ok(removed) => removed.map_err(Failure::from),
            Err(_) => Err(Failure::OutOfReach("the tables could not be removed within 20 s".to_owned())),
        },
        () = interrupts.second() => Err(Failure::Interrupted),
    };
    // Those in a file of its own go with it.
    if removed.is_err() && context.common.names_a_database() {
        context.out.note(format_args!(
            "tables of the bench remain; this removes them:\n{}",
            posthaste::drop_tables_sql::<DB>(&tables).trim_end()
        ));
    }
    // What went wrong first says most.
    let measured = measured?;
    removed.map(|()| measured)
}

/// What was interrupted may still end its statements, and come between: then the server says to try again.
async fn remove<DB: Backend>(pool: &Pool<DB>, tables: &Tables) -> Result<(), OutboxError> {
    loop {
        match posthaste::drop_tables(pool, tables).await {
            // One that is not there says nothing.
            Err(error @ OutboxError::Database(sqlx::Error::Database(_))) if error.is_retryable() => {
                tokio::time::sleep(PAUSE).await;
            }
            removed => return removed,
        }
    }
}

async fn measure<DB: Backend>(
    pool: &Pool<DB>,
    tables: &Tables,
    options: &Bench,
    database: String,
    context: &Context,
) -> Result<Measured, Failure> {
    let seconds = Duration::from_secs(options.seconds);
    let say = |text: &str| {
        if !context.out.json {
            context.out.note(text);
        }
    };
    let start = async |profile, arrivals: &Arrivals| -> Result<OutboxHandle<DB>, OutboxError> {
        let builder = Outbox::builder(pool.clone()).tables(tables.clone()).profile(profile);
        builder.queue(QUEUE, Partitions::of(options.partitions)).leased(arrivals.clone()).start().await
    };

    say(&format!(
        "throughput: {} producers, {} messages a transaction, {seconds:?}",
        options.producers, options.batch
    ));
    let arrivals = Arrivals::default();
    let handle = start(OutboxProfile::high_throughput(), &arrivals).await?;
    let began = Instant::now();
    let sent = produce(handle.outbox(), pool, options, began + seconds).await?;
    arrivals.wait_for(sent).await;
    let took = arrivals.last().unwrap_or(began).duration_since(began);
    handle.stop().await;
    let throughput = arrivals.judge(sent);

    say(&format!("latency: {LATENCY_RATE} messages a second, {seconds:?}"));
    let arrivals = Arrivals::default();
    let handle = start(OutboxProfile::low_latency(), &arrivals).await?;
    let committed = trickle(handle.outbox(), pool, options, seconds).await?;
    let sent = u64::try_from(committed.len()).unwrap_or(u64::MAX);
    arrivals.wait_for(sent).await;
    handle.stop().await;
    let latency = arrivals.judge(sent);
    let mut spans = arrivals.spans(&committed);
    spans.sort_unstable();

    let sum = |of: fn(&Faults) -> u64| of(&throughput) + of(&latency);
    let (missing, duplicates, out_of_order) =
        (sum(|faults| faults.missing), sum(|faults| faults.duplicates), sum(|faults| faults.out_of_order));
    Ok(Measured {
        ok: missing + duplicates + out_of_order == 0,
        database,
        messages: throughput.arrived,
        per_s: per_second(throughput.arrived, took),
        p50_ms: at(&spans, 50),
        p99_ms: at(&spans, 99),
        max_ms: at(&spans, 100),
        missing,
        duplicates,
        out_of_order,
    })
}

/// Transaction after transaction, of several producers at a time; how many messages that were.
async fn produce<DB: Backend>(
    outbox: Outbox<DB>,
    pool: &Pool<DB>,
    options: &Bench,
    until: Instant,
) -> Result<u64, Failure> {
    let mut producers = JoinSet::new();
    for producer in 0..options.producers {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        let (batch, partitions, bytes) = (options.batch, options.partitions, payload(options));
        producers.spawn(async move {
            let mut sent = 0;
            while Instant::now() < until {
                let messages = (0..batch)
                    .map(|n| EnqueueMessage::new(bytes.clone()).partition((producer + n) % partitions));
                outbox.enqueue_batch(&pool, QUEUE, &messages.collect::<Vec<_>>()).await?;
                sent += u64::from(batch);
            }
            Ok::<_, OutboxError>(sent)
        });
    }
    let mut sent = 0;
    while let Some(ended) = producers.join_next().await {
        sent += ended.map_err(|error| Failure::Problem(error.to_string()))??;
    }
    Ok(sent)
}

/// A message at a time, at a steady pace, whether or not the one before has arrived; when each was committed.
async fn trickle<DB: Backend>(
    outbox: Outbox<DB>,
    pool: &Pool<DB>,
    options: &Bench,
    how_long: Duration,
) -> Result<HashMap<i64, Instant>, Failure> {
    let (mut sending, mut committed) = (JoinSet::new(), HashMap::new());
    let mut pace = tokio::time::interval(Duration::from_secs(1) / LATENCY_RATE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let until = Instant::now() + how_long;
    for n in 0_u32.. {
        pace.tick().await;
        if Instant::now() >= until {
            break;
        }
        let (outbox, pool, bytes, partition) =
            (outbox.clone(), pool.clone(), payload(options), n % options.partitions);
        sending.spawn(async move {
            let message = EnqueueMessage::new(bytes).partition(partition);
            let id = outbox.enqueue(&pool, QUEUE, message).await?;
            Ok::<_, OutboxError>((id.0, Instant::now()))
        });
    }
    while let Some(sent) = sending.join_next().await {
        let (id, at) = sent.map_err(|error| Failure::Problem(error.to_string()))??;
        committed.insert(id, at);
    }
    Ok(committed)
}

fn payload(options: &Bench) -> Vec<u8> {
    vec![b'x'; usize::try_from(options.payload).unwrap_or_default()]
}

/// A handler that remembers what arrived.
#[derive(Debug, Clone, Default)]
struct Arrivals {
    seen: Arc<Mutex<Seen>>,
    count: Arc<AtomicU64>,
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When, by id.
    at: HashMap<i64, Instant>,
    duplicates: u64,
    out_of_order: u64,
    /// The last seq of each partition.
    last_seq: HashMap<u32, i64>,
    last: Option<Instant>,
}

struct Faults {
    arrived: u64,
    missing: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl LeasedHandler for Arrivals {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(batch.len());
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for message in messages {
            if seen.at.insert(message.id.0, now).is_some() {
                seen.duplicates += 1;
            }
            let last = seen.last_seq.insert(message.partition, message.seq);
            // The first one that this run sees may be any: the run before has had others.
            if last.is_some_and(|last| message.seq != last + 1) {
                seen.out_of_order += 1;
            }
        }
        seen.last = Some(now);
        self.count.store(u64::try_from(seen.at.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.news.notify_waiters();
        HandlerResult::Success
    }
}

impl Arrivals {
    /// Until so many have arrived, or nothing has for long.
    async fn wait_for(&self, sent: u64) {
        loop {
            let news = self.news.notified();
            if self.count.load(Ordering::Relaxed) >= sent
                || tokio::time::timeout(STANDSTILL, news).await.is_err()
            {
                return;
            }
        }
    }

    fn last(&self) -> Option<Instant> {
        self.lock().last
    }

    fn judge(&self, sent: u64) -> Faults {
        let seen = self.lock();
        let arrived = u64::try_from(seen.at.len()).unwrap_or(u64::MAX);
        Faults {
            arrived,
            missing: sent.saturating_sub(arrived),
            duplicates: seen.duplicates,
            out_of_order: seen.out_of_order,
        }
    }

    /// How long each message took from its commit.
    fn spans(&self, committed: &HashMap<i64, Instant>) -> Vec<Duration> {
        let seen = self.lock();
        let span = |(id, at): (&i64, &Instant)| Some(seen.at.get(id)?.saturating_duration_since(*at));
        committed.iter().filter_map(span).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn per_second(count: u64, took: Duration) -> f64 {
    let count = u32::try_from(count).map_or(f64::from(u32::MAX), f64::from);
    (count / took.as_secs_f64().max(1e-9)).round()
}

/// A percentile of sorted spans, in milliseconds.
fn at(spans: &[Duration], percent: usize) -> f64 {
    percentile(spans, percent).map_or(0.0, |span| (span.as_secs_f64() * 100_000.0).round() / 100.0)
}

fn print(measured: &Measured, context: &Context) -> Result<(), Failure> {
    if context.out.json {
        return context.out.object(measured);
    }
    let Measured {
        database, messages, per_s, p50_ms, p99_ms, max_ms, missing, duplicates, out_of_order, ..
    } = measured;
    context.out.line(printable(database))?;
    context.out.line(format_args!(
        "throughput  {per_s:.0} messages/s ({messages} messages, enqueued and delivered)"
    ))?;
    context.out.line(format_args!(
        "latency     p50 {p50_ms} ms, p99 {p99_ms} ms, at most {max_ms} ms, from commit to handler"
    ))?;
    context
        .out
        .line(format_args!("checked     {missing} missing, {duplicates} twice, {out_of_order} out of order"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_said_in_milliseconds() {
        let spans: Vec<_> = (1..=200).map(|n| Duration::from_micros(n * 1234)).collect();
        assert_eq!([at(&spans, 50), at(&spans, 100), at(&[], 50)], [123.4, 246.8, 0.0]);
    }
}
