use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use taskward::{
    BackoffConfig, Bulkhead, BulkheadConfig, CancellationToken, Directive, PanicPolicy, TracingListener,
    WorkerAction, WorkerBuilder, WorkerListener,
};
use tokio::sync::Notify;

use crate::stage::{Outcome, millis, script, secs, settle, start};

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, entry: String) {
        self.0.lock().expect("nobody panics while holding it").push(entry);
    }
}

impl<P: std::fmt::Debug> WorkerListener<P> for Recorder {
    fn on_start(&self, worker: &str) {
        self.note(format!("{worker}: start"));
    }
    fn on_stop(&self, worker: &str) {
        self.note(format!("{worker}: stop"));
    }
    fn on_execute_start(&self, worker: &str) {
        self.note(format!("{worker}: execute"));
    }
    fn on_complete(&self, worker: &str, directive: &Directive<P>, took: Duration) {
        self.note(format!("{worker}: complete {directive:?} in {took:?}"));
    }
    fn on_error(&self, worker: &str, error: &str, took: Duration, failures: u32, backoff: Duration) {
        self.note(format!("{worker}: error {error:?} in {took:?}, {failures} so far, back in {backoff:?}"));
    }
    fn on_idle(&self, worker: &str) {
        self.note(format!("{worker}: idle"));
    }
    fn on_sleep(&self, worker: &str, duration: Duration) {
        self.note(format!("{worker}: sleep {duration:?}"));
    }
}

/// Returns what it is told to, with the number of the execution as payload.
struct Counting(u32);

impl WorkerAction for Counting {
    type Payload = u32;
    type Error = String;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive<u32>, String> {
        self.0 += 1;
        tokio::time::sleep(millis(250)).await;
        match self.0 {
            1 => Ok(Directive::Proceed(1)),
            2 => Ok(Directive::Sleep(secs(2), 2)),
            3 => Err("no luck".to_owned()),
            4 => panic!("bad luck"),
            n => Ok(Directive::Idle(n)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_hears_everything_in_order() {
    let heard = Arc::new(Recorder::default());
    let (cancel, bell) = (CancellationToken::new(), Arc::new(Notify::new()));
    let backoff = BackoffConfig { initial: secs(1), jitter: 0.0, ..BackoffConfig::default() };
    let task = tokio::spawn(
        WorkerBuilder::new("w", cancel.clone())
            .notifier(Arc::clone(&bell))
            .listener(Arc::clone(&heard))
            .listener(TracingListener)
            .bulkhead(Bulkhead::new("b", BulkheadConfig { backoff, ..Default::default() }))
            .on_panic(PanicPolicy::CatchAndRetry)
            .build(Counting(0))
            .run(),
    );
    for _ in 0..3 {
        bell.notify_one();
        tokio::time::sleep(secs(60)).await;
    }
    cancel.cancel();
    task.await.unwrap();
    assert_eq!(
        *heard.0.lock().unwrap(),
        [
            "w: start",
            "w: idle",
            "w: execute",
            "w: complete Proceed(1) in 250ms",
            "w: execute",
            "w: complete Sleep(2s, 2) in 250ms",
            "w: sleep 2s",
            "w: execute",
            "w: error \"no luck\" in 250ms, 1 so far, back in 1s",
            "w: idle",
            "w: execute",
            "w: error \"bad luck\" in 250ms, 2 so far, back in 2s",
            "w: idle",
            "w: execute",
            "w: complete Idle(5) in 250ms",
            "w: idle",
            "w: stop",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_with_a_panic_says_so_first() {
    let heard = Arc::new(Recorder::default());
    let worker = start(script(|_| async { panic!("the end") }), |b| b.listener(Arc::clone(&heard)));
    worker.bell.notify_one();
    assert!(worker.task.await.unwrap_err().is_panic());
    let heard = heard.0.lock().unwrap();
    assert!(heard[3].contains("error \"the end\""), "{heard:?}");
    assert_eq!(heard[4], "worker: stop");
}

struct Clumsy;

impl WorkerListener<()> for Clumsy {
    fn on_start(&self, _: &str) {
        panic!("start");
    }
    fn on_stop(&self, _: &str) {
        panic!("stop");
    }
    fn on_execute_start(&self, _: &str) {
        panic!("execute");
    }
    fn on_complete(&self, _: &str, _: &Directive, _: Duration) {
        panic!("complete");
    }
    fn on_error(&self, _: &str, _: &str, _: Duration, _: u32, _: Duration) {
        panic!("error");
    }
    fn on_idle(&self, _: &str) {
        panic!("idle");
    }
    fn on_sleep(&self, _: &str, _: Duration) {
        panic!("sleep");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_does_not_kill_the_worker_nor_silence_the_others() {
    fn act(n: u32) -> Outcome {
        match n {
            1 => Ok(Directive::sleep(secs(1))),
            2 => Err("an error".to_owned()),
            _ => Ok(Directive::idle()),
        }
    }
    let heard = Arc::new(Recorder::default());
    let worker =
        start(script(|n| async move { act(n) }), |b| b.listener(Clumsy).listener(Arc::clone(&heard)));
    for _ in 0..2 {
        worker.bell.notify_one();
        tokio::time::sleep(secs(60)).await;
    }
    settle().await;
    worker.stop().await;
    let heard = heard.0.lock().unwrap();
    assert_eq!(heard.len(), 12, "{heard:#?}");
    assert_eq!(heard[11], "worker: stop");
}

/// Collects what is written.
#[derive(Clone, Default)]
struct Ink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Ink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics while holding it").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_tracing_listener_warns_of_errors_and_traces_the_rest() {
    let ink = Ink::default();
    let paper = ink.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || paper.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let worker = start(
        script(|n| async move {
            match n {
                1 => Ok(Directive::proceed()),
                2 => Ok(Directive::sleep(secs(1))),
                _ => Err("no luck".to_owned()),
            }
        }),
        |b| b.listener(TracingListener),
    );
    worker.bell.notify_one();
    tokio::time::sleep(secs(60)).await;
    worker.stop().await;
    let text = String::from_utf8(ink.0.lock().unwrap().clone()).unwrap();
    for part in [
        "DEBUG taskward::listener: worker started worker=\"worker\"",
        "TRACE taskward::listener: worker executed worker=\"worker\" next=\"proceed\"",
        "TRACE taskward::listener: worker sleeps worker=\"worker\" duration=1s",
        "TRACE taskward::listener: worker idle",
        "WARN taskward::listener: worker failed worker=\"worker\" error=\"no luck\"",
        "DEBUG taskward::listener: worker stopped",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}
