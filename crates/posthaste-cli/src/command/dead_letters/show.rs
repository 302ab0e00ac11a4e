//! `posthaste dead-letters show`.

use posthaste::{DeadLetterFilter, DeadLetterMessage, OutboxMessageId};

use super::letter::Letter;
use crate::{
    Context,
    args::{Format, Shown},
    database::on,
    exit,
    failure::{Failure, Outcome},
    message::age,
    output::{moment, printable},
    payload,
};

pub async fn run(id: i64, format: Format, context: &Context) -> Outcome {
    let filter = DeadLetterFilter::default().ids([OutboxMessageId(id)]);
    let found = on!(context.open().await?, pool => {
        context.outbox(&pool).await?.dead_letter_list(&pool, &filter).await?
    });
    let Some(letter) = found.first() else {
        return Err(Failure::Problem(format!(
            "there is no dead letter {id}: `posthaste dead-letters list` lists those there are"
        )));
    };
    if context.out.json {
        context.out.object(&Letter::from(letter))?;
    } else {
        let lines = lines(letter, format);
        let widest = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
        for (name, value) in lines {
            context.out.line(format_args!("{name:widest$}{value}"))?;
        }
    }
    Ok(exit::DONE)
}

fn lines(letter: &DeadLetterMessage, format: Format) -> Vec<(&'static str, String)> {
    let when = |time| format!("{} ({} ago)", moment(time), age(time));
    let mut lines = vec![
        ("id", letter.id.to_string()),
        ("queue", letter.queue.to_string()),
        ("partition", letter.partition.to_string()),
        ("seq", letter.seq.to_string()),
        ("key", letter.key.as_deref().map_or_else(|| "-".to_owned(), printable)),
        ("type", printable(&letter.payload_type)),
        ("enqueued", when(letter.created_at)),
        ("rejected", when(letter.rejected_at)),
        ("attempts", letter.attempts.to_string()),
        ("reason", printable(&letter.reason)),
        ("status", letter.status.to_string()),
        ("changed", when(letter.changed_at)),
    ];
    lines.extend(letter.claimed_until.map(|until| ("claimed until", moment(until))));
    lines.extend(letter.redelivered_as.map(|id| ("redelivered as", id.to_string())));
    for (name, value) in &letter.headers {
        lines.push(("header", format!("{} = {}", printable(name), printable(value))));
    }
    lines.push(("payload", payload::shown(&letter.payload, &Shown { format, cut: 0 })));
    lines
}
