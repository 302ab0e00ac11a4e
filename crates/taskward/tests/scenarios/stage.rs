//! What the scenarios are played on.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use taskward::{CancellationToken, Directive, WorkerAction, WorkerBuilder};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::Instant,
};

pub type Outcome = Result<Directive, String>;

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

/// An action made of a closure that is given the number of the execution, from 1.
pub struct Script<F> {
    count: u32,
    run: F,
}

pub fn script<F, Fut>(run: F) -> Script<F>
where
    F: FnMut(u32) -> Fut + Send,
    Fut: Future<Output = Outcome> + Send,
{
    Script { count: 0, run }
}

impl<F, Fut> WorkerAction for Script<F>
where
    F: FnMut(u32) -> Fut + Send,
    Fut: Future<Output = Outcome> + Send,
{
    type Payload = ();
    type Error = String;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Outcome {
        self.count += 1;
        (self.run)(self.count).await
    }
}

/// When things happened, counted from the start of the scenario.
#[derive(Clone)]
pub struct Diary {
    start: Instant,
    entries: Arc<Mutex<Vec<Duration>>>,
    news: mpsc::UnboundedSender<()>,
}

pub struct DiaryReader {
    entries: Arc<Mutex<Vec<Duration>>>,
    news: mpsc::UnboundedReceiver<()>,
}

pub fn diary() -> (Diary, DiaryReader) {
    let entries = Arc::new(Mutex::new(Vec::new()));
    let (tx, news) = mpsc::unbounded_channel();
    (Diary { start: Instant::now(), entries: Arc::clone(&entries), news: tx }, DiaryReader { entries, news })
}

impl Diary {
    pub fn note(&self) {
        self.entries.lock().expect("nobody panics while holding it").push(self.start.elapsed());
        self.news.send(()).ok();
    }
}

impl DiaryReader {
    /// Waits for `n` more entries and returns all so far.
    pub async fn after(&mut self, n: usize) -> Vec<Duration> {
        for _ in 0..n {
            self.news.recv().await.expect("the worker is gone");
        }
        self.so_far()
    }

    pub fn so_far(&self) -> Vec<Duration> {
        self.entries.lock().expect("nobody panics while holding it").clone()
    }
}

/// A running worker with a bell of its own.
pub struct Running {
    pub cancel: CancellationToken,
    pub bell: Arc<Notify>,
    pub task: JoinHandle<()>,
}

impl Running {
    /// Cancels and waits; returns how long that took. A worker that has ended by itself is a failure.
    pub async fn stop(self) -> Duration {
        assert!(!self.task.is_finished(), "the worker ended before it was cancelled");
        let asked = Instant::now();
        self.cancel.cancel();
        self.task.await.expect("the worker ends well");
        asked.elapsed()
    }
}

/// Builds with what `configure` adds, and spawns.
pub fn start<A>(action: A, configure: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Running
where
    A: WorkerAction<Payload = ()> + 'static,
{
    let cancel = CancellationToken::new();
    let bell = Arc::new(Notify::new());
    let builder = WorkerBuilder::new("worker", cancel.clone()).notifier(Arc::clone(&bell));
    let task = tokio::spawn(configure(builder).build(action).run());
    Running { cancel, bell, task }
}

/// Lets every task that can run do so, without moving the clock far.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
