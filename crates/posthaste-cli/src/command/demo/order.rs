//! The shop's orders, and what becomes of each by plan.

use posthaste::{EnqueueMessage, OutboxError, Partitions};
use serde::{Deserialize, Serialize};

pub const QUEUE: &str = "orders";
pub const PARTITIONS: Partitions = Partitions::of(8);
pub const CUSTOMERS: u32 = 24;
/// Why an order with a declined card is rejected.
pub const DECLINED: &str = "card declined";

/// One of every so many orders is rolled back, and one of every so many has a card that is declined. The first of each comes soon. On
/// a quiet machine the tills take their tickets in turn: neither interval has a divisor in common with their number, so that every
/// till has orders of each kind.
const ROLLED_BACK_EVERY: u64 = 13;
const DECLINED_EVERY: u64 = 101;
const FIRST_DECLINED: u64 = 14;

/// Which order it is: a customer's orders are numbered from 1, those that are rolled back included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OrderId {
    pub customer: u32,
    pub number: u64,
}

/// What is announced of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    #[serde(flatten)]
    pub id: OrderId,
    pub card_is_declined: bool,
}

impl Order {
    pub fn message(&self) -> Result<EnqueueMessage<'static>, OutboxError> {
        Ok(EnqueueMessage::json(self)?.key(key(self.id.customer)).payload_type("order.placed"))
    }

    /// The order that a message announces, if it is one of ours.
    pub fn of(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// What a customer's messages have in common, so that they stay in order.
pub fn key(customer: u32) -> String {
    format!("customer-{customer}")
}

/// What becomes of the order with this ticket; tickets are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Delivered,
    RolledBack,
    Declined,
}

impl Fate {
    pub const fn of(ticket: u64) -> Self {
        if ticket.is_multiple_of(ROLLED_BACK_EVERY) {
            Self::RolledBack
        } else if ticket % DECLINED_EVERY == FIRST_DECLINED {
            Self::Declined
        } else {
            Self::Delivered
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::producers::TILLS, *};

    #[test]
    fn a_short_run_has_every_fate_in_it() {
        let fates: Vec<_> = (1..=1313).map(Fate::of).collect();
        assert_eq!(fates[0], Fate::Delivered);
        assert!(fates[..20].contains(&Fate::RolledBack) && fates[..20].contains(&Fate::Declined));
        let count = |fate| fates.iter().filter(|found| **found == fate).count();
        // One of those with a declined card is rolled back.
        assert_eq!([count(Fate::RolledBack), count(Fate::Declined)], [101, 12]);
    }

    #[test]
    fn tills_that_take_turns_have_orders_of_every_fate_alike() {
        let tills = u64::from(TILLS);
        let count = |till, fate| {
            let tickets = (1..=13 * 101 * tills).filter(|ticket| ticket % tills == till);
            tickets.filter(|ticket| Fate::of(*ticket) == fate).count()
        };
        for till in 0..tills {
            assert_eq!([count(till, Fate::RolledBack), count(till, Fate::Declined)], [101, 12], "{till}");
        }
    }

    #[test]
    fn an_order_is_read_as_it_was_announced() {
        let order = Order { id: OrderId { customer: 3, number: 17 }, card_is_declined: true };
        let message = order.message().unwrap();
        assert_eq!(message.payload, br#"{"customer":3,"number":17,"card_is_declined":true}"#);
        assert_eq!(message.key.as_deref(), Some("customer-3"));
        assert_eq!(Order::of(&message.payload), Some(order));
        assert_eq!(Order::of(b"{}"), None);
    }
}
