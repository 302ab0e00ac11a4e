//! Putting an outbox together.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sqlx::Pool;

use crate::{
    LeaseConfig, LeasedHandler, Outbox, OutboxError, OutboxHandle, OutboxProfile, Partitions,
    TransactionalHandler, TransactionalMessageHandler, WorkerTuning,
    crew::{Crew, Terms},
    limits::{
        DEFAULT_GRACE, DEFAULT_GUARANTEED_MAINTENANCE, DEFAULT_MAX_INNER_ITERATIONS, DEFAULT_MAX_PAYLOAD,
        DEFAULT_PROCESSORS, DEFAULT_SHARED_MAINTENANCE, DEFAULT_STATS_INTERVAL, MAX_LEASE_DURATION,
    },
    outbox::Bell,
    processor::{AnyLeasedHandler, AnyTransactionalHandler, EachMessage, Mode, ProcessedQueue, WholeBatch},
    queue::check_name,
    store::{Backend, Queue, Store, Tables},
    telemetry,
    timings::Timings,
};

/// The reconciler needs no permit: it looks after those who hold them.
const RECONCILER_CONNECTIONS: usize = 1;
/// Nor does the monitor, which looks whether they get on.
const MONITOR_CONNECTIONS: usize = 1;

/// Puts an outbox with workers together. Made by [`Outbox::builder`].
pub struct OutboxBuilder<DB: Backend> {
    pool: Pool<DB>,
    tables: Tables,
    migrates: bool,
    profile: OutboxProfile,
    sequencer: Option<WorkerTuning>,
    processor: Option<WorkerTuning>,
    vacuum: Option<WorkerTuning>,
    reconciler: Option<WorkerTuning>,
    processors: usize,
    guaranteed_maintenance: usize,
    shared_maintenance: usize,
    stats_interval: Duration,
    max_inner_iterations: u32,
    grace: Duration,
    max_payload: usize,
    handler_timeout: Option<Duration>,
    timings: Timings,
    queues: Vec<QueueConfig<DB>>,
}

struct QueueConfig<DB: Backend> {
    name: String,
    partitions: Partitions,
    handler: Handler<DB>,
    lease: Option<LeaseConfig>,
    handler_timeout: Option<Duration>,
    max_attempts: Option<u32>,
}

enum Handler<DB: Backend> {
    Leased(Arc<dyn AnyLeasedHandler>),
    Transactional(Arc<dyn AnyTransactionalHandler<DB>>),
}

impl<DB: Backend> OutboxBuilder<DB> {
    pub(crate) fn new(pool: Pool<DB>) -> Self {
        Self {
            pool,
            tables: Tables::default(),
            migrates: true,
            profile: OutboxProfile::default(),
            sequencer: None,
            processor: None,
            vacuum: None,
            reconciler: None,
            processors: DEFAULT_PROCESSORS,
            guaranteed_maintenance: DEFAULT_GUARANTEED_MAINTENANCE,
            shared_maintenance: DEFAULT_SHARED_MAINTENANCE,
            stats_interval: DEFAULT_STATS_INTERVAL,
            max_inner_iterations: DEFAULT_MAX_INNER_ITERATIONS,
            grace: DEFAULT_GRACE,
            max_payload: DEFAULT_MAX_PAYLOAD,
            handler_timeout: None,
            timings: Timings::default(),
            queues: Vec::new(),
        }
    }

    /// What every table's name begins with; default `posthaste_`.
    ///
    /// # Panics
    ///
    /// Unless it is 1 to 32 of `[a-z0-9_]`, not a digit first.
    #[must_use]
    pub fn table_prefix(mut self, prefix: &str) -> Self {
        self.tables = self.tables.prefix(prefix).unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// The PostgreSQL schema that the tables are in; default: the connection's current one.
    ///
    /// # Panics
    ///
    /// Unless it is 1 to 32 of `[a-z0-9_]`, not a digit first.
    #[must_use]
    pub fn schema(mut self, schema: &str) -> Self {
        self.tables = self.tables.schema(schema).unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// Where the tables are, as `migrate_with` and `connect_with` take it.
    #[must_use]
    pub fn tables(mut self, tables: Tables) -> Self {
        self.tables = tables;
        self
    }

    /// Whether to create or upgrade the tables at the start; default true.
    #[must_use]
    pub const fn migrate(mut self, migrates: bool) -> Self {
        self.migrates = migrates;
        self
    }

    /// Other intervals and waits than the promised ones, for the library's own tests.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub const fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// The tuning of all workers.
    #[must_use]
    pub const fn profile(mut self, profile: OutboxProfile) -> Self {
        self.profile = profile;
        self
    }

    /// The sequencer's tuning, whatever the profile says.
    #[must_use]
    pub const fn sequencer_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.sequencer = Some(tuning);
        self
    }

    /// The processors' tuning, whatever the profile says.
    #[must_use]
    pub const fn processor_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.processor = Some(tuning);
        self
    }

    /// The vacuum's tuning, whatever the profile says.
    #[must_use]
    pub const fn vacuum_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.vacuum = Some(tuning);
        self
    }

    /// The reconciler's tuning, whatever the profile says.
    #[must_use]
    pub const fn reconciler_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.reconciler = Some(tuning);
        self
    }

    /// How many processors run at once, in this process; default 4.
    ///
    /// The workers have connections of their own, besides the pool's: as many as processors and permits for
    /// [`maintenance`](Self::maintenance), one to reconcile and one to listen; and as many again as processors for transactional handlers,
    /// if there are any. They are opened when they are needed.
    #[must_use]
    pub const fn processors(mut self, most: usize) -> Self {
        self.processors = most;
        self
    }

    /// How many of the workers that look after the rest run at once: `guaranteed` permits are for the sequencer alone,
    /// `shared` ones for it and the vacuum; default 2 and 1. With no guaranteed permit they take turns.
    #[must_use]
    pub const fn maintenance(mut self, guaranteed: usize, shared: usize) -> Self {
        self.guaranteed_maintenance = guaranteed;
        self.shared_maintenance = shared;
        self
    }

    /// How often to log what the workers did; default 60 s, zero switches it off.
    #[must_use]
    pub const fn stats_interval(mut self, interval: Duration) -> Self {
        self.stats_interval = interval;
        self
    }

    /// How many ticks the sequencer does in one go before it yields; default 8.
    #[must_use]
    pub const fn max_inner_iterations(mut self, most: u32) -> Self {
        self.max_inner_iterations = most;
        self
    }

    /// How long [`OutboxHandle::stop`] waits for handlers; default 30 s.
    #[must_use]
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The largest payload in bytes; default 1 MiB.
    #[must_use]
    pub const fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// How long a transactional handler may take for one call; default: as long as its queue's lease, at most a week. Then
    /// it is dropped, what it wrote is undone, and its connection closed, which counts as a retry.
    ///
    /// A process that freezes in a handler keeps its partition for so long, or for its lease if that is longer, and a second.
    #[must_use]
    pub const fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Adds a queue; the next call says how it is handled.
    #[must_use]
    pub fn queue(self, name: &str, partitions: Partitions) -> QueueBuilder<DB> {
        QueueBuilder { outbox: self, name: name.to_owned(), partitions }
    }

    /// Migrates unless told not to, registers the queues, and starts the workers.
    ///
    /// With the feature `metrics`, install the recorder before: what is counted is registered with the one that is there now.
    ///
    /// # Errors
    ///
    /// If a queue's name is not valid or given twice, its number of partitions differs from the registered one, the
    /// tables do not fit, or the database does not answer.
    ///
    /// # Panics
    ///
    /// If a tuning or a lease is not valid; the message names the field.
    pub async fn start(self) -> Result<OutboxHandle<DB>, OutboxError> {
        // Boxed: connecting needs several KiB, which would otherwise be part of every caller's future.
        Box::pin(self.start_unboxed()).await
    }

    async fn start_unboxed(self) -> Result<OutboxHandle<DB>, OutboxError> {
        let tunings = OutboxProfile {
            sequencer: self.sequencer.unwrap_or(self.profile.sequencer),
            processor: self.processor.unwrap_or(self.profile.processor),
            vacuum: self.vacuum.unwrap_or(self.profile.vacuum),
            reconciler: self.reconciler.unwrap_or(self.profile.reconciler),
        };
        self.check(&tunings)?;
        telemetry::describe();

        if self.migrates {
            crate::migrate_with(&self.pool, &self.tables).await?;
        }
        let maintenance = self.guaranteed_maintenance + self.shared_maintenance;
        let connections = self.processors + maintenance + RECONCILER_CONNECTIONS + MONITOR_CONNECTIONS;
        let is_transactional = |queue: &QueueConfig<DB>| matches!(queue.handler, Handler::Transactional(_));
        let handlers = if self.queues.iter().any(is_transactional) { self.processors } else { 0 };
        let (pool, timings) = (self.pool.clone(), self.timings);
        let store = <DB::Store as Store>::open(pool, &self.tables, connections, handlers, timings).await?;
        let channel = store.probe_news_channel().await?;
        store.check_suitable().await?;

        let mut queues = Vec::new();
        for config in self.queues {
            let queue = Arc::new(store.register_queue(&config.name, config.partitions).await?);
            let lease = config.lease.unwrap_or_else(|| LeaseConfig::of(tunings.processor.lease_duration));
            let timeout = config.handler_timeout.or(self.handler_timeout).unwrap_or(lease.duration);
            let timeout = timeout.min(MAX_LEASE_DURATION);
            let mode = match config.handler {
                Handler::Leased(handler) => Mode::Leased(handler),
                Handler::Transactional(handler) => Mode::Transactional { handler, timeout },
            };
            let max_attempts = config.max_attempts;
            queues.push(Arc::new(ProcessedQueue {
                queue,
                mode,
                lease,
                tuning: tunings.processor,
                max_attempts,
            }));
        }

        let known: HashMap<String, Arc<Queue>> =
            queues.iter().map(|of| (of.queue.name.to_string(), Arc::clone(&of.queue))).collect();
        let crew = Crew::hire(&Terms {
            store: store.clone(),
            channel,
            queues,
            tunings,
            processors: self.processors,
            guaranteed_maintenance: self.guaranteed_maintenance,
            shared_maintenance: self.shared_maintenance,
            max_inner_iterations: self.max_inner_iterations,
            stats_interval: self.stats_interval,
            grace: self.grace,
        });
        let outbox =
            Outbox::new(self.pool, store, known, self.max_payload, Bell::Own(crew.wake(), crew.pauses()));
        Ok(OutboxHandle::new(outbox, crew))
    }

    /// What can be refused before the database is asked.
    fn check(&self, tunings: &OutboxProfile) -> Result<(), OutboxError> {
        let OutboxProfile { sequencer, processor, vacuum, reconciler } = tunings;
        [sequencer, processor, vacuum, reconciler].into_iter().for_each(WorkerTuning::validate);
        let refuse = |text: String| Err(OutboxError::Configuration(text));
        if self.processors == 0 {
            return refuse("processors must not be 0: no message would ever be delivered".to_owned());
        }
        if self.shared_maintenance == 0 {
            return refuse("maintenance: shared must not be 0: nothing would ever be removed".to_owned());
        }
        if self.max_inner_iterations == 0 {
            return refuse(
                "max_inner_iterations must not be 0: no message would ever be sequenced".to_owned(),
            );
        }
        for (place, queue) in self.queues.iter().enumerate() {
            check_name(&queue.name)?;
            if queue.handler_timeout.or(self.handler_timeout).is_some_and(|timeout| timeout.is_zero()) {
                return refuse(format!("queue {:?}: handler_timeout must not be zero", queue.name));
            }
            queue.lease.unwrap_or_else(|| LeaseConfig::of(processor.lease_duration)).validate();
            if queue.max_attempts == Some(0) {
                return refuse(format!("queue {:?}: max_attempts must not be 0", queue.name));
            }
            if self.queues[..place].iter().any(|other| other.name == queue.name) {
                return refuse(format!("queue {:?} has two handlers: give it one", queue.name));
            }
        }
        Ok(())
    }
}

/// A queue without a handler yet.
pub struct QueueBuilder<DB: Backend> {
    outbox: OutboxBuilder<DB>,
    name: String,
    partitions: Partitions,
}

impl<DB: Backend> QueueBuilder<DB> {
    /// Handled under a lease, outside any transaction: at least once.
    #[must_use]
    pub fn leased(self, handler: impl LeasedHandler) -> LeasedQueueBuilder<DB> {
        LeasedQueueBuilder { outbox: self.handled(Handler::Leased(Arc::new(handler))) }
    }

    /// Handled one message at a time, in the transaction that moves the cursor: exactly once.
    ///
    /// SQLite has one writer at a time: whoever else wants to write to the database waits while the handler runs. A constraint
    /// that is deferred is checked at the commit there, so that the messages of a whole transaction come again if one fails, in
    /// smaller and smaller batches until the guilty one is alone.
    #[must_use]
    pub fn transactional(
        self,
        handler: impl TransactionalMessageHandler<DB>,
    ) -> TransactionalQueueBuilder<DB> {
        let handler = Handler::Transactional(Arc::new(EachMessage(handler)));
        TransactionalQueueBuilder { outbox: self.handled(handler) }
    }

    /// Handled a batch at a time, in the transaction that moves the cursor: exactly once.
    #[must_use]
    pub fn batch_transactional(
        self,
        handler: impl TransactionalHandler<DB>,
    ) -> TransactionalQueueBuilder<DB> {
        let handler = Handler::Transactional(Arc::new(WholeBatch(handler)));
        TransactionalQueueBuilder { outbox: self.handled(handler) }
    }

    fn handled(self, handler: Handler<DB>) -> OutboxBuilder<DB> {
        let Self { mut outbox, name, partitions } = self;
        let (lease, handler_timeout, max_attempts) = (None, None, None);
        outbox.queues.push(QueueConfig { name, partitions, handler, lease, handler_timeout, max_attempts });
        outbox
    }
}

/// A queue with its leased handler; its own settings first, then whatever [`OutboxBuilder`] has.
pub struct LeasedQueueBuilder<DB: Backend> {
    outbox: OutboxBuilder<DB>,
}

/// A queue with its transactional handler; its own settings first, then whatever [`OutboxBuilder`] has.
pub struct TransactionalQueueBuilder<DB: Backend> {
    outbox: OutboxBuilder<DB>,
}

impl<DB: Backend> TransactionalQueueBuilder<DB> {
    /// How long the handler may take for one call, whatever the outbox's builder says.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.queue_config().handler_timeout = Some(timeout);
        self
    }
}

/// What queues have in common, whatever their handlers.
macro_rules! queue_settings {
    ($builder:ident) => {
        impl<DB: Backend> $builder<DB> {
            /// The queue's lease, whatever the tuning says.
            #[must_use]
            pub fn lease(mut self, lease: LeaseConfig) -> Self {
                self.queue_config().lease = Some(lease);
                self
            }

            /// After so many tries a message becomes a dead letter; default: no limit. A message that a batch handler
            /// was given together with others is not given up before it was tried alone.
            #[must_use]
            pub fn max_attempts(mut self, attempts: u32) -> Self {
                self.queue_config().max_attempts = Some(attempts);
                self
            }

            fn queue_config(&mut self) -> &mut QueueConfig<DB> {
                self.outbox.queues.last_mut().expect("this builder was made when it was added")
            }

            /// Adds another queue.
            #[must_use]
            pub fn queue(self, name: &str, partitions: Partitions) -> QueueBuilder<DB> {
                self.outbox.queue(name, partitions)
            }

            /// The builder of the outbox, for its other settings.
            #[must_use]
            pub fn outbox(self) -> OutboxBuilder<DB> {
                self.outbox
            }

            /// See [`OutboxBuilder::start`].
            ///
            /// # Errors
            ///
            /// See [`OutboxBuilder::start`].
            ///
            /// # Panics
            ///
            /// See [`OutboxBuilder::start`].
            pub async fn start(self) -> Result<OutboxHandle<DB>, OutboxError> {
                self.outbox.start().await
            }
        }
    };
}

queue_settings!(LeasedQueueBuilder);
queue_settings!(TransactionalQueueBuilder);
