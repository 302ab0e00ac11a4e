//! Wake-ups that are never lost.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::{Notify, futures::OwnedNotified};

/// The notifiers of one worker, each with a future that is *armed* for as long as the worker lives.
///
/// Tokio gives `notify_one` to a future that has been polled, or keeps it as a permit; `notify_waiters` reaches
/// every future that exists, polled or not. Hence the two rules here. While the action runs, each future exists but
/// has not been polled: `notify_waiters` is remembered, and `notify_one` goes to an idle sibling on the same
/// notifier or waits as a permit, instead of being caught by a worker that is busy. And what arrived before an
/// execution starts is answered by it, so `rearm` forgets that.
#[derive(Debug)]
pub(crate) struct Wakeups {
    notifiers: Vec<Arc<Notify>>,
    armed: Vec<Pin<Box<OwnedNotified>>>,
}

impl Wakeups {
    pub(crate) fn new(notifiers: Vec<Arc<Notify>>) -> Self {
        let armed = notifiers.iter().map(|notify| Box::pin(Arc::clone(notify).notified_owned())).collect();
        Self { notifiers, armed }
    }

    /// Forgets everything up to now. Called right before an execution.
    pub(crate) fn rearm(&mut self) {
        for (notify, armed) in self.notifiers.iter().zip(&mut self.armed) {
            // Enabling takes a waiting permit. If a notification comes between this line and the next, dropping
            // the future hands it on.
            let _had_been_notified = armed.as_mut().enable();
            armed.set(Arc::clone(notify).notified_owned());
        }
    }

    /// Ready when any notifier has fired since the last `rearm`; pending for ever if there are none.
    pub(crate) fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // All are polled, so that every one of them knows whom to wake.
        self.armed.iter_mut().fold(Poll::Pending, |any, armed| {
            if armed.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { any }
        })
    }

    /// Waits until any notifier has fired since the last `rearm`.
    pub(crate) async fn any(&mut self) {
        std::future::poll_fn(|cx| self.poll_any(cx)).await;
    }
}
