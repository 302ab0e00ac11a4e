//! Batches that were not settled in the time that their handler had, as the process itself sees it: by the spans that the library documents.
//! They may have outlived their lease. A database that is slow to answer, or whose turn to write never comes, is nobody's deed, and explains
//! what comes again.

use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use crate::{
    clock::now,
    content::Mode,
    history::{Line, Noticed, Pen},
};

/// From being given out to being settled, with its `queue` and `partition`.
const BATCH: &str = "posthaste.batch";

/// Writes down each batch that took longer than its handler had.
pub struct SlowBatches {
    pub process: u32,
    pub budget: u64,
    pub pen: Pen,
}

/// When a span began, and where.
#[derive(Clone, Copy)]
struct Began {
    at: u64,
    mode: Option<Mode>,
    partition: Option<u32>,
}

impl Visit for Began {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "queue" {
            self.mode = Mode::of_queue(value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "partition" {
            self.partition = u32::try_from(value).ok();
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SlowBatches {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().name() == BATCH
            && let Some(span) = context.span(id)
        {
            let mut began = Began { at: now(), mode: None, partition: None };
            attributes.record(&mut began);
            span.extensions_mut().insert(began);
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let began = |span: SpanRef<'_, S>| span.extensions().get::<Began>().copied();
        let Some(Began { at: from, mode, partition }) = context.span(&id).and_then(began) else { return };
        let (process, until) = (self.process, now());
        if until - from > self.budget {
            let place = mode.zip(partition);
            self.pen.write(&[Line::Slow(Noticed { process, place, from, until })]).ok();
        }
    }
}
