use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use taskward::{
    Bulkhead, BulkheadConfig, ConcurrencyLimit, Directive, ErrorPolicy, LimitClosed, WorkerListener,
};
use tokio::sync::Semaphore;

use crate::stage::{diary, script, secs, settle, start};

fn tiered(guaranteed: usize, shared: usize) -> (ConcurrencyLimit, Arc<Semaphore>, Arc<Semaphore>) {
    let (guaranteed, shared) = (Arc::new(Semaphore::new(guaranteed)), Arc::new(Semaphore::new(shared)));
    let limit = ConcurrencyLimit::Tiered { guaranteed: Arc::clone(&guaranteed), shared: Arc::clone(&shared) };
    (limit, guaranteed, shared)
}

#[tokio::test(start_paused = true)]
async fn tiered_prefers_shared_then_takes_guaranteed_then_waits_for_either() {
    let (limit, guaranteed, shared) = tiered(1, 1);
    let free = || (guaranteed.available_permits(), shared.available_permits());

    let first = limit.acquire().await.unwrap();
    assert_eq!(free(), (1, 0), "shared first");
    let second = limit.acquire().await.unwrap();
    assert_eq!(free(), (0, 0), "then guaranteed");

    let third = tokio::spawn({
        let limit = limit.clone();
        async move { limit.acquire().await.unwrap() }
    });
    settle().await;
    assert!(!third.is_finished());
    drop(second);
    let third = third.await.unwrap();
    assert_eq!(free(), (0, 0), "the guaranteed one that came free");

    let fourth = tokio::spawn({
        let limit = limit.clone();
        async move { limit.acquire().await.unwrap() }
    });
    settle().await;
    drop(first);
    let fourth = fourth.await.unwrap();
    drop((third, fourth));
    assert_eq!(free(), (1, 1), "nothing leaks");
}

#[tokio::test(start_paused = true)]
async fn tiered_takes_the_shared_one_when_both_come_free_together() {
    let (limit, guaranteed, shared) = tiered(0, 0);
    let waiting = tokio::spawn(async move { limit.acquire().await.unwrap() });
    settle().await;
    guaranteed.add_permits(1);
    shared.add_permits(1);
    let permit = waiting.await.unwrap();
    assert_eq!((guaranteed.available_permits(), shared.available_permits()), (1, 0));
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn tiered_guarantees_progress_while_others_hold_every_shared_permit() {
    let (limit, _guaranteed, shared) = tiered(1, 2);
    let hogged = Arc::clone(&shared).acquire_many_owned(2).await.unwrap();
    let (diary, mut seen) = diary();
    let bulkhead = Bulkhead::new("tiered", BulkheadConfig { semaphore: limit, ..Default::default() });
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::proceed()) }
        }),
        |b| b.bulkhead(bulkhead),
    );
    worker.bell.notify_one();
    seen.after(100).await;
    worker.stop().await;
    drop(hogged);
}

/// Two kinds of workers, each with a guaranteed permit, share one more. Cancelled waits and hand-overs of all sorts
/// happen; in the end everybody has run and every permit is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiered_never_deadlocks() {
    const WORKERS: usize = 16;
    const RUNS: usize = 500;
    let shared = Arc::new(Semaphore::new(1));
    let kinds = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))];
    let running = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let limit = ConcurrencyLimit::Tiered {
                guaranteed: Arc::clone(&kinds[n % 2]),
                shared: Arc::clone(&shared),
            };
            let running = Arc::clone(&running);
            tokio::spawn(async move {
                for run in 0..RUNS {
                    if run % 7 == n % 7 {
                        // A wait that is given up must not take a permit with it.
                        tokio::select! {
                            biased;
                            permit = limit.acquire() => drop(permit),
                            () = tokio::task::yield_now() => {}
                        }
                    }
                    let permit = limit.acquire().await.unwrap();
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 3, "more executions than permits");
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(shared.available_permits(), 1);
    assert!(kinds.iter().all(|kind| kind.available_permits() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_for_the_execution_only() {
    let semaphore = Arc::new(Semaphore::new(1));
    let bulkhead = Bulkhead::new(
        "fixed",
        BulkheadConfig { semaphore: ConcurrencyLimit::Fixed(Arc::clone(&semaphore)), ..Default::default() },
    );
    let during = Arc::clone(&semaphore);
    let worker = start(
        script(move |_| {
            let free = during.available_permits();
            async move {
                assert_eq!(free, 0);
                Ok(Directive::sleep(secs(10)))
            }
        }),
        |b| b.bulkhead(bulkhead),
    );
    worker.bell.notify_one();
    settle().await;
    assert_eq!(semaphore.available_permits(), 1);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_semaphore_is_an_error_with_back_off_and_not_the_end() {
    let semaphore = Arc::new(Semaphore::new(1));
    semaphore.close();
    let limit = ConcurrencyLimit::Fixed(semaphore);
    assert_eq!(limit.acquire().await.unwrap_err(), LimitClosed);

    let bulkhead = Bulkhead::new("closed", BulkheadConfig { semaphore: limit, ..Default::default() });
    let heard = Arc::new(Errors::default());
    let worker = start(script(|_| async { panic!("no permit, no execution") }), |b| {
        b.bulkhead(bulkhead).on_error(ErrorPolicy::Retry).listener(Arc::clone(&heard))
    });
    worker.bell.notify_one();
    tokio::time::sleep(secs(300)).await;
    worker.stop().await;
    let heard = heard.0.lock().unwrap();
    assert!(heard.len() > 10, "it tries again and again: {heard:?}");
    assert!(heard[0].contains("bulkhead \"closed\": the semaphore"), "{heard:?}");
}

#[derive(Default)]
struct Errors(Mutex<Vec<String>>);

impl WorkerListener<()> for Errors {
    fn on_error(&self, _: &str, error: &str, _: Duration, _: u32, _: Duration) {
        self.0.lock().expect("nobody panics while holding it").push(error.to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn tiered_does_without_a_semaphore_that_was_closed() {
    let (limit, guaranteed, shared) = tiered(1, 0);
    shared.close();
    let held = limit.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let limit = limit.clone();
        async move { limit.acquire().await.map(drop) }
    });
    settle().await;
    assert!(!waiting.is_finished(), "it waits for the guaranteed one");
    drop(held);
    waiting.await.unwrap().unwrap();
    guaranteed.close();
    assert_eq!(limit.acquire().await.unwrap_err(), LimitClosed);
}

#[test]
#[should_panic(expected = "ConcurrencyLimit: permits must not be zero")]
fn a_limit_that_nobody_can_pass_is_refused() {
    let _refused = ConcurrencyLimit::fixed(0);
}
