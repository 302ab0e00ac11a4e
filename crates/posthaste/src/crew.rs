//! The workers of one process: hired together, stopped together.

use std::{sync::Arc, time::Duration};

use taskward::{
    BackoffConfig, Bulkhead, BulkheadConfig, CancellationToken, ConcurrencyLimit, ErrorPolicy, PanicPolicy,
    TaskOutcome, TaskSet, TracingListener, WorkerAction, WorkerBuilder, poker,
};
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use crate::{
    Health, OutboxError, OutboxProfile, OutboxStats, WorkerId, WorkerTuning,
    clock::Clock,
    monitor::{Busy, Monitor, Probe, Watch},
    news,
    pauses::Pauses,
    processor::{ProcessedQueue, Processor, Shared},
    reconciler::Reconciler,
    sequencer::{OpenTransactions, Sequencer},
    stats::{Counter, Counters},
    store::{NewsChannel, Store},
    telemetry::SequencerMetrics,
    vacuum::{Vacuum, Waste},
    wake::Wake,
};

/// The name of the task that the sequencer is.
const SEQUENCER: &str = "sequencer";

/// What workers are hired for, and how many at once.
pub(crate) struct Terms<S: Store> {
    pub(crate) store: S,
    pub(crate) channel: NewsChannel,
    pub(crate) queues: Vec<Arc<ProcessedQueue<S>>>,
    pub(crate) tunings: OutboxProfile,
    pub(crate) processors: usize,
    pub(crate) guaranteed_maintenance: usize,
    pub(crate) shared_maintenance: usize,
    pub(crate) max_inner_iterations: u32,
    pub(crate) stats_interval: Duration,
    pub(crate) grace: Duration,
}

pub(crate) struct Crew<S> {
    store: S,
    wake: Wake,
    counters: Counters,
    pauses: Pauses,
    probe: Probe,
    worker_id: WorkerId,
    tasks: TaskSet,
    cancel: CancellationToken,
    out_of_grace: CancellationToken,
    grace: Duration,
}

impl<S: Store> Crew<S> {
    /// Hires everybody and sets them to work.
    pub(crate) fn hire(terms: &Terms<S>) -> Self {
        let Terms { store, channel, queues, tunings, .. } = terms;
        let (cancel, counters) = (CancellationToken::new(), Counters::new(store.timings()));
        let waste = Waste::new(&tunings.vacuum, store.timings().vacuum_linger);
        let shared = Shared {
            store: store.clone(),
            waste: waste.clone(),
            owner: Uuid::new_v4(),
            out_of_grace: CancellationToken::new(),
            outage: counters.outage.clone(),
            pauses: Pauses::new(store.timings().pause_belief),
            clock: Clock::default(),
            busy: Busy::default(),
        };
        let wake = Wake::new(queues.iter().flat_map(|of| of.queue.partition_ids.iter().copied()));
        let worker_id = WorkerId(shared.owner);
        let monitor = Monitor::new(&shared, Watch::new(worker_id, wake.partition_ids(), store.timings()));
        let mut crew = Self {
            store: store.clone(),
            probe: monitor.probe(),
            wake,
            counters,
            pauses: shared.pauses.clone(),
            worker_id,
            tasks: TaskSet::new(cancel.clone()),
            cancel,
            out_of_grace: shared.out_of_grace.clone(),
            grace: terms.grace,
        };
        crew.hire_maintenance(terms, &shared);
        crew.hire_reconciler(&tunings.reconciler, &shared);
        crew.hire_processors(queues, terms.processors, &shared);
        // A processor that nobody wakes is looked after by the reconciler, which asks for all of them at once.
        crew.ring_every(tunings.sequencer.idle_interval, crew.wake.sequencer_bell());
        let idle = tunings.reconciler.idle_interval.min(tunings.processor.idle_interval);
        crew.ring_every(idle, crew.wake.reconciler_bell());

        let (store, channel, wake, cancel) =
            (store.clone(), *channel, crew.wake.clone(), crew.cancel.clone());
        let outage = shared.outage.clone();
        crew.tasks.spawn("news", async move { news::carry(&store, channel, &wake, &outage, &cancel).await });
        crew.tasks.spawn("monitor", monitor.run(crew.cancel.clone()));
        if !terms.stats_interval.is_zero() {
            let log = crew.counters.clone().log_every(terms.stats_interval, crew.cancel.clone());
            crew.tasks.spawn("statistics", log);
        }
        tracing::info!(%worker_id, "the workers of the outbox begin");
        // What was there before us.
        crew.wake.begin();
        waste.bell().notify_one();
        crew
    }

    /// The sequencer and the vacuum.
    fn hire_maintenance(&mut self, terms: &Terms<S>, shared: &Shared<S>) {
        let permits = Arc::new(Semaphore::new(terms.shared_maintenance));
        let guaranteed = Arc::new(Semaphore::new(terms.guaranteed_maintenance));
        let sequencer = Sequencer {
            store: self.store.clone(),
            wake: self.wake.clone(),
            waste: shared.waste.clone(),
            tuning: terms.tunings.sequencer,
            max_inner_iterations: terms.max_inner_iterations,
            channel: terms.channel,
            outage: shared.outage.clone(),
            open: OpenTransactions::new(self.store.timings().open_for_long),
            busy_since: None,
            last_find: None,
            metrics: SequencerMetrics::default(),
        };
        let post = Post {
            name: SEQUENCER,
            tuning: &terms.tunings.sequencer,
            limit: ConcurrencyLimit::Tiered { guaranteed, shared: Arc::clone(&permits) },
            counter: Arc::clone(&self.counters.sequencer),
            bell: self.wake.sequencer_bell(),
        };
        self.fill(post, sequencer);

        let tuning = terms.tunings.vacuum;
        let (waste, outage) = (shared.waste.clone(), shared.outage.clone());
        let vacuum = Vacuum::new(self.store.clone(), waste, tuning, outage, self.wake.partition_ids());
        let post = Post {
            name: "vacuum",
            tuning: &tuning,
            limit: ConcurrencyLimit::Fixed(permits),
            counter: Arc::clone(&self.counters.vacuum),
            bell: shared.waste.bell(),
        };
        self.fill(post, vacuum);
    }

    fn hire_reconciler(&mut self, tuning: &WorkerTuning, shared: &Shared<S>) {
        let reconciler = Reconciler {
            store: self.store.clone(),
            wake: self.wake.clone(),
            partition_ids: self.wake.partition_ids(),
            owner: shared.owner,
            outage: shared.outage.clone(),
            stray_interval: tuning.idle_interval,
            last_look: None,
            after_id: 0,
            start_id: 0,
            is_at_start: true,
        };
        let post = Post {
            name: "reconciler",
            tuning,
            limit: ConcurrencyLimit::Unlimited,
            counter: Arc::clone(&self.counters.reconciler),
            bell: self.wake.reconciler_bell(),
        };
        self.fill(post, reconciler);
    }

    /// One a partition; so many of them work at once.
    fn hire_processors(&mut self, queues: &[Arc<ProcessedQueue<S>>], most: usize, shared: &Shared<S>) {
        let limit = ConcurrencyLimit::fixed(most);
        for of in queues {
            for (number, id) in of.queue.partition_ids.iter().enumerate() {
                let post = Post {
                    name: &format!("processor {}/{number}", of.queue.name),
                    tuning: &of.tuning,
                    limit: limit.clone(),
                    counter: Arc::clone(&self.counters.processor),
                    bell: self.wake.partition_bell(*id),
                };
                self.fill(post, Processor::new(Arc::clone(of), *id, shared.clone()));
            }
        }
    }

    fn fill<A: WorkerAction<Payload = u64, Error = OutboxError> + 'static>(
        &mut self,
        post: Post<'_>,
        action: A,
    ) {
        let Post { name, tuning, limit, counter, bell } = post;
        // Errors of the database, not of handlers: nothing relies on a longer timer.
        let backoff = tuning.backoff();
        let max = backoff.max.min(self.store.timings().beat);
        let backoff = BackoffConfig { initial: backoff.initial.min(max), max, ..backoff };
        let worker = WorkerBuilder::new(name, self.cancel.clone())
            .pacing(*tuning)
            .bulkhead(Bulkhead::new(name, BulkheadConfig { semaphore: limit, backoff }))
            .on_error(ErrorPolicy::Retry)
            .on_panic(PanicPolicy::CatchAndRetry)
            .listener(TracingListener)
            .listener(counter)
            .notifier(bell);
        self.tasks.spawn(name, worker.build(action).run());
    }

    /// Rings a bell at an interval, in case nobody else does.
    fn ring_every(&mut self, interval: Duration, bell: Arc<Notify>) {
        let (poke, _ends_when_cancelled) = poker(interval.max(Duration::from_millis(1)), self.cancel.clone());
        let cancel = self.cancel.clone();
        self.tasks.spawn("poker", async move {
            while cancel.run_until_cancelled(poke.notified()).await.is_some() {
                bell.notify_one();
            }
        });
    }

    pub(crate) fn wake(&self) -> Wake {
        self.wake.clone()
    }

    pub(crate) fn pauses(&self) -> Pauses {
        self.pauses.clone()
    }

    pub(crate) fn stats(&self) -> OutboxStats {
        self.counters.read()
    }

    pub(crate) const fn worker_id(&self) -> WorkerId {
        self.worker_id
    }

    pub(crate) fn health(&self) -> impl Future<Output = Health> + Send + use<S> {
        self.probe.clone().health(self.tasks.is_running(SEQUENCER))
    }

    /// Handlers get the grace period; then they are dropped and all leases released.
    pub(crate) async fn stop(self) {
        let Self { store, tasks, out_of_grace, grace, .. } = self;
        let deadline = tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            out_of_grace.cancel();
        });
        let limit = grace.saturating_add(store.timings().release);
        for task in tasks.shutdown_within(limit).await {
            match task.outcome {
                TaskOutcome::Finished => {}
                outcome => {
                    tracing::warn!(task = task.name, ?outcome, "a task of the outbox did not end by itself");
                }
            }
        }
        deadline.abort();
        store.close().await;
    }
}

/// A place for a worker.
struct Post<'p> {
    name: &'p str,
    tuning: &'p WorkerTuning,
    limit: ConcurrencyLimit,
    counter: Arc<Counter>,
    bell: Arc<Notify>,
}
