//! What a worker does.

use std::fmt::Display;

use tokio_util::sync::CancellationToken;

use crate::Directive;

/// What a worker does, one execution at a time. Implement it with a plain `async fn execute`.
pub trait WorkerAction: Send {
    /// What an execution tells the listeners; `()` if nothing.
    type Payload: Send;
    /// Why an execution failed.
    type Error: Display + Send;

    /// Does a piece of work and says what is next.
    ///
    /// The worker never drops this future: an action that may run long watches `cancel` and returns early.
    fn execute(
        &mut self,
        cancel: &CancellationToken,
    ) -> impl Future<Output = Result<Directive<Self::Payload>, Self::Error>> + Send;
}
