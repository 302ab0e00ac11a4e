//! `posthaste pause` and `posthaste resume`.

use serde::Serialize;

use crate::{Context, database::on, exit, failure::Outcome};

#[derive(Serialize)]
struct Paused<'a> {
    queue: &'a str,
    is_paused: bool,
}

pub async fn run(queue: &str, is_paused: bool, context: &Context) -> Outcome {
    on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        if is_paused { outbox.pause(queue).await? } else { outbox.resume(queue).await? }
    });
    let text = if is_paused {
        format!("{queue} is paused: nothing of it is delivered until `posthaste resume {queue}`")
    } else {
        format!("{queue} is delivered again")
    };
    context.out.report(&Paused { queue, is_paused }, text)?;
    Ok(exit::DONE)
}
