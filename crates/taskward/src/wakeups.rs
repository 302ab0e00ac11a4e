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
/// every future that exists, polled or not. Hence the rules here. While the action runs or waits for its permit, each
/// future exists but has not been polled: `notify_waiters` is remembered, and `notify_one` goes to an idle sibling on
/// the same notifier or waits as a permit, instead of being caught by a worker that is busy. And what arrived before
/// an execution starts is answered by it, so `rearm` forgets that.
#[derive(Debug)]
pub(crate) struct Wakeups {
    notifiers: Vec<Arc<Notify>>,
    armed: Vec<Pin<Box<OwnedNotified>>>,
    /// Which of them have fired since the last `rearm`.
    fired: Vec<bool>,
}

impl Wakeups {
    pub(crate) fn new(notifiers: Vec<Arc<Notify>>) -> Self {
        let armed = notifiers.iter().map(|notify| Box::pin(Arc::clone(notify).notified_owned())).collect();
        let fired = vec![false; notifiers.len()];
        Self { notifiers, armed, fired }
    }

    /// Waits until any notifier has fired since the last `rearm`; for ever if there are none.
    pub(crate) async fn any(&mut self) {
        std::future::poll_fn(|cx| self.poll_any(cx)).await;
    }

    fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // All are polled, so that every one of them knows whom to wake.
        for (armed, fired) in self.armed.iter_mut().zip(&mut self.fired) {
            *fired = *fired || armed.as_mut().poll(cx).is_ready();
        }
        if self.fired.contains(&true) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Stops listening, but forgets nothing: what has fired is known, and what fires from here on is remembered by a
    /// future that has not been polled.
    pub(crate) fn stand_down(&mut self) {
        for ((notify, armed), fired) in self.notifiers.iter().zip(&mut self.armed).zip(&self.fired) {
            if !fired {
                armed.set(Arc::clone(notify).notified_owned());
            }
        }
    }

    /// Hands on what woke this worker, which will not execute: a sibling on the same notifier may.
    pub(crate) fn hand_on(&mut self) {
        for (notify, fired) in self.notifiers.iter().zip(&mut self.fired) {
            if std::mem::take(fired) {
                notify.notify_one();
            }
        }
    }

    /// Forgets everything up to now. Called right before an execution.
    pub(crate) fn rearm(&mut self) {
        self.fired.fill(false);
        for (notify, armed) in self.notifiers.iter().zip(&mut self.armed) {
            // A new future, for one that was notified takes no permit any more; enabling it does. If a notification
            // comes between that and the next line, dropping the future hands it on.
            armed.set(Arc::clone(notify).notified_owned());
            let _had_been_notified = armed.as_mut().enable();
            armed.set(Arc::clone(notify).notified_owned());
        }
    }
}
