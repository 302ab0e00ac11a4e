//! Which dead letters are meant.

use std::time::{Duration, SystemTime};

use super::{DeadLetterMessage, DeadLetterStatus};
use crate::{
    OutboxError, OutboxMessageId,
    limits::{DEFAULT_DEAD_LETTER_LIMIT, MAX_DEAD_LETTER_LIMIT, MAX_REASON},
    message::{check_key, check_payload_type},
    queue::check_name,
    store::{RowState, Selection},
};

/// Which dead letters to do something with: all that fit everything that is said here, the oldest message first, up to the limit.
///
/// ```
/// use std::time::Duration;
/// use posthaste::DeadLetterScope;
///
/// let scope = DeadLetterScope::default().queue("orders").payload_type("order.created").older_than(Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterScope {
    pub(crate) ids: Option<Vec<OutboxMessageId>>,
    pub(crate) queue: Option<String>,
    pub(crate) partition: Option<u32>,
    pub(crate) key: Option<String>,
    pub(crate) payload_type: Option<String>,
    pub(crate) status: Option<DeadLetterStatus>,
    pub(crate) rejected_from: Option<SystemTime>,
    pub(crate) rejected_before: Option<SystemTime>,
    pub(crate) older_than: Option<Duration>,
    pub(crate) unchanged_for: Option<Duration>,
    pub(crate) unchanged_since: Option<SystemTime>,
    pub(crate) reason: Option<String>,
    limit: Option<u32>,
}

/// Which dead letters to look at: a [`DeadLetterScope`], and where in it to begin.
///
/// ```
/// # use posthaste::{DeadLetterFilter, Outbox, OutboxError};
/// # async fn all(outbox: Outbox<sqlx::Postgres>, pool: sqlx::PgPool) -> Result<(), OutboxError> {
/// let mut filter = DeadLetterFilter::default().queue("orders").limit(500);
/// loop {
///     let page = outbox.dead_letter_list(&pool, &filter).await?;
///     // A page may be shorter than the limit; the one behind the last is empty.
///     let Some(last) = page.last() else { break };
///     filter = filter.after(last.id);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub(super) scope: DeadLetterScope,
    pub(super) after: Option<OutboxMessageId>,
}

impl DeadLetterFilter {
    /// Only those behind this one: to turn pages, the last of the page before.
    #[must_use]
    pub const fn after(mut self, id: OutboxMessageId) -> Self {
        self.after = Some(id);
        self
    }
}

impl From<DeadLetterScope> for DeadLetterFilter {
    fn from(scope: DeadLetterScope) -> Self {
        Self { scope, after: None }
    }
}

/// What can be said of dead letters, whether to look at them or to do something with them.
macro_rules! criteria {
    ($selector:ident, $($scope:ident)?) => {
        impl $selector {
            /// Just these. What is to be done with them is done with all of them or fails, whatever the limit.
            #[must_use]
            pub fn ids(mut self, ids: impl IntoIterator<Item = OutboxMessageId>) -> Self {
                self$(.$scope)?.ids = Some(ids.into_iter().collect());
                self
            }

            /// Only those of this queue.
            #[must_use]
            pub fn queue(mut self, queue: impl Into<String>) -> Self {
                self$(.$scope)?.queue = Some(queue.into());
                self
            }

            /// Only those of this partition, of every queue unless one is named.
            #[must_use]
            pub const fn partition(mut self, partition: u32) -> Self {
                self$(.$scope)?.partition = Some(partition);
                self
            }

            /// Only those with this key.
            #[must_use]
            pub fn key(mut self, key: impl Into<String>) -> Self {
                self$(.$scope)?.key = Some(key.into());
                self
            }

            /// Only those with this type of payload.
            #[must_use]
            pub fn payload_type(mut self, payload_type: impl Into<String>) -> Self {
                self$(.$scope)?.payload_type = Some(payload_type.into());
                self
            }

            /// Only those in this state. What is to be done with them must be possible in it.
            #[must_use]
            pub const fn status(mut self, status: DeadLetterStatus) -> Self {
                self$(.$scope)?.status = Some(status);
                self
            }

            /// Only those that were rejected then or later, by the database's clock.
            #[must_use]
            pub const fn rejected_from(mut self, time: SystemTime) -> Self {
                self$(.$scope)?.rejected_from = Some(time);
                self
            }

            /// Only those that were rejected before then, by the database's clock.
            #[must_use]
            pub const fn rejected_before(mut self, time: SystemTime) -> Self {
                self$(.$scope)?.rejected_before = Some(time);
                self
            }

            /// Only those that were rejected longer ago than this, by the database's clock.
            #[must_use]
            pub const fn older_than(mut self, age: Duration) -> Self {
                self$(.$scope)?.older_than = Some(age);
                self
            }

            /// Only those whose status has not changed for so long, by the database's clock: to clean up, long after they were
            /// resolved or discarded.
            #[must_use]
            pub const fn unchanged_for(mut self, age: Duration) -> Self {
                self$(.$scope)?.unchanged_for = Some(age);
                self
            }

            /// Only those whose status has not changed since then, and that were not rejected since, by the database's clock: of those
            /// that are counted [now](crate::Outbox::database_time), no others come in while they are dealt with page by page.
            #[must_use]
            pub const fn unchanged_since(mut self, time: SystemTime) -> Self {
                self$(.$scope)?.unchanged_since = Some(time);
                self
            }

            /// Only those whose reason has this text in it, in these letters.
            #[must_use]
            pub fn reason_contains(mut self, text: impl Into<String>) -> Self {
                self$(.$scope)?.reason = Some(text.into());
                self
            }

            /// At most so many; 100 unless said otherwise, never more than 10,000.
            #[must_use]
            pub const fn limit(mut self, limit: u32) -> Self {
                self$(.$scope)?.limit = Some(limit);
                self
            }
        }
    };
}

criteria!(DeadLetterScope,);
criteria!(DeadLetterFilter, scope);

impl DeadLetterScope {
    /// What can be refused before the database is asked.
    fn check(&self) -> Result<(), OutboxError> {
        let refuse = |text: String| Err(OutboxError::InvalidArgument(text));
        if self.limit == Some(0) {
            return refuse(format!("a limit of 0 dead letters: use 1 to {MAX_DEAD_LETTER_LIMIT}"));
        }
        let ids = self.ids.as_ref().map_or(0, Vec::len);
        if ids > usize::try_from(MAX_DEAD_LETTER_LIMIT).unwrap_or(usize::MAX) {
            return refuse(format!("{ids} dead letters at once: name at most {MAX_DEAD_LETTER_LIMIT}"));
        }
        self.queue.as_deref().map_or(Ok(()), check_name)?;
        self.key.as_deref().map_or(Ok(()), check_key)?;
        self.payload_type.as_deref().map_or(Ok(()), check_payload_type)?;
        match &self.reason {
            Some(text) if text.is_empty() || text.len() > MAX_REASON || text.contains('\0') => {
                refuse(format!(
                    "a text of {} bytes to look for in reasons: use 1 to {MAX_REASON} without NUL",
                    text.len()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Those of them that are in one of these states; all of them if none is named.
    pub(super) fn wanted<'s>(
        &'s self,
        verb: &str,
        states: &'s [DeadLetterStatus],
    ) -> Result<Wanted<'s>, OutboxError> {
        self.check()?;
        let states = match &self.status {
            None => states,
            Some(status) if states.is_empty() || states.contains(status) => std::slice::from_ref(status),
            Some(status) => {
                return Err(OutboxError::InvalidArgument(format!(
                    "dead letters that are {status} cannot be {verb}: they must be {}",
                    either(states)
                )));
            }
        };
        Ok(Wanted { scope: self, states })
    }
}

/// A scope that was checked, and the states that its dead letters must be in; any, if there are none.
#[derive(Debug)]
pub(super) struct Wanted<'s> {
    scope: &'s DeadLetterScope,
    states: &'s [DeadLetterStatus],
}

impl<'s> Wanted<'s> {
    /// One for each state that rows can have, so that an index finds them in order.
    pub(super) fn selections(
        &self,
        after: Option<OutboxMessageId>,
    ) -> impl Iterator<Item = Selection<'s>> + use<'s> {
        let states: Vec<_> = match self.states {
            [] => vec![None],
            states => states.iter().flat_map(|state| rows(*state)).copied().map(Some).collect(),
        };
        let (scope, limit) = (self.scope, i64::try_from(self.limit()).unwrap_or(i64::MAX));
        states.into_iter().map(move |state| Selection { scope, after, state, limit })
    }

    pub(super) fn limit(&self) -> usize {
        let limit = match &self.scope.ids {
            Some(_) => MAX_DEAD_LETTER_LIMIT,
            None => self.scope.limit.unwrap_or(DEFAULT_DEAD_LETTER_LIMIT).min(MAX_DEAD_LETTER_LIMIT),
        };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// By their ids: all of them, or none.
    pub(super) const fn are_named(&self) -> bool {
        self.scope.ids.is_some()
    }

    /// Whether one that fitted still does, as far as it can have changed.
    pub(super) fn fits(&self, letter: &DeadLetterMessage) -> bool {
        (self.states.is_empty() || self.states.contains(&letter.status))
            && self.scope.reason.as_ref().is_none_or(|text| letter.reason.contains(text.as_str()))
    }

    /// An error unless all that were named are among these, which ascend.
    pub(super) fn check_found(&self, found: &[i64]) -> Result<(), OutboxError> {
        let named = self.scope.ids.iter().flatten();
        let missing: Vec<_> = named.filter(|id| found.binary_search(&id.0).is_err()).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(OutboxError::DeadLettersNotFound { ids: missing, expected: either(self.states) })
    }
}

/// What is written in the rows of dead letters in this state.
const fn rows(state: DeadLetterStatus) -> &'static [RowState] {
    match state {
        DeadLetterStatus::Pending => &[RowState::Pending, RowState::ClaimRanOut],
        DeadLetterStatus::Reprocessing => &[RowState::Claimed],
        DeadLetterStatus::Resolved => &[RowState::Resolved],
        DeadLetterStatus::Discarded => &[RowState::Discarded],
    }
}

fn either(states: &[DeadLetterStatus]) -> String {
    states.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let pending = |scope: &DeadLetterScope| {
            scope.wanted("replayed", &[DeadLetterStatus::Pending]).map(|wanted| wanted.limit())
        };
        let scope = DeadLetterScope::default;
        assert_eq!(pending(&scope()).unwrap(), 100);
        assert_eq!(pending(&scope().limit(1_000_000_000)).unwrap(), 10_000);
        for (bad, says) in [
            (scope().limit(0), "a limit of 0"),
            (
                scope().status(DeadLetterStatus::Resolved),
                "that are resolved cannot be replayed: they must be pending",
            ),
            (scope().queue("no queue"), "not a queue name"),
            (scope().key(""), "a key of 0 bytes is not valid"),
            (scope().payload_type("ä"), "not a payload type"),
            (scope().reason_contains("a\0b"), "to look for in reasons"),
            (scope().reason_contains(""), "to look for in reasons"),
            (scope().ids((0..10_001).map(OutboxMessageId)), "at once"),
        ] {
            let error = pending(&bad).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
