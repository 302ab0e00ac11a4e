use taskward::{BackoffConfig, Bulkhead, BulkheadConfig, Directive, ErrorPolicy, PacingConfig};

use crate::stage::{diary, hours, millis, script, secs, start};

fn bulkhead() -> Bulkhead {
    let backoff = BackoffConfig { initial: secs(1), max: secs(30), multiplier: 2.0, jitter: 0.0 };
    Bulkhead::new("bulkhead", BulkheadConfig { backoff, ..Default::default() })
}

#[tokio::test(start_paused = true)]
async fn back_off_is_1_2_4_s_and_a_success_resets_it() {
    let pacing = PacingConfig { min_interval: secs(100), active_interval: secs(100), ramp_step: secs(0) };
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            async move { if n == 4 { Ok(Directive::proceed()) } else { Err(format!("failure {n}")) } }
        }),
        |b| b.bulkhead(bulkhead()).pacing(pacing).on_error(ErrorPolicy::Retry),
    );
    worker.bell.notify_one();
    let times = seen.after(7).await;
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [1, 2, 4, 100, 1, 2].map(secs));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_the_back_off_a_worker_is_idle_by_default() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Err("always".to_owned()) }
        }),
        |b| b.bulkhead(bulkhead()),
    );
    worker.bell.notify_one();
    seen.after(1).await;
    tokio::time::sleep(hours(1)).await;
    assert_eq!(seen.so_far().len(), 1);
    worker.bell.notify_one();
    assert_eq!(seen.after(1).await.len(), 2);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_during_the_back_off_is_kept_and_does_not_cut_it_short() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Err("always".to_owned()) }
        }),
        |b| b.bulkhead(bulkhead()),
    );
    worker.bell.notify_one();
    seen.after(1).await;
    tokio::time::sleep(millis(300)).await;
    worker.bell.notify_one();
    assert_eq!(seen.after(1).await, [0, 1].map(secs));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_failures_later_the_worker_still_tries_every_30_s() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Err("always".to_owned()) }
        }),
        |b| b.bulkhead(bulkhead()).on_error(ErrorPolicy::Retry),
    );
    worker.bell.notify_one();
    let times = seen.after(10_001).await;
    assert_eq!(times[10_000] - times[9_999], secs(30));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_resets_the_pace() {
    let pacing = PacingConfig { min_interval: secs(2), active_interval: secs(10), ramp_step: secs(8) };
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            async move { if n == 3 { Err("once".to_owned()) } else { Ok(Directive::proceed()) } }
        }),
        |b| b.bulkhead(bulkhead()).pacing(pacing).on_error(ErrorPolicy::Retry),
    );
    worker.bell.notify_one();
    let times = seen.after(5).await;
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [10, 2, 1, 10].map(secs));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_failed_together_do_not_return_together() {
    let (diary, mut seen) = diary();
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let diary = diary.clone();
            let action = script(move |n| {
                if n == 2 {
                    diary.note();
                }
                async { Err("always".to_owned()) }
            });
            let backoff =
                BackoffConfig { initial: secs(1000), max: secs(1000), multiplier: 1.0, jitter: 0.3 };
            let bulkhead = Bulkhead::new("bulkhead", BulkheadConfig { backoff, ..Default::default() });
            let worker = start(action, |b| b.bulkhead(bulkhead).on_error(ErrorPolicy::Retry));
            worker.bell.notify_one();
            worker
        })
        .collect();
    let mut times = seen.after(10).await;
    assert!(times.iter().all(|time| (secs(700)..=secs(1001)).contains(time)), "{times:?}");
    times.dedup();
    assert!(times.len() > 5, "{times:?}");
    for worker in workers {
        worker.stop().await;
    }
}
