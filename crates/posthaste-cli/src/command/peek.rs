//! `posthaste peek`: what a queue delivers next.

use std::collections::VecDeque;

use posthaste::{Backend, EnqueuedMessage, Outbox, OutboxError, OutboxMessage, PartitionLag};
use serde::Serialize;

use crate::{
    Context,
    args::Peek,
    database::on,
    exit,
    failure::Outcome,
    message::{Message, age, cell, cell_or_dash},
    payload, queue,
};

/// The payloads of all messages that are shown have no more bytes than this, or it is one message.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The most messages that are read at once.
const PAGE: u32 = 16;
/// The most messages of all partitions together that are read ahead, if there are not more partitions.
const AHEAD: u32 = 64;

#[derive(Debug)]
enum Waiting {
    InOrder(OutboxMessage),
    Unsequenced(EnqueuedMessage),
}

impl Waiting {
    fn message(&self) -> Message<'_> {
        match self {
            Self::InOrder(message) => message.into(),
            Self::Unsequenced(message) => message.into(),
        }
    }
}

#[derive(Debug, Default)]
struct Found {
    messages: Vec<Waiting>,
    bytes: usize,
    /// Some were left out.
    are_more: bool,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    messages: Vec<Message<'a>>,
    more: bool,
}

pub async fn run(options: &Peek, context: &Context) -> Outcome {
    let found = on!(context.open().await?, pool => look(&context.outbox(&pool).await?, options).await?);
    let messages: Vec<_> = found.messages.iter().map(Waiting::message).collect();
    if context.out.json {
        context.out.object(&Shown { messages, more: found.are_more })?;
        return Ok(exit::DONE);
    }
    if messages.is_empty() {
        context.out.line(format_args!("nothing waits in {}", options.queue))?;
        return Ok(exit::DONE);
    }
    let rows: Vec<_> = messages.iter().map(|message| row(message, options)).collect();
    context.out.table(&["PARTITION", "SEQ", "ID", "KEY", "TYPE", "AGE", "PAYLOAD"], &rows)?;
    if found.are_more {
        context.out.line("there are more: --limit shows more of them")?;
    }
    Ok(exit::DONE)
}

fn row(message: &Message<'_>, options: &Peek) -> Vec<String> {
    vec![
        message.partition.to_string(),
        message.seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
        message.id.to_string(),
        cell_or_dash(message.key),
        cell(message.payload_type),
        age(message.created_at),
        payload::shown(message.payload, &options.shown),
    ]
}

async fn look<DB: Backend>(outbox: &Outbox<DB>, options: &Peek) -> Result<Found, OutboxError> {
    let partitions = queue::partitions(outbox, &options.queue, options.partition).await?;
    let mut found = Found::default();
    in_order(outbox, options, &partitions, &mut found).await?;
    if !found.are_more {
        unsequenced(outbox, options, &mut found).await?;
    }
    Ok(found)
}

impl Found {
    /// Takes it, unless that would be too much.
    fn takes(&mut self, message: Waiting, limit: u32) -> bool {
        let bytes = message.message().payload.len();
        let is_full = u32::try_from(self.messages.len()).is_ok_and(|len| len >= limit);
        self.are_more = is_full || (!self.messages.is_empty() && self.bytes + bytes > MAX_BYTES);
        if !self.are_more {
            self.bytes += bytes;
            self.messages.push(message);
        }
        !self.are_more
    }
}

/// A partition's messages behind its cursor, read as they are needed.
struct Source {
    partition: u32,
    after_seq: i64,
    page: VecDeque<OutboxMessage>,
}

/// Merges the partitions: each in its order, the oldest message of them first.
async fn in_order<DB: Backend>(
    outbox: &Outbox<DB>,
    options: &Peek,
    partitions: &[PartitionLag],
    found: &mut Found,
) -> Result<(), OutboxError> {
    let waiting = partitions.iter().filter(|lag| lag.depth > 0);
    let mut sources: Vec<_> = waiting
        .map(|lag| Source { partition: lag.partition, after_seq: lag.cursor_seq, page: VecDeque::new() })
        .collect();
    let share = u32::try_from(sources.len()).map_or(1, |sources| options.limit.min(AHEAD) / sources.max(1));
    let page = share.clamp(1, PAGE);
    loop {
        for source in sources.iter_mut().filter(|source| source.page.is_empty()) {
            let read = outbox.browse(&options.queue, source.partition, source.after_seq, page).await?;
            source.after_seq = read.last().map_or(source.after_seq, |last| last.seq);
            source.page = read.into();
        }
        sources.retain(|source| !source.page.is_empty());
        let oldest = sources.iter_mut().min_by_key(|source| source.page.front().map(|message| message.id));
        let Some(message) = oldest.and_then(|source| source.page.pop_front()) else { return Ok(()) };
        if !found.takes(Waiting::InOrder(message), options.limit) {
            return Ok(());
        }
    }
}

/// Those that have no place yet, a page at a time: their payloads may be large.
async fn unsequenced<DB: Backend>(
    outbox: &Outbox<DB>,
    options: &Peek,
    found: &mut Found,
) -> Result<(), OutboxError> {
    let mut after = None;
    loop {
        let page = outbox.unsequenced(&options.queue, options.partition, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id);
        for message in page {
            if !found.takes(Waiting::Unsequenced(message), options.limit) {
                return Ok(());
            }
        }
    }
}
