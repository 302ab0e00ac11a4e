//! Cancelling ends every kind of wait at once, and never an execution.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use taskward::{
    Bulkhead, BulkheadConfig, CancellationToken, ConcurrencyLimit, Directive, ErrorPolicy, PacingConfig,
    WorkerAction,
};
use tokio::sync::Semaphore;

use crate::stage::{Outcome, Running, diary, hours, script, secs, settle, start};

async fn ends_at_once(worker: Running) {
    settle().await;
    assert_eq!(worker.stop().await, secs(0));
}

fn always(outcome: fn() -> Outcome) -> impl WorkerAction<Payload = ()> + 'static {
    script(move |_| async move { outcome() })
}

#[tokio::test(start_paused = true)]
async fn while_idle() {
    ends_at_once(start(always(|| Ok(Directive::idle())), |b| b)).await;
}

#[tokio::test(start_paused = true)]
async fn while_asleep() {
    let worker = start(always(|| Ok(Directive::sleep(hours(1)))), |b| b);
    worker.bell.notify_one();
    ends_at_once(worker).await;
}

#[tokio::test(start_paused = true)]
async fn while_pacing() {
    let pacing = PacingConfig { min_interval: hours(1), active_interval: hours(1), ramp_step: secs(0) };
    let worker = start(always(|| Ok(Directive::proceed())), |b| b.pacing(pacing));
    worker.bell.notify_one();
    ends_at_once(worker).await;
}

#[tokio::test(start_paused = true)]
async fn while_backing_off() {
    for policy in [ErrorPolicy::Idle, ErrorPolicy::Retry] {
        let worker = start(always(|| Err("always".to_owned())), |b| b.on_error(policy));
        worker.bell.notify_one();
        ends_at_once(worker).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_waiting_for_a_permit() {
    let none = || Arc::new(Semaphore::new(0));
    for semaphore in
        [ConcurrencyLimit::Fixed(none()), ConcurrencyLimit::Tiered { guaranteed: none(), shared: none() }]
    {
        let bulkhead = Bulkhead::new("bulkhead", BulkheadConfig { semaphore, ..Default::default() });
        let worker = start(always(|| Ok(Directive::idle())), |b| b.bulkhead(bulkhead));
        worker.bell.notify_one();
        ends_at_once(worker).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_executing_it_waits_for_the_execution() {
    let finished = Arc::new(AtomicBool::new(false));
    let finishes = Arc::clone(&finished);
    let worker = start(
        script(move |_| {
            let finishes = Arc::clone(&finishes);
            async move {
                tokio::time::sleep(secs(5)).await;
                finishes.store(true, Ordering::SeqCst);
                Ok(Directive::proceed())
            }
        }),
        |b| b,
    );
    worker.bell.notify_one();
    tokio::time::sleep(secs(2)).await;
    assert_eq!(worker.stop().await, secs(3));
    assert!(finished.load(Ordering::SeqCst), "an execution is never dropped half-way");
}

#[tokio::test(start_paused = true)]
async fn while_executing_the_action_sees_the_token() {
    struct Watchful;
    impl WorkerAction for Watchful {
        type Payload = ();
        type Error = String;
        async fn execute(&mut self, cancel: &CancellationToken) -> Outcome {
            cancel.cancelled().await;
            Ok(Directive::idle())
        }
    }
    let worker = start(Watchful, |b| b);
    worker.bell.notify_one();
    ends_at_once(worker).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_cancelled_before_it_runs_never_executes() {
    let (diary, seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b,
    );
    worker.bell.notify_one();
    worker.stop().await;
    assert!(seen.so_far().is_empty());
}
