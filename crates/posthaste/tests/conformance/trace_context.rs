//! W3C trace context: from the span that enqueues, in the message's headers, to the spans that handle it.

use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::trace::SpanData;
use posthaste::{EnqueueMessage, MAX_HEADERS, Outbox, Partitions};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    cases::cases,
    fresh::Server,
    listening::Traces,
    modes::{InMode, Mode},
    stage::{Memory, begin, builder, eventually, fresh, register},
    telemetry::AsToldByType,
};

cases! {
    [leased, transactional, batch]: what_handles_a_message_is_linked_to_what_enqueued_it;
    []: a_message_carries_the_trace_of_whoever_enqueued_it;
}

fn context(span: &Span) -> SpanContext {
    span.context().span().span_context().clone()
}

fn traceparent(span: &Span) -> String {
    let context = context(span);
    format!("00-{}-{}-01", context.trace_id(), context.span_id())
}

async fn a_message_carries_the_trace_of_whoever_enqueued_it<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let traces = Traces::collect();
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let (first, second) = (tracing::info_span!("first"), tracing::info_span!("second"));

    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("no span")).await.unwrap();
    let in_transaction = async {
        let mut tx = begin(&db.pool).await;
        outbox.enqueue(&mut tx, "q", EnqueueMessage::new("first").header("a", "b")).await.unwrap();
        tx.commit().await.unwrap();
    };
    in_transaction.instrument(first.clone()).await;
    let own = EnqueueMessage::new("own").header("TraceParent", "of their own");
    let mut full = EnqueueMessage::new("full");
    for _ in 0..MAX_HEADERS {
        full = full.header("h", "v");
    }
    let messages = [EnqueueMessage::new("second"), own, full];
    outbox.enqueue_batch(&db.pool, "q", &messages).instrument(second.clone()).await.unwrap();

    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    memory.has(5).await;
    handle.stop().await;
    let headers: Vec<_> = memory.all().into_iter().map(|seen| seen.message.headers).collect();
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(headers[0], []);
    assert_eq!(headers[1], [header("a", "b"), header("traceparent", &traceparent(&first))]);
    assert_eq!(headers[2], [header("traceparent", &traceparent(&second))]);
    assert_eq!(headers[3], [header("TraceParent", "of their own")]);
    assert_eq!(headers[4], vec![header("h", "v"); MAX_HEADERS], "there is no room");
    let enqueued = traces.called("posthaste.enqueue");
    let parents: Vec<_> = enqueued.iter().map(|span| span.parent_span_id).collect();
    assert!(parents.contains(&context(&first).span_id()) && parents.contains(&context(&second).span_id()));
    db.remove().await;
}

async fn what_handles_a_message_is_linked_to_what_enqueued_it<S: Server>(mode: Mode) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let traces = Traces::collect();
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let spans = [tracing::info_span!("one"), tracing::info_span!("other")];
    for span in &spans {
        let messages = vec![EnqueueMessage::new("x"); 2];
        outbox.enqueue_batch(&db.pool, "q", &messages).instrument(span.clone()).await.unwrap();
    }
    let wrong = EnqueueMessage::new("x").header("traceparent", "00-no-trace-01");
    outbox.enqueue(&db.pool, "q", wrong).await.unwrap();

    let queue = builder(&db).queue("q", Partitions::of(1));
    let handle = queue.handled(mode, AsToldByType).start().await.unwrap();
    eventually("all is settled", async || handle.stats().processor.messages == 5).await;
    handle.stop().await;
    let linked = |span: &SpanData| {
        let links = span.links.iter().map(|link| link.span_context.clone());
        links.map(|context| (context.trace_id(), context.span_id())).collect::<Vec<_>>()
    };
    let places = spans.each_ref().map(|span| (context(span).trace_id(), context(span).span_id()));
    let batches = traces.called("posthaste.batch");
    assert_eq!(batches.iter().flat_map(linked).collect::<Vec<_>>(), places, "to each of them once");
    assert!(batches.iter().all(|batch| !places.iter().any(|place| place.0 == batch.span_context.trace_id())));
    let messages = traces.called("posthaste.message");
    let expected = match mode {
        Mode::Batch => vec![],
        Mode::Leased | Mode::Transactional => vec![places[0], places[0], places[1], places[1]],
    };
    assert_eq!(messages.iter().flat_map(linked).collect::<Vec<_>>(), expected);
    db.remove().await;
}
