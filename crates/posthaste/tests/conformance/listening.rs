//! What is traced and logged, for tests that look at it.
//!
//! There is one subscriber in the process, however many tests are: drivers have threads of their own, which enter the spans of
//! others, and a span must be of the subscriber that its thread has. So a test does not bring its own; it listens to this one.

use std::sync::{
    LazyLock, RwLock,
    atomic::{AtomicBool, Ordering},
};

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::{
    Event,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, dynamic_filter_fn},
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

type Listener = Box<dyn Layer<Registry> + Send + Sync>;

static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);
static IS_TRACING: AtomicBool = AtomicBool::new(false);
static ENDED: LazyLock<InMemorySpanExporter> = LazyLock::new(InMemorySpanExporter::default);

/// Logs to the test's output, for those that fail; and whatever `log` is told too.
pub fn show_logs() {
    static IS_SET_UP: LazyLock<()> = LazyLock::new(|| {
        let provider = SdkTracerProvider::builder().with_simple_exporter(ENDED.clone()).build();
        let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing_subscriber::registry()
            .with(Relay.with_filter(dynamic_filter_fn(|_, _| LISTENER.read().is_ok_and(|it| it.is_some()))))
            .with(traces.with_filter(dynamic_filter_fn(|_, _| IS_TRACING.load(Ordering::Relaxed))))
            .with(
                tracing_subscriber::fmt::layer()
                    .with_test_writer()
                    .with_ansi(false)
                    .with_filter(LevelFilter::INFO),
            )
            .init();
        tracing_log::LogTracer::init().expect("nobody else does");
    });
    LazyLock::force(&IS_SET_UP);
}

/// Gives everything, at all levels, to this layer, until what is returned is dropped.
pub fn listen(listener: impl Layer<Registry> + Send + Sync) -> Listening {
    show_logs();
    *LISTENER.write().expect("nobody panics while holding it") = Some(Box::new(listener));
    Listening
}

pub struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        *LISTENER.write().expect("nobody panics while holding it") = None;
    }
}

/// Spans as OpenTelemetry has them, from now on and until this is dropped.
pub struct Traces;

impl Traces {
    pub fn collect() -> Self {
        show_logs();
        IS_TRACING.store(true, Ordering::Relaxed);
        Self
    }

    /// Those of this name that have ended.
    pub fn called(&self, name: &str) -> Vec<SpanData> {
        let ended = ENDED.get_finished_spans().expect("it is not shut down");
        ended.into_iter().filter(|span| span.name == name).collect()
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        IS_TRACING.store(false, Ordering::Relaxed);
        ENDED.reset();
    }
}

/// Tells whoever listens.
struct Relay;

impl Relay {
    fn tell(tell: impl FnOnce(&Listener)) {
        if let Ok(listener) = LISTENER.read()
            && let Some(listener) = &*listener
        {
            tell(listener);
        }
    }
}

impl Layer<Registry> for Relay {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_new_span(attributes, id, context));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_record(id, record, context));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_event(event, context));
    }

    fn on_enter(&self, id: &Id, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_enter(id, context));
    }

    fn on_exit(&self, id: &Id, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_exit(id, context));
    }

    fn on_close(&self, id: Id, context: Context<'_, Registry>) {
        Self::tell(|listener| listener.on_close(id, context));
    }
}
