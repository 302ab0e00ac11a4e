//! `posthaste dead-letters list`.

use posthaste::{Backend, DeadLetterFilter, DeadLetterMessage, Outbox, OutboxError, OutboxMessageId};
use serde::Serialize;
use sqlx::Pool;

use super::letter::{Letter, letters, row};
use crate::{
    Context,
    args::ListDeadLetters,
    database::on,
    exit,
    failure::{Failure, Outcome},
};

/// A page, as it is printed.
#[derive(Debug)]
struct Page<T> {
    letters: Vec<T>,
    /// The last of them, if there are more behind it.
    next_after: Option<OutboxMessageId>,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    dead_letters: Vec<Letter<'a>>,
    next_after: Option<i64>,
}

pub async fn run(options: &ListDeadLetters, context: &Context) -> Outcome {
    let mut filter = DeadLetterFilter::from(options.which.scope());
    if let Some(after) = options.after {
        filter = filter.after(OutboxMessageId(after));
    }
    on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        options.which.check_queue(&outbox).await?;
        if context.out.json {
            let page = whole(&outbox, &pool, filter.limit(options.limit)).await?;
            let dead_letters = page.letters.iter().map(Letter::from).collect();
            context.out.object(&Listed { dead_letters, next_after: page.next_after.map(|id| id.0) })?;
        } else {
            print(rows(&outbox, &pool, filter, options.limit).await?, context)?;
        }
    });
    Ok(exit::DONE)
}

fn print(page: Page<Vec<String>>, context: &Context) -> Result<(), Failure> {
    if page.letters.is_empty() {
        return context.out.line("there are no dead letters that fit");
    }
    context.out.line(letters(page.letters))?;
    if let Some(last) = page.next_after {
        context.out.line(format_args!("there are more: the next page is --after {last}"))?;
    }
    Ok(())
}

/// With their payloads, which are bounded together: the page may be shorter than the limit.
async fn whole<DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    filter: DeadLetterFilter,
) -> Result<Page<DeadLetterMessage>, OutboxError> {
    let letters = outbox.dead_letter_list(pool, &filter).await?;
    let next_after = match letters.last() {
        Some(last) => more(outbox, pool, filter, last.id).await?,
        None => None,
    };
    Ok(Page { letters, next_after })
}

/// As many as the limit says, since their payloads are not kept.
async fn rows<DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    mut filter: DeadLetterFilter,
    limit: u32,
) -> Result<Page<Vec<String>>, OutboxError> {
    let (mut letters, mut left, mut last) = (Vec::new(), limit, None);
    while left > 0 {
        let page = outbox.dead_letter_list(pool, &filter.clone().limit(left)).await?;
        let Some(end) = page.last() else { return Ok(Page { letters, next_after: None }) };
        (filter, last) = (filter.after(end.id), Some(end.id));
        left = left.saturating_sub(u32::try_from(page.len()).unwrap_or(u32::MAX));
        letters.extend(page.iter().map(row));
    }
    let next_after = match last {
        Some(last) => more(outbox, pool, filter, last).await?,
        None => None,
    };
    Ok(Page { letters, next_after })
}

/// This one, if there are any behind it.
async fn more<DB: Backend>(
    outbox: &Outbox<DB>,
    pool: &Pool<DB>,
    filter: DeadLetterFilter,
    last: OutboxMessageId,
) -> Result<Option<OutboxMessageId>, OutboxError> {
    let behind = outbox.dead_letter_list(pool, &filter.after(last).limit(1)).await?;
    Ok((!behind.is_empty()).then_some(last))
}
