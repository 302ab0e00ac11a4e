//! Nothing secret is logged, at any level.

use std::{
    io,
    sync::{Arc, Mutex},
};

use posthaste::{DeadLetterScope, EnqueueMessage, Outbox, Partitions, testing::Timings};
use sqlx::Pool;

use crate::{
    cases::cases,
    dialect::{Dialect, Wire},
    fresh::{Fresh, Server},
    listening::{Listening, listen},
    modes::{InMode, Mode, make_effects},
    stage::{begin, builder, eventually, quick_retries, run, secs, timings},
    telemetry::AsToldByType,
};

cases! {
    [leased, transactional, batch]: no_payload_key_or_header_is_logged_whatever_happens;
    []: no_password_is_logged;
}

const PAYLOAD: &str = "Ohg6-payload";
const KEY: &str = "eiG4-key";
const HEADER: &str = "Wah2-header";
const PASSWORD: &str = "ooJ9-password";

/// All that is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Everything from now on, of whichever thread.
    fn keep() -> (Self, Listening) {
        let log = Self::default();
        let writer = log.clone();
        let spans = tracing_subscriber::fmt::format::FmtSpan::FULL;
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_span_events(spans);
        (log, listen(layer.with_writer(move || writer.clone())))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    fn assert_silent_about(&self, secrets: &[&str]) {
        let text = self.text();
        for secret in secrets {
            let bytes = format!("{:?}", secret.as_bytes());
            let telling =
                text.lines().find(|line| line.contains(secret) || line.contains(&bytes[1..bytes.len() - 1]));
            assert_eq!(telling, None, "{secret}");
        }
    }
}

async fn no_payload_key_or_header_is_logged_whatever_happens<S: Server>(mode: Mode) {
    let (log, _listening) = Log::keep();
    let db = Fresh::<S>::empty().await;
    make_effects(&db.pool).await;
    // A stall is logged with what the handler said of its failure, which here is the payload. On a busy machine a retry
    // takes as long as a stall that is scaled down.
    let builder = builder(&db).timings(Timings { stalled_after: secs(3600), ..timings() });
    let queue = builder.processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle =
        queue.handled(mode, AsToldByType).queue("unreadable", Partitions::of(1)).handled(mode, AsToldByType);
    let handle = handle.start().await.unwrap();
    let outbox = handle.outbox();
    let message = |kind| EnqueueMessage::new(PAYLOAD).payload_type(kind).key(KEY).header(HEADER, HEADER);
    for kind in ["plain", "retry", "reject", "panic", "statement"] {
        let mut tx = begin(&db.pool).await;
        outbox.enqueue(&mut tx, "q", message(kind)).await.unwrap();
        tx.commit().await.unwrap();
    }
    eventually("all are settled", async || handle.stats().processor.messages == 5).await;
    outbox.enqueue_batch(&db.pool, "q", &[message("plain"), message("plain")]).await.unwrap();
    eventually("those are too", async || handle.stats().processor.messages == 7).await;

    // What operators do, and what they are shown if they print it.
    let scope = DeadLetterScope::default().queue("q");
    let claims = outbox.dead_letter_replay(&db.pool, &scope, secs(60)).await.unwrap();
    outbox.dead_letter_reject(&db.pool, &claims, "not now").await.unwrap();
    tracing::info!(?claims, letters = ?outbox.dead_letter_list(&db.pool, &scope.clone().into()).await.unwrap());
    let again = DeadLetterScope::default().key(KEY);
    assert!(!outbox.dead_letter_redeliver(&db.pool, &again).await.unwrap().is_empty());
    outbox.dead_letter_resolve(&db.pool, &claims).await.unwrap_err();
    eventually("those are settled", async || handle.stats().processor.messages >= 8).await;

    // What cannot be enqueued says why, and not what.
    let long = format!("{KEY}\0");
    let mut refused = vec![
        outbox.enqueue(&db.pool, "q", message("plain").key(long.as_str())).await.unwrap_err(),
        outbox
            .enqueue(&db.pool, "q", message("plain").header(HEADER, HEADER.repeat(2000)))
            .await
            .unwrap_err(),
        outbox.enqueue(&db.pool, "unknown", message("plain")).await.unwrap_err(),
    ];
    let mut tx = begin(&db.pool).await;
    outbox.enqueue(&mut tx, "unreadable", message("plain")).await.unwrap();
    // As somebody may who writes there by hand. The log of statements is theirs, so the secret is in what they do not say.
    S::Db::run(&mut tx, "UPDATE posthaste_incoming SET headers = substr(headers, 2, length(headers) - 2)")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    eventually("it cannot be read", async || handle.stats().processor.failures > 0).await;
    run(&db.pool, "ALTER TABLE posthaste_incoming RENAME TO elsewhere").await;
    refused.push(outbox.enqueue(&db.pool, "q", message("plain")).await.unwrap_err());
    handle.stop().await;

    for error in refused {
        tracing::error!("{error}");
    }
    tracing::error!("{:?}", message("plain"));
    let text = log.text();
    for span in ["posthaste.enqueue", "posthaste.tick", "posthaste.batch", "posthaste.settle"] {
        assert!(text.contains(span), "it is the log of all that happened");
    }
    assert!(text.contains("posthaste_incoming"), "with the statements");
    log.assert_silent_about(&[PAYLOAD, KEY, HEADER]);
    db.remove().await;
}

/// Whether the server takes the password or not.
async fn no_password_is_logged<S: Server>() {
    let (log, _listening) = Log::keep();
    let db = Fresh::<S>::empty().await;
    if S::Db::WIRE != Wire::None {
        let (scheme, rest) = db.url.split_once("://").unwrap();
        let (user, place) = rest.split_once('@').unwrap();
        let user = user.split(':').next().unwrap();
        let options = S::Db::options(&format!("{scheme}://{user}:{PASSWORD}@{place}"));
        let pool: Pool<S::Db> =
            sqlx::pool::PoolOptions::new().acquire_timeout(secs(2)).connect_lazy_with(options);
        match Outbox::builder(pool.clone()).queue("q", Partitions::of(1)).leased(AsToldByType).start().await {
            Ok(handle) => {
                tracing::info!(?handle, outbox = ?handle.outbox());
                handle.stop().await;
            }
            Err(error) => tracing::error!(%error, ?error),
        }
        pool.close().await;
    }
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(AsToldByType).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    eventually("it is settled", async || handle.stats().processor.messages == 1).await;
    handle.stop().await;
    let text = log.text();
    assert!(text.contains("posthaste.batch"), "it is the log of all that happened");
    log.assert_silent_about(&[PASSWORD, &db.url]);
    db.remove().await;
}
