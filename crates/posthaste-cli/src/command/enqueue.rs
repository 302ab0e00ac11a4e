//! `posthaste enqueue`: puts a message into a queue.

use std::path::Path;

use posthaste::{Backend, DEFAULT_MAX_PAYLOAD, EnqueueMessage, Outbox, OutboxError, Partitions};
use serde::Serialize;
use sqlx::Pool;

use crate::{
    Context,
    args::Enqueue,
    database::on,
    exit,
    failure::{Failure, Outcome},
    input::{self, Bytes},
    queue,
};

#[derive(Debug, Serialize)]
struct Enqueued<'a> {
    id: i64,
    queue: &'a str,
    partition: u32,
}

pub async fn run(options: Enqueue, context: &Context) -> Outcome {
    let payload = payload(&options).await?;
    let done = on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        let done = enqueue(&outbox, &pool, &options, payload).await?;
        outbox.close().await;
        done
    });
    let Enqueued { id, queue, partition } = &done;
    let text = format_args!("enqueued message {id} into {queue}, partition {partition}");
    context.out.report(&done, text)?;
    Ok(exit::DONE)
}

/// The payload, byte for byte, from where the options say; before anything is asked of the database.
async fn payload(options: &Enqueue) -> Result<Vec<u8>, Failure> {
    let is_standard_input = |path: &Path| path.as_os_str() == "-";
    let read = match (&options.payload, &options.file) {
        (Some(payload), _) if payload != "-" => Bytes::Whole(payload.as_encoded_bytes().to_vec()),
        (_, Some(path)) if !is_standard_input(path) => {
            let shown = format!("the payload from {}", path.display());
            let read = input::file(path.clone(), DEFAULT_MAX_PAYLOAD).await;
            read.map_err(|error| Failure::input(&shown, &error))?
        }
        _ => {
            let read = input::standard(DEFAULT_MAX_PAYLOAD).await;
            read.map_err(|error| Failure::input("the payload from standard input", &error))?
        }
    };
    let size = match read {
        Bytes::Whole(bytes) if bytes.len() <= DEFAULT_MAX_PAYLOAD => return Ok(bytes),
        Bytes::Whole(bytes) => bytes.len().to_string(),
        Bytes::TooMany(Some(size)) => size.to_string(),
        Bytes::TooMany(None) => format!("more than {DEFAULT_MAX_PAYLOAD}"),
    };
    Err(Failure::Usage(format!(
        "a payload of {size} bytes is too large: the limit is {DEFAULT_MAX_PAYLOAD} bytes"
    )))
}

async fn enqueue<'o, DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    options: &'o Enqueue,
    payload: Vec<u8>,
) -> Result<Enqueued<'o>, OutboxError> {
    let queue = &*options.queue;
    let mut message = EnqueueMessage::new(payload).payload_type(&options.payload_type);
    for (name, value) in &options.headers {
        message = message.header(name, value);
    }
    // Asked before, so that nothing can fail once the message is written.
    let count = queue::partitions(outbox, queue, options.partition).await?.len();
    let partition = match &options.key {
        Some(key) => {
            message = message.key(key);
            u32::try_from(count).map_or(0, |count| Partitions::of(count).for_key(key))
        }
        None => options.partition.unwrap_or(0),
    };
    let id = outbox.enqueue(pool, queue, message.partition(partition)).await?;
    Ok(Enqueued { id: id.0, queue, partition })
}
