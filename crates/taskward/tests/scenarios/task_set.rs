use std::time::Duration;

use taskward::{ABORT_PATIENCE, CancellationToken, TaskOutcome, TaskReport, TaskSet};
use tokio::time::Instant;

use crate::stage::{hours, secs, settle};

fn report(name: &str, outcome: TaskOutcome) -> TaskReport {
    TaskReport { name: name.to_owned(), outcome }
}

/// One task of each kind that ends when it is told to, or before.
fn cooperative(cancel: &CancellationToken) -> TaskSet {
    let mut tasks = TaskSet::new(cancel.clone());
    let token = cancel.clone();
    tasks.spawn("slow", async move {
        token.cancelled().await;
        tokio::time::sleep(secs(3)).await;
    });
    tasks.spawn("early", async {});
    tasks.spawn("faulty", async { panic!("as usual") });
    tasks
}

#[tokio::test(start_paused = true)]
async fn shutdown_cancels_joins_and_reports_each_task_by_name() {
    let cancel = CancellationToken::new();
    let tasks = cooperative(&cancel);
    settle().await;
    let asked = Instant::now();
    let reports = tasks.shutdown().await;
    assert!(cancel.is_cancelled());
    assert_eq!(asked.elapsed(), secs(3));
    assert_eq!(
        reports,
        [
            report("slow", TaskOutcome::Finished),
            report("early", TaskOutcome::Finished),
            report("faulty", TaskOutcome::Panicked("as usual".to_owned())),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_within_aborts_what_is_left_after_the_grace_period() {
    let cancel = CancellationToken::new();
    let mut tasks = cooperative(&cancel);
    tasks.spawn("deaf", std::future::pending());
    tasks.spawn("deaf too", tokio::time::sleep(hours(1)));
    let asked = Instant::now();
    let reports = tasks.shutdown_within(secs(10)).await;
    assert_eq!(asked.elapsed(), secs(10));
    assert_eq!(reports[0], report("slow", TaskOutcome::Finished));
    assert_eq!(
        reports[3..],
        [report("deaf", TaskOutcome::Aborted), report("deaf too", TaskOutcome::Aborted)]
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_within_takes_no_longer_than_the_tasks() {
    for grace in [hours(1), Duration::MAX] {
        let asked = Instant::now();
        let reports = cooperative(&CancellationToken::new()).shutdown_within(grace).await;
        assert_eq!(asked.elapsed(), secs(3));
        assert_eq!(reports[0], report("slow", TaskOutcome::Finished));
    }
}

/// In real time: a blocked thread is the one thing that virtual time cannot show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_within_returns_although_a_task_blocks_its_thread() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let mut tasks = TaskSet::new(CancellationToken::new());
    tasks.spawn("blocked", async move {
        begin.send(()).unwrap();
        blocked.recv().ok();
    });
    begun.await.unwrap();
    let asked = Instant::now();
    let reports = tasks.shutdown_within(Duration::from_millis(50)).await;
    assert_eq!(reports, [report("blocked", TaskOutcome::Stuck)]);
    assert!(asked.elapsed() >= Duration::from_millis(50) + ABORT_PATIENCE);
    drop(release);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_set_cancels_its_tasks() {
    let cancel = CancellationToken::new();
    let mut tasks = TaskSet::new(cancel.clone());
    let (ended, end) = tokio::sync::oneshot::channel();
    let token = cancel.clone();
    tasks.spawn("task", async move {
        token.cancelled().await;
        ended.send(()).unwrap();
    });
    drop(tasks);
    end.await.expect("it ends by itself, it is not aborted");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_running_until_it_ends() {
    let cancel = CancellationToken::new();
    let tasks = cooperative(&cancel);
    assert!(["slow", "early", "faulty"].iter().all(|name| tasks.is_running(name)));
    settle().await;
    assert!(tasks.is_running("slow"));
    assert!(!tasks.is_running("early") && !tasks.is_running("faulty") && !tasks.is_running("unknown"));
    tasks.shutdown().await;
}
