//! Handlers for tests that look at what was delivered, or want it rejected.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use posthaste::{LeasedMessageHandler, MessageResult, OutboxMessage};

/// Keeps what it is given.
#[derive(Clone, Default)]
pub struct Collect {
    messages: Arc<Mutex<Vec<OutboxMessage>>>,
}

impl Collect {
    pub fn messages(&self) -> Vec<OutboxMessage> {
        self.messages.lock().unwrap().clone()
    }
}

impl LeasedMessageHandler for Collect {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        self.messages.lock().unwrap().push(msg.clone());
        MessageResult::Ok
    }
}

/// Rejects messages whose payload begins with `bad`, as long as it is strict, with a reason that would clear the screen.
#[derive(Clone)]
pub struct Judge {
    is_strict: Arc<AtomicBool>,
}

impl Judge {
    pub fn strict() -> Self {
        Self { is_strict: Arc::new(AtomicBool::new(true)) }
    }

    pub fn relent(&self) {
        self.is_strict.store(false, Ordering::Relaxed);
    }
}

impl LeasedMessageHandler for Judge {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        if self.is_strict.load(Ordering::Relaxed) && msg.payload.starts_with(b"bad") {
            return MessageResult::Reject(format!(
                "cannot read \x1b[2J{}",
                String::from_utf8_lossy(&msg.payload)
            ));
        }
        MessageResult::Ok
    }
}
