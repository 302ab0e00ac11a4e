use std::sync::Arc;

use taskward::{Directive, WorkerBuilder, poker};
use tokio::sync::Notify;

use crate::stage::{diary, hours, millis, script, secs, settle, start};

#[tokio::test(start_paused = true)]
async fn a_worker_with_a_4_h_poke_that_overruns_executes_again_at_once() {
    let (diary, mut seen) = diary();
    let cancel = taskward::CancellationToken::new();
    let (poke, poker_task) = poker(hours(4), cancel.clone());
    let worker = start(
        script(move |n| {
            diary.note();
            async move {
                if n == 1 {
                    tokio::time::sleep(hours(9)).await; // two pokes come meanwhile
                }
                Ok(Directive::idle())
            }
        }),
        |b| b.notifier(poke),
    );
    let times = seen.after(3).await;
    assert_eq!(times, [4, 13, 16].map(hours), "once at once for both pokes, then with the beat");
    cancel.cancel();
    poker_task.await.unwrap();
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_notified_worker_does_not_wait_for_its_5_h_poker() {
    let (diary, mut seen) = diary();
    let cancel = taskward::CancellationToken::new();
    let (poke, _poker_task) = poker(hours(5), cancel.clone());
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b.notifier(poke),
    );
    tokio::time::sleep(secs(7)).await;
    worker.bell.notify_one();
    assert_eq!(seen.after(2).await, [secs(7), hours(5)]);
    cancel.cancel();
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn any_of_several_notifiers_wakes() {
    let bells: Vec<_> = (0..5).map(|_| Arc::new(Notify::new())).collect();
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| bells.iter().fold(b, |b, bell| b.notifier(Arc::clone(bell))),
    );
    for (n, bell) in bells.iter().enumerate() {
        bell.notify_one();
        assert_eq!(seen.after(1).await.len(), n + 1);
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_notifier_ends_a_sleep_early() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::sleep(hours(1))) }
        }),
        |b| b,
    );
    worker.bell.notify_one();
    seen.after(1).await;
    tokio::time::sleep(secs(5)).await;
    worker.bell.notify_one();
    assert_eq!(seen.after(2).await, [secs(0), secs(5), secs(5) + hours(1)]);
    worker.stop().await;
}

/// Both ways to notify, while the action runs.
async fn a_notifier_that_fires_while_the_action_runs_is_not_lost(fire: fn(&Notify)) {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async {
                tokio::time::sleep(secs(10)).await;
                Ok(Directive::idle())
            }
        }),
        |b| b,
    );
    worker.bell.notify_one();
    seen.after(1).await;
    tokio::time::sleep(secs(3)).await;
    fire(&worker.bell);
    assert_eq!(seen.after(1).await, [0, 10].map(secs));
    tokio::time::sleep(hours(1)).await;
    assert_eq!(seen.so_far().len(), 2, "and is answered once");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn notify_one_while_the_action_runs_is_not_lost() {
    a_notifier_that_fires_while_the_action_runs_is_not_lost(Notify::notify_one).await;
}

#[tokio::test(start_paused = true)]
async fn notify_waiters_while_the_action_runs_is_not_lost() {
    a_notifier_that_fires_while_the_action_runs_is_not_lost(Notify::notify_waiters).await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_before_the_first_poll_is_not_lost() {
    let (diary, mut seen) = diary();
    let cancel = taskward::CancellationToken::new();
    let bell = Arc::new(Notify::new());
    let worker =
        WorkerBuilder::new("worker", cancel.clone()).notifier(Arc::clone(&bell)).build(script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }));
    bell.notify_waiters();
    let task = tokio::spawn(worker.run());
    seen.after(1).await;
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn notifications_from_several_bells_before_an_execution_are_answered_by_it() {
    let other = Arc::new(Notify::new());
    let (diary, seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b.notifier(Arc::clone(&other)),
    );
    for bell in [&worker.bell, &other, &worker.bell] {
        bell.notify_one();
    }
    tokio::time::sleep(hours(1)).await;
    assert_eq!(seen.so_far().len(), 1);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_leaves_notify_one_to_its_idle_sibling() {
    let bell = Arc::new(Notify::new());
    let (diary, mut seen) = diary();
    let action = || {
        let diary = diary.clone();
        script(move |_| {
            diary.note();
            async {
                tokio::time::sleep(hours(1)).await;
                Ok(Directive::idle())
            }
        })
    };
    let workers = [0, 1].map(|_| start(action(), |b| b.notifier(Arc::clone(&bell))));
    settle().await;
    bell.notify_one();
    seen.after(1).await;
    tokio::time::sleep(secs(1)).await;
    bell.notify_one();
    let times = seen.after(1).await;
    assert!(times[1] < secs(2), "the sibling takes it at once, not the busy one in an hour: {times:?}");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn four_workers_share_two_permits_and_one_notifier() {
    let bell = Arc::new(Notify::new());
    let limit = taskward::ConcurrencyLimit::fixed(2);
    let (diary, mut seen) = diary();
    let workers: Vec<_> = (0..4)
        .map(|n| {
            let diary = diary.clone();
            let bulkhead = taskward::Bulkhead::new(
                format!("worker {n}"),
                taskward::BulkheadConfig { semaphore: limit.clone(), ..Default::default() },
            );
            let action = script(move |_| {
                diary.note();
                async {
                    tokio::time::sleep(secs(10)).await;
                    Ok(Directive::idle())
                }
            });
            start(action, |b| b.notifier(Arc::clone(&bell)).bulkhead(bulkhead))
        })
        .collect();
    settle().await;
    bell.notify_waiters();
    let times = seen.after(4).await;
    assert_eq!(times, [1, 1, 10_001, 10_001].map(millis), "two at a time, all four served");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test]
#[should_panic(expected = "poker: interval must not be zero")]
async fn a_poker_without_an_interval_is_refused() {
    let _refused = poker(secs(0), taskward::CancellationToken::new());
}

#[tokio::test(start_paused = true)]
async fn a_poker_with_an_endless_interval_never_pokes_and_can_be_cancelled() {
    let cancel = taskward::CancellationToken::new();
    let (_poke, task) = poker(std::time::Duration::MAX, cancel.clone());
    tokio::time::sleep(hours(1)).await;
    cancel.cancel();
    task.await.unwrap();
}

/// A bulkhead whose permits the test hands out.
fn gated() -> (Arc<tokio::sync::Semaphore>, taskward::Bulkhead) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let semaphore = taskward::ConcurrencyLimit::Fixed(Arc::clone(&gate));
    (gate, taskward::Bulkhead::new("gated", taskward::BulkheadConfig { semaphore, ..Default::default() }))
}

#[tokio::test(start_paused = true)]
async fn a_second_notification_while_the_worker_waits_for_its_permit_is_answered_by_the_same_execution() {
    let (gate, bulkhead) = gated();
    let (diary, seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b.bulkhead(bulkhead),
    );
    for _ in 0..2 {
        worker.bell.notify_one();
        settle().await;
    }
    gate.add_permits(1);
    tokio::time::sleep(hours(1)).await;
    assert_eq!(seen.so_far().len(), 1);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_cancelled_while_it_waits_for_its_permit_hands_its_wake_up_on() {
    let bell = Arc::new(Notify::new());
    let (diary, mut seen) = diary();
    let (_gate, bulkhead) = gated();
    let stuck = start(script(|_| async { Ok(Directive::idle()) }), |b| {
        b.notifier(Arc::clone(&bell)).bulkhead(bulkhead)
    });
    settle().await;
    bell.notify_one();
    settle().await;
    let sibling = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b.notifier(Arc::clone(&bell)),
    );
    settle().await;
    assert!(seen.so_far().is_empty());
    stuck.stop().await;
    seen.after(1).await;
    sibling.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_waits_for_its_permit_leaves_notify_one_to_its_idle_sibling() {
    let bell = Arc::new(Notify::new());
    let (diary, mut seen) = diary();
    let (_gate, bulkhead) = gated();
    let stuck = start(script(|_| async { Ok(Directive::idle()) }), |b| {
        b.notifier(Arc::clone(&bell)).bulkhead(bulkhead)
    });
    settle().await;
    // Woken by its own bell, so that the shared one is still listened to until it stands down.
    stuck.bell.notify_one();
    settle().await;
    let sibling = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b.notifier(Arc::clone(&bell)),
    );
    settle().await;
    bell.notify_one();
    seen.after(1).await;
    stuck.stop().await;
    sibling.stop().await;
}
