//! Whatever is called can be called in a task of its own. It compiles, that is the test: with concrete types, for there it is that the
//! compiler may fail to see it.

use posthaste::{
    DeadLetterClaim, DeadLetterFilter, DeadLetterScope, EnqueueMessage, Outbox, OutboxBuilder, OutboxError,
    OutboxHandle, testing,
};

use crate::stage::secs;

fn can_be_sent(_: impl Send) {}

macro_rules! everything_can_be_sent {
    ($name:ident, $database:ty) => {
        #[expect(dead_code, reason = "it need not run")]
        fn $name(
            outbox: &Outbox<$database>,
            pool: &sqlx::Pool<$database>,
            builder: OutboxBuilder<$database>,
            handle: OutboxHandle<$database>,
            claims: &[DeadLetterClaim],
        ) {
            let (filter, scope) = (&DeadLetterFilter::default(), &DeadLetterScope::default());
            let message = || EnqueueMessage::new("x");
            can_be_sent(posthaste::migrate(pool));
            can_be_sent(Outbox::connect(pool.clone()));
            can_be_sent(builder.start());
            can_be_sent(outbox.enqueue(pool, "q", message()));
            can_be_sent(outbox.enqueue_batch(pool, "q", &[message()]));
            can_be_sent(outbox.transaction(async |tx| outbox.enqueue(&mut *tx, "q", message()).await));
            can_be_sent((outbox.pause("q"), outbox.resume("q"), outbox.lag(), handle.health()));
            can_be_sent((outbox.dead_letter_list(pool, filter), outbox.dead_letter_count(pool, filter)));
            can_be_sent(outbox.dead_letter_replay(pool, scope, secs(1)));
            can_be_sent((
                outbox.dead_letter_resolve(pool, claims),
                outbox.dead_letter_reject(pool, claims, "no"),
            ));
            can_be_sent((outbox.dead_letter_discard(pool, scope), outbox.dead_letter_cleanup(pool, scope)));
            can_be_sent(outbox.dead_letter_redeliver(pool, scope));
            can_be_sent(testing::wait_until_drained(outbox, "q"));
            can_be_sent(testing::assert_enqueued(outbox, "q", |_| true));
            can_be_sent(async {
                let mut tx = pool.begin().await?;
                outbox.enqueue(&mut tx, "q", message()).await?;
                outbox.dead_letter_list(&mut tx, filter).await?;
                let claims = outbox.dead_letter_replay(&mut tx, scope, secs(1)).await?;
                outbox.dead_letter_resolve(&mut tx, &claims).await?;
                outbox.dead_letter_redeliver(&mut tx, scope).await?;
                outbox.dead_letter_discard(&mut *tx, scope).await?;
                Ok::<_, OutboxError>(tx.commit().await?)
            });
            can_be_sent(handle.stop());
        }
    };
}

everything_can_be_sent!(on_postgres, sqlx::Postgres);
everything_can_be_sent!(on_mysql, sqlx::MySql);
everything_can_be_sent!(on_sqlite, sqlx::Sqlite);
