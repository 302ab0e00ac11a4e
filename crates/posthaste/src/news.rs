//! Carrying news from other processes to this one's bells, over breaks of the connection.

use std::time::Duration;

use taskward::CancellationToken;
use tokio::time::Instant;

use crate::{
    outage::Outage,
    store::{NewsChannel, Store},
    wake::Wake,
};

pub(crate) async fn carry<S: Store>(
    store: &S,
    channel: NewsChannel,
    wake: &Wake,
    outage: &Outage,
    cancel: &CancellationToken,
) {
    let carrying = async {
        match channel {
            NewsChannel::Notified => listen_for_ever(store, wake, outage).await,
            NewsChannel::Polled => poll_for_ever(store.timings().poll, wake).await,
        }
    };
    cancel.run_until_cancelled(carrying).await;
}

async fn listen_for_ever<S: Store>(store: &S, wake: &Wake, outage: &Outage) {
    let mut complained = None::<Instant>;
    loop {
        match store.listen(wake).await {
            Err(error) if error.is_retryable() => outage.noticed("listener", &error),
            Err(error) if complained.is_none_or(|at| at.elapsed() >= store.timings().outage_reminder) => {
                tracing::warn!(%error, "cannot listen for notifications; retrying");
                complained = Some(Instant::now());
            }
            _ => {}
        }
        tokio::time::sleep(store.timings().unreachable).await;
    }
}

/// The sequencer and the reconciler in turn.
async fn poll_for_ever(interval: Duration, wake: &Wake) {
    loop {
        wake.sequencer_bell().notify_one();
        tokio::time::sleep(interval).await;
        wake.reconciler_bell().notify_one();
        tokio::time::sleep(interval).await;
    }
}
