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
    if context.out.json {
        context.out.object(&Paused { queue, is_paused })?;
    } else if is_paused {
        context.out.line(format_args!(
            "{queue} is paused: nothing of it is delivered until `posthaste resume {queue}`"
        ))?;
    } else {
        context.out.line(format_args!("{queue} is delivered again"))?;
    }
    Ok(exit::DONE)
}
