//! Batches that were not settled while their lease lasted, as the process itself sees it: by the spans that the library documents. A
//! database that is slow to answer, or whose turn to write never comes, is nobody's deed, and explains what comes again.

use tracing::{Subscriber, span};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use crate::{
    clock::now,
    history::{Line, Pen},
};

/// From being given out to being settled.
const BATCH: &str = "posthaste.batch";

/// Writes down each batch that took longer than its handler had.
pub struct SlowBatches {
    pub process: u32,
    pub budget: u64,
    pub pen: Pen,
}

/// When a span began.
struct Began(u64);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SlowBatches {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().name() == BATCH
            && let Some(span) = context.span(id)
        {
            span.extensions_mut().insert(Began(now()));
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let began = |span: SpanRef<'_, S>| span.extensions().get::<Began>().map(|began| began.0);
        let (Some(from), until) = (context.span(&id).and_then(began), now()) else { return };
        if until - from > self.budget {
            self.pen.write(&[Line::Slow { process: self.process, from, until }]).ok();
        }
    }
}
