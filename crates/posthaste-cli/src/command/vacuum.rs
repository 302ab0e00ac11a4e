//! `posthaste vacuum`: removes what is settled, now.

use serde::Serialize;

use crate::{Context, database::on, exit, failure::Outcome};

#[derive(Serialize)]
struct Vacuumed {
    removed: u64,
}

pub async fn run(context: &Context) -> Outcome {
    let removed = on!(context.open().await?, pool => context.outbox(&pool).await?.vacuum().await?);
    let text = match removed {
        0 => "nothing was there to remove".to_owned(),
        1 => "removed 1 message that was settled".to_owned(),
        _ => format!("removed {removed} messages that were settled"),
    };
    context.out.report(&Vacuumed { removed }, text)?;
    Ok(exit::DONE)
}
