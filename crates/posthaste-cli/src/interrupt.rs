//! Ctrl-C, and being asked to end.

use tokio::sync::watch;

/// Waits until somebody wants us to end. It listens from the call on, not only once it is awaited: who sees what we print may be quick.
#[cfg(unix)]
pub fn asked() -> impl Future<Output = ()> + Send {
    use tokio::signal::unix::{SignalKind, signal};
    let listening = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        // If it cannot be heard, nothing is lost: then the signal ends the process.
        let (Ok(mut interrupt), Ok(mut terminate)) = listening else { return std::future::pending().await };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
pub async fn asked() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The same, or until the terminal is closed, for who has something to clear away.
#[cfg(unix)]
fn asked_or_left() -> impl Future<Output = ()> + Send {
    use tokio::signal::unix::{SignalKind, signal};
    let (asked, hangup) = (asked(), signal(SignalKind::hangup()));
    async move {
        let Ok(mut hangup) = hangup else { return asked.await };
        tokio::select! {
            () = asked => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(not(unix))]
async fn asked_or_left() {
    asked().await;
}

/// How often somebody has asked us to end: once to end well, twice to end at once.
#[derive(Clone)]
pub struct Interrupts(watch::Receiver<u32>);

impl Interrupts {
    pub fn listen() -> Self {
        let (sender, receiver) = watch::channel(0);
        let mut next = Box::pin(asked_or_left());
        tokio::spawn(async move {
            loop {
                next.await;
                next = Box::pin(asked_or_left());
                sender.send_modify(|times| *times += 1);
            }
        });
        Self(receiver)
    }

    pub fn is_asked(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub async fn first(&mut self) {
        self.reach(1).await;
    }

    pub async fn second(&mut self) {
        self.reach(2).await;
    }

    async fn reach(&mut self, least: u32) {
        // The other end is a task that goes on as long as we do.
        if self.0.wait_for(|times| *times >= least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
