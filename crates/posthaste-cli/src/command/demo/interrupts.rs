//! Ctrl-C and its like: once to end early, twice to end at once.

use tokio::sync::watch;

use crate::interrupt;

/// How often somebody has asked us to end.
#[derive(Clone)]
pub struct Interrupts(watch::Receiver<u32>);

impl Interrupts {
    pub fn listen() -> Self {
        let (sender, receiver) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = interrupt::asked() => {}
                    () = hung_up() => {}
                }
                sender.send_modify(|times| *times += 1);
            }
        });
        Self(receiver)
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

/// Waits until the terminal is closed: then the tables have to be removed too.
async fn hung_up() {
    #[cfg(unix)]
    if let Ok(mut hangup) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()) {
        hangup.recv().await;
        return;
    }
    std::future::pending::<()>().await;
}
