//! G12 and the chains: sessions killed, chains trimmed.

use posthaste::{EnqueueMessage, Partitions};

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::Server,
    modes::{InMode, Mode},
    stage::{Memory, assert_consistent, builder, count, eventually, fresh, settled, trim_cursor, trim_ticks},
};

cases! {
    [leased, transactional, batch]:
        g12_killed_sessions_of_every_kind_delay_delivery_and_lose_nothing
            except(sqlite = "there are no sessions to kill"),
        trimming_both_chains_to_their_newest_links_changes_nothing;
}

async fn g12_killed_sessions_of_every_kind_delay_delivery_and_lose_nothing<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle =
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut sent = 0;
    for round in 0..10_u32 {
        assert!(S::Db::kill_workers(&db.pool).await.unwrap() > 0, "there are workers to kill");
        for n in 0..20 {
            outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x").partition((round + n) % 4)).await.unwrap();
            sent += 1;
            if n == 10 {
                // In the middle of it all.
                S::Db::kill_workers(&db.pool).await.unwrap();
            }
        }
        eventually("all is settled", async || settled(&db.pool).await == sent).await;
    }
    handle.stop().await;
    let mut ids = memory.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), usize::try_from(sent).unwrap(), "each at least once");
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn trimming_both_chains_to_their_newest_links_changes_nothing<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    for n in 0..20_usize {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        memory.has(n + 1).await;
        // Trim both chains to their newest links while everything runs.
        trim_ticks(&db.pool).await;
        trim_cursor(&db.pool).await;
    }
    handle.stop().await;
    assert_eq!(
        memory.all().iter().map(|seen| seen.message.seq).collect::<Vec<_>>(),
        (1..=20).collect::<Vec<_>>()
    );
    assert_eq!(count(&db.pool, "SELECT max(last_seq) FROM posthaste_outgoing").await, 20);
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}
