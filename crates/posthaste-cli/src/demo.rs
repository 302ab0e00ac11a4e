//! `posthaste demo`: the worker runtime at work. It has the name of what it will become, the outbox at work.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use taskward::{
    Bulkhead, BulkheadConfig, CancellationToken, Directive, ErrorPolicy, PacingConfig, PanicPolicy,
    TaskOutcome, TaskSet, WorkerAction, WorkerBuilder, WorkerListener,
};
use tokio::sync::{Notify, mpsc};

/// One of these fails, one panics: the worker has to get over both.
const FAILS: u32 = 4;
const PANICS: u32 = 8;

#[derive(Args)]
pub struct DemoOptions {
    /// How many times the worker ticks
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    ticks: u32,
}

/// Counts to `last` and says so.
struct Ticker {
    tries: u32,
    ticks: Arc<AtomicU32>,
    last: u32,
    done: Arc<Notify>,
}

impl WorkerAction for Ticker {
    type Payload = u32;
    type Error = &'static str;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive<u32>, &'static str> {
        self.tries += 1;
        match self.tries {
            FAILS => return Err("an error, on purpose"),
            PANICS => panic!("a panic, on purpose"),
            _ => {}
        }
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        if tick < self.last {
            return Ok(Directive::Proceed(tick));
        }
        self.done.notify_one();
        Ok(Directive::Idle(tick))
    }
}

/// Hands on what happens, to be printed elsewhere.
struct Narrator {
    began: Instant,
    lines: mpsc::UnboundedSender<String>,
}

impl Narrator {
    fn say(&self, what: &str) {
        self.lines.send(format!("{:>6} ms  {what}", self.began.elapsed().as_millis())).ok();
    }
}

impl WorkerListener<u32> for Narrator {
    fn on_start(&self, worker: &str) {
        self.say(&format!("{worker}: started"));
    }
    fn on_stop(&self, worker: &str) {
        self.say(&format!("{worker}: stopped"));
    }
    fn on_idle(&self, worker: &str) {
        self.say(&format!("{worker}: idle, until somebody rings"));
    }
    fn on_complete(&self, worker: &str, directive: &Directive<u32>, _took: Duration) {
        self.say(&format!("{worker}: tick {}", directive.payload()));
    }
    fn on_error(&self, worker: &str, error: &str, _took: Duration, _failures: u32, backoff: Duration) {
        self.say(&format!("{worker}: {error}; back in {} ms", backoff.as_millis()));
    }
}

pub async fn run(options: DemoOptions) -> ExitCode {
    // The one panic is told as part of the story.
    std::panic::set_hook(Box::new(|_| {}));
    let cancel = CancellationToken::new();
    let (bell, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let ticks = Arc::new(AtomicU32::new(0));
    let (lines, mut story) = mpsc::unbounded_channel();

    let worker = WorkerBuilder::new("ticker", cancel.clone())
        .notifier(Arc::clone(&bell))
        .pacing(PacingConfig {
            min_interval: Duration::from_millis(50),
            active_interval: Duration::from_millis(300),
            ramp_step: Duration::from_millis(50),
        })
        .bulkhead(Bulkhead::new("ticker", BulkheadConfig::default()))
        .on_error(ErrorPolicy::Retry)
        .on_panic(PanicPolicy::CatchAndRetry)
        .listener(Narrator { began: Instant::now(), lines })
        .build(Ticker { tries: 0, ticks: Arc::clone(&ticks), last: options.ticks, done: Arc::clone(&done) });
    let mut tasks = TaskSet::new(cancel);
    tasks.spawn("ticker", worker.run());
    bell.notify_one();

    // A reader that went away ends the demo, as Ctrl-C does.
    let listened = AtomicBool::new(true);
    let print = |line: String| {
        if writeln!(io::stdout(), "{line}").is_err() {
            listened.store(false, Ordering::Relaxed);
        }
        listened.load(Ordering::Relaxed)
    };
    let mut ctrl_c = std::pin::pin!(tokio::signal::ctrl_c());
    let interrupted = loop {
        tokio::select! {
            biased;
            Some(line) = story.recv() => if !print(line) { break true },
            _ = &mut ctrl_c => break true,
            () = done.notified() => break false,
        }
    };
    let report = tasks.shutdown_within(Duration::from_secs(1)).await;
    while let Ok(line) = story.try_recv() {
        print(line);
    }
    let ticked = ticks.load(Ordering::Relaxed);
    let ended_well = report.iter().all(|task| task.outcome == TaskOutcome::Finished);
    print(format!(
        "{ticked} of {} ticks; the worker {}",
        options.ticks,
        if ended_well { "ended well" } else { "did not end" }
    ));
    ExitCode::from(u8::from(interrupted || !ended_well || ticked != options.ticks))
}
