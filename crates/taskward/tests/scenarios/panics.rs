use std::{sync::Arc, time::Duration};

use taskward::{BackoffConfig, Bulkhead, BulkheadConfig, Directive, ErrorPolicy, PanicPolicy};
use tokio::sync::Semaphore;

use crate::stage::{Outcome, diary, script, secs, start};

fn bulkhead(permits: &Arc<Semaphore>) -> Bulkhead {
    Bulkhead::new(
        "bulkhead",
        BulkheadConfig {
            semaphore: taskward::ConcurrencyLimit::Fixed(Arc::clone(permits)),
            backoff: BackoffConfig { initial: secs(1), max: secs(30), multiplier: 2.0, jitter: 0.0 },
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_panicking_worker_recovers_and_does_not_hurt_its_sibling() {
    let permits = Arc::new(Semaphore::new(1));
    let (diary, mut seen) = diary();
    let (sibling_diary, mut sibling_seen) = crate::stage::diary();
    let faulty = start(
        script(move |n| {
            diary.note();
            async move {
                if n <= 2 {
                    panic!("number {n}");
                }
                Ok(Directive::sleep(secs(10)))
            }
        }),
        |b| b.bulkhead(bulkhead(&permits)).on_panic(PanicPolicy::CatchAndRetry).on_error(ErrorPolicy::Retry),
    );
    let sibling = start(
        script(move |_| {
            sibling_diary.note();
            async { Ok(Directive::sleep(Duration::from_millis(500))) }
        }),
        |b| b.bulkhead(bulkhead(&permits)),
    );
    faulty.bell.notify_one();
    sibling.bell.notify_one();
    assert_eq!(seen.after(4).await, [0, 1, 3, 13].map(secs), "back-off 1 s, 2 s, then its own rhythm");
    let beats = sibling_seen.after(20).await;
    assert!(beats.windows(2).all(|pair| pair[1] - pair[0] == Duration::from_millis(500)), "{beats:?}");
    faulty.stop().await;
    sibling.stop().await;
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_is_caught_too() {
    fn at_once(n: u32) -> std::future::Ready<Outcome> {
        assert!(n > 1, "before there is a future");
        std::future::ready(Ok(Directive::idle()))
    }
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            at_once(n)
        }),
        |b| b.on_panic(PanicPolicy::CatchAndRetry).on_error(ErrorPolicy::Retry),
    );
    worker.bell.notify_one();
    seen.after(2).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_propagates_by_default_and_gives_its_permit_back() {
    let permits = Arc::new(Semaphore::new(1));
    let worker = start(script(|_| async { panic!("as it is") }), |b| b.bulkhead(bulkhead(&permits)));
    worker.bell.notify_one();
    let panic = worker.task.await.unwrap_err().into_panic();
    assert_eq!(taskward::panic_text(&*panic), "as it is");
    assert_eq!(permits.available_permits(), 1);
}

#[test]
fn the_text_of_a_panic_is_found_whatever_its_kind() {
    let text = |f: fn()| taskward::panic_text(&*std::panic::catch_unwind(f).unwrap_err());
    assert_eq!(text(|| panic!("static")), "static");
    assert_eq!(text(|| panic!("formatted {}", 1)), "formatted 1");
    assert_eq!(text(|| std::panic::panic_any(7)), "panic with a payload that is not text");
}

/// Panics where an action is least expected to: in its error's text, and in a destructor.
struct Treacherous(u32);

struct BadText;

impl std::fmt::Display for BadText {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("in the text of an error");
    }
}

struct BadDrop;

impl Drop for BadDrop {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

impl taskward::WorkerAction for Treacherous {
    type Payload = ();
    type Error = BadText;

    async fn execute(&mut self, _cancel: &taskward::CancellationToken) -> Result<Directive, BadText> {
        self.0 += 1;
        match self.0 {
            1 => Err(BadText),
            2 => {
                let _bad = BadDrop;
                tokio::task::yield_now().await;
                Ok(Directive::proceed())
            }
            _ => Ok(Directive::idle()),
        }
    }
}

#[derive(Default)]
struct Completions(std::sync::atomic::AtomicU32);

impl taskward::WorkerListener<()> for Completions {
    fn on_complete(&self, _: &str, _: &Directive, _: Duration) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_errors_text_or_in_a_destructor_is_caught_too() {
    let completions = Arc::new(Completions::default());
    let worker = start(Treacherous(0), |b| {
        b.on_panic(PanicPolicy::CatchAndRetry).on_error(ErrorPolicy::Retry).listener(Arc::clone(&completions))
    });
    worker.bell.notify_one();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(completions.0.load(std::sync::atomic::Ordering::SeqCst), 1);
    worker.stop().await;
}
