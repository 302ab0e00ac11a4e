//! `posthaste tail`: follows what is delivered of a queue, by looking at how far its partitions are settled.

use std::collections::{BTreeMap, HashMap};

use console::{Alignment, pad_str, style};
use posthaste::{Backend, DeadLetterFilter, Outbox, OutboxMessage, OutboxMessageId};
use serde::Serialize;
use sqlx::Pool;

use crate::{
    Context,
    args::Tail,
    database::on,
    exit,
    failure::{Failure, Outcome},
    interrupt,
    message::{Message, cell, cell_or_dash},
    output::{Output, moment, printable},
    payload, queue,
};

/// Places in a partition that are read at once.
const PAGE: u32 = 50;

/// A message that is settled.
#[derive(Debug, Serialize)]
struct Settled<'a> {
    #[serde(flatten)]
    message: Message<'a>,
    /// Why it is a dead letter, if it is.
    rejected: Option<&'a str>,
}

/// Places whose messages were removed before they could be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Gap {
    partition: u32,
    from_seq: i64,
    to_seq: i64,
}

pub async fn run(options: &Tail, context: &Context) -> Outcome {
    tokio::select! {
        ended = follow(options, context) => ended,
        () = interrupt::asked() => Ok(exit::DONE),
    }
}

async fn follow(options: &Tail, context: &Context) -> Outcome {
    on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        Follower::new(&outbox, &pool, options, &context.out).follow().await
    })
}

struct Follower<'a, DB: Backend> {
    outbox: &'a Outbox<DB>,
    pool: &'a Pool<DB>,
    options: &'a Tail,
    out: &'a Output,
    places: BTreeMap<u32, Place>,
    shown: u64,
}

/// How far a partition is shown, and how far it was settled when it began to be.
#[derive(Debug, Clone, Copy)]
struct Place {
    seen: i64,
    began: i64,
}

impl<'a, DB: Backend> Follower<'a, DB> {
    const fn new(outbox: &'a Outbox<DB>, pool: &'a Pool<DB>, options: &'a Tail, out: &'a Output) -> Self {
        Self { outbox, pool, options, out, places: BTreeMap::new(), shown: 0 }
    }

    async fn follow(mut self) -> Outcome {
        // Whatever is wrong at first stays wrong: nothing is tried again yet.
        for lag in queue::partitions(self.outbox, &self.options.queue, self.options.partition).await? {
            let began = lag.cursor_seq;
            let seen = began.saturating_sub(i64::from(self.options.last)).max(0);
            self.places.insert(lag.partition, Place { seen, began });
        }
        self.out.note(format_args!("following {}: Ctrl-C ends it", self.options.queue));
        if !self.out.json {
            self.out.line(line(&HEADER.map(str::to_owned)))?;
        }
        let mut is_away = false;
        loop {
            match self.look().await {
                Ok(()) if is_away => {
                    self.out.note("the database is back");
                    is_away = false;
                }
                Ok(()) => {}
                Err(failure) => {
                    let Some(why) = failure.may_pass() else { return Err(failure) };
                    if !is_away {
                        self.out.note(format_args!("{why}: trying again"));
                    }
                    is_away = true;
                }
            }
            if self.is_enough() {
                return Ok(exit::DONE);
            }
            tokio::time::sleep(self.options.interval).await;
        }
    }

    fn is_enough(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.shown >= limit)
    }

    /// Shows what was settled since.
    async fn look(&mut self) -> Result<(), Failure> {
        for lag in queue::partitions(self.outbox, &self.options.queue, self.options.partition).await? {
            if let Some(place) = self.places.get(&lag.partition).copied() {
                self.show(lag.partition, place, lag.cursor_seq).await?;
            }
        }
        Ok(())
    }

    /// Shows a partition up to its cursor. What was shown is remembered at once: an error may come at any time.
    async fn show(&mut self, partition: u32, mut place: Place, cursor: i64) -> Result<(), Failure> {
        let mut read = place.seen;
        while read < cursor && !self.is_enough() {
            let mut page = self.outbox.browse(&self.options.queue, partition, read, PAGE).await?;
            // If nothing is left of the places that were read, there may still be something behind them.
            read = page.last().map_or(read.saturating_add(i64::from(PAGE)), |last| last.seq).min(cursor);
            page.retain(|message| message.seq <= cursor);
            let rejected = self.rejected(&page).await?;
            for message in page {
                if self.is_enough() {
                    return Ok(());
                }
                self.tell_gap(partition, place, message.seq)?;
                self.tell(&message, rejected.get(&message.id).map(String::as_str))?;
                place.seen = message.seq;
                self.places.insert(partition, place);
            }
        }
        if !self.is_enough() {
            self.tell_gap(partition, place, cursor.saturating_add(1))?;
            place.seen = place.seen.max(cursor);
            self.places.insert(partition, place);
        }
        Ok(())
    }

    /// Which of them are dead letters, and why.
    async fn rejected(
        &self,
        messages: &[OutboxMessage],
    ) -> Result<HashMap<OutboxMessageId, String>, Failure> {
        let mut rejected = HashMap::new();
        if messages.is_empty() {
            return Ok(rejected);
        }
        let mut filter = DeadLetterFilter::default().ids(messages.iter().map(|message| message.id));
        loop {
            let page = self.outbox.dead_letter_list(self.pool, &filter).await?;
            let Some(last) = page.last() else { return Ok(rejected) };
            filter = filter.after(last.id);
            rejected.extend(page.into_iter().map(|letter| (letter.id, letter.reason)));
        }
    }

    fn tell(&mut self, message: &OutboxMessage, rejected: Option<&str>) -> Result<(), Failure> {
        self.shown += 1;
        let message = Message::from(message);
        if self.out.json {
            return self.out.object(&Settled { message, rejected });
        }
        let mut payload = payload::shown(message.payload, &self.options.shown);
        if let Some(reason) = rejected {
            payload.push_str(&format!("  {} {}", style("rejected:").red(), printable(reason)));
        }
        self.out.line(line(&[
            moment(message.created_at),
            message.partition.to_string(),
            message.seq.unwrap_or_default().to_string(),
            message.id.to_string(),
            cell_or_dash(message.key),
            cell(message.payload_type),
            payload,
        ]))
    }

    /// If something is missing before this place. What was missing when we began is not missed.
    fn tell_gap(&self, partition: u32, place: Place, next: i64) -> Result<(), Failure> {
        let (from_seq, to_seq) = (place.seen.max(place.began).saturating_add(1), next.saturating_sub(1));
        if from_seq > to_seq {
            return Ok(());
        }
        let gap = Gap { partition, from_seq, to_seq };
        if self.out.json {
            return self.out.object(&serde_json::json!({ "gap": gap }));
        }
        let count = to_seq - from_seq + 1;
        self.out.line(format_args!(
            "… {count} of partition {partition} were delivered and removed before they could be shown (seq {from_seq} to {to_seq})"
        ))
    }
}

const HEADER: [&str; 7] = ["ENQUEUED", "PARTITION", "SEQ", "ID", "KEY", "TYPE", "PAYLOAD"];

/// In columns that are as wide as usual: nobody knows what comes.
fn line(cells: &[String; 7]) -> String {
    use Alignment::{Left, Right};
    const COLUMNS: [(usize, Alignment); 7] =
        [(24, Left), (9, Right), (8, Right), (8, Right), (16, Left), (24, Left), (0, Left)];
    let padded = cells.iter().zip(COLUMNS).map(|(cell, (width, side))| pad_str(cell, width, side, None));
    padded.collect::<Vec<_>>().join("  ")
}
