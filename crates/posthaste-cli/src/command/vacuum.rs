//! `posthaste vacuum`: removes what is settled, now.

use serde::Serialize;

use crate::{Context, database::on, exit, failure::Outcome};

#[derive(Serialize)]
struct Vacuumed {
    removed: u64,
}

pub async fn run(context: &Context) -> Outcome {
    let removed = on!(context.open().await?, pool => context.outbox(&pool).await?.vacuum().await?);
    match removed {
        _ if context.out.json => context.out.object(&Vacuumed { removed })?,
        0 => context.out.line("nothing was there to remove")?,
        1 => context.out.line("removed 1 message that was settled")?,
        _ => context.out.line(format_args!("removed {removed} messages that were settled"))?,
    }
    Ok(exit::DONE)
}
