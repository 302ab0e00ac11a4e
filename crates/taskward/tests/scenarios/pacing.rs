use taskward::{Directive, PacingConfig};

use crate::stage::{diary, millis, script, secs, settle, start};

const PACING: PacingConfig =
    PacingConfig { min_interval: millis(200), active_interval: millis(500), ramp_step: millis(100) };

#[tokio::test(start_paused = true)]
async fn proceed_speeds_up_from_active_to_min_and_idle_resets_it() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            async move { Ok(if n == 6 { Directive::idle() } else { Directive::proceed() }) }
        }),
        |b| b.pacing(PACING),
    );
    worker.bell.notify_one();
    let times = seen.after(6).await;
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [500, 400, 300, 200, 200].map(millis));

    worker.bell.notify_one();
    let times = seen.after(2).await;
    assert_eq!(times[7] - times[6], millis(500), "the pace starts over after Idle");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_does_not_hurry_a_worker_that_proceeds() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            async move { Ok(if n == 1 { Directive::proceed() } else { Directive::idle() }) }
        }),
        |b| b.pacing(PACING),
    );
    worker.bell.notify_one();
    seen.after(1).await;
    worker.bell.notify_one();
    let times = seen.after(1).await;
    assert_eq!(times[1] - times[0], millis(500));

    // The notification during the pause was answered by the execution after it.
    tokio::time::sleep(secs(60)).await;
    assert_eq!(seen.so_far().len(), 2);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pace_of_zero_leaves_room_for_other_tasks() {
    let none = PacingConfig { min_interval: millis(0), active_interval: millis(0), ramp_step: millis(0) };
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::proceed()) }
        }),
        |b| b.pacing(none),
    );
    worker.bell.notify_one();
    // On a single thread this line is reached only because the worker lets go of it.
    seen.after(10).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_vacuum_schedules_itself_by_sleep() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::sleep(secs(3600))) }
        }),
        |b| b,
    );
    worker.bell.notify_one();
    let times = seen.after(4).await;
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [3600, 3600, 3600].map(secs));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_starts_idle() {
    let (diary, seen) = diary();
    let worker = start(
        script(move |_| {
            diary.note();
            async { Ok(Directive::idle()) }
        }),
        |b| b,
    );
    tokio::time::sleep(secs(86_400)).await;
    assert!(seen.so_far().is_empty());
    worker.bell.notify_one();
    settle().await;
    assert_eq!(seen.so_far().len(), 1);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sleep_keeps_the_pace() {
    let (diary, mut seen) = diary();
    let worker = start(
        script(move |n| {
            diary.note();
            async move { Ok(if n == 3 { Directive::sleep(secs(7)) } else { Directive::proceed() }) }
        }),
        |b| b.pacing(PACING),
    );
    worker.bell.notify_one();
    let times = seen.after(5).await;
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [500, 400, 7000, 300].map(millis));
    worker.stop().await;
}
