//! What a process without workers does so that others hear of its messages at once.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::store::{Store, Ticket};

/// News is gathered for so long, so that the notifications of a busy producer do not stand in each other's way.
const GATHER: Duration = Duration::from_millis(10);

/// Sends one notification for all that was enqueued in the last few milliseconds, on a connection of its own: in the
/// business transaction it would take a lock that all notifying transactions of the cluster share.
#[derive(Debug, Clone)]
pub(crate) struct Announcer {
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    tickets: Mutex<Vec<Ticket>>,
    news: Notify,
    /// Whoever sends holds it, so that who waits for the end of it can.
    sending: tokio::sync::Mutex<()>,
}

impl Mailbox {
    async fn send<S: Store>(&self, store: &S) {
        let _sending = self.sending.lock().await;
        let tickets = std::mem::take(&mut *self.tickets.lock().unwrap_or_else(PoisonError::into_inner));
        if tickets.is_empty() {
            return;
        }
        if let Err(error) = store.announce_enqueued(&tickets).await {
            // The workers look by themselves after a while.
            tracing::warn!(%error, "cannot tell the workers of new messages");
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.news.notify_waiters();
    }
}

impl Announcer {
    /// Spawns the task that sends; it ends when the last clone is gone.
    pub(crate) fn spawn<S: Store>(store: S) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        tokio::spawn(keep_sending(store, Arc::downgrade(&mailbox)));
        Self { mailbox }
    }

    pub(crate) fn enqueued(&self, ticket: Option<Ticket>) {
        self.mailbox.tickets.lock().unwrap_or_else(PoisonError::into_inner).extend(ticket);
        self.mailbox.news.notify_one();
    }

    /// Sends what is there now; when it returns, all of it is sent.
    pub(crate) async fn flush<S: Store>(&self, store: &S) {
        self.mailbox.send(store).await;
    }
}

/// Sends whenever there is something to send.
async fn keep_sending<S: Store>(store: S, mailbox: Weak<Mailbox>) {
    loop {
        {
            let Some(mailbox) = mailbox.upgrade() else { break };
            // Not for ever: the last clone may be gone, and this is one too.
            tokio::time::timeout(Duration::from_secs(1), mailbox.news.notified()).await.ok();
            mailbox.send(&store).await;
        }
        tokio::time::sleep(GATHER).await;
    }
    store.close().await;
}
