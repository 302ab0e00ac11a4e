//! What the runtime itself costs: one Proceed cycle of an action that does nothing, with one notifier and a Fixed
//! limit. The bar is 2 µs a cycle.

use std::{
    convert::Infallible,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use taskward::{
    Bulkhead, BulkheadConfig, CancellationToken, ConcurrencyLimit, Directive, PacingConfig, WorkerAction,
    WorkerBuilder,
};
use tokio::sync::Notify;

struct NoOp {
    left: u64,
    cancel: CancellationToken,
}

impl WorkerAction for NoOp {
    type Payload = ();
    type Error = Infallible;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive, Infallible> {
        self.left -= 1;
        if self.left == 0 {
            self.cancel.cancel();
        }
        Ok(black_box(Directive::proceed()))
    }
}

fn cycles(runtime: &tokio::runtime::Runtime, count: u64) -> Duration {
    let cancel = CancellationToken::new();
    let bell = Arc::new(Notify::new());
    bell.notify_one();
    let worker = WorkerBuilder::new("no-op", cancel.clone())
        .notifier(bell)
        .pacing(PacingConfig {
            min_interval: Duration::ZERO,
            active_interval: Duration::ZERO,
            ramp_step: Duration::ZERO,
        })
        .bulkhead(Bulkhead::new(
            "no-op",
            BulkheadConfig { semaphore: ConcurrencyLimit::fixed(1), ..Default::default() },
        ))
        .build(NoOp { left: count, cancel });
    let started = Instant::now();
    runtime.block_on(async { tokio::spawn(worker.run()).await.expect("a no-op does not panic") });
    started.elapsed()
}

fn overhead(criterion: &mut Criterion) {
    let threads = [
        ("current thread", tokio::runtime::Builder::new_current_thread().enable_all().build()),
        ("multi thread", tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()),
    ];
    for (name, runtime) in threads {
        let runtime = runtime.expect("a runtime");
        criterion.bench_function(&format!("proceed cycle, {name}"), |b| {
            b.iter_custom(|count| cycles(&runtime, count));
        });
    }
}

criterion_group!(benches, overhead);
criterion_main!(benches);
