//! Carrying news from other processes to this one's bells, over breaks of the connection.

use std::time::Duration;

use taskward::CancellationToken;

use crate::{
    outage::UNREACHABLE,
    store::{NewsChannel, Store},
    wake::Wake,
};

/// How often to look where nobody tells us: the sequencer and the reconciler in turn. 16 looks a second.
const POLL: Duration = Duration::from_millis(60);

pub(crate) async fn carry<S: Store>(
    store: &S,
    channel: NewsChannel,
    wake: &Wake,
    cancel: &CancellationToken,
) {
    let carrying = async {
        match channel {
            NewsChannel::Notified => listen_for_ever(store, wake).await,
            NewsChannel::Polled => poll_for_ever(wake).await,
        }
    };
    cancel.run_until_cancelled(carrying).await;
}

async fn listen_for_ever<S: Store>(store: &S, wake: &Wake) {
    loop {
        if let Err(error) = store.listen(wake).await {
            tracing::warn!(%error, "no news from the database; trying again");
        }
        tokio::time::sleep(UNREACHABLE).await;
    }
}

async fn poll_for_ever(wake: &Wake) {
    loop {
        wake.sequencer_bell().notify_one();
        tokio::time::sleep(POLL).await;
        wake.reconciler_bell().notify_one();
        tokio::time::sleep(POLL).await;
    }
}
