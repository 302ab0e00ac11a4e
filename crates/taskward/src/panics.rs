//! Catching panics, and what they said.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

/// Awaits a future and catches a panic in it. In an `async` block that includes a panic in dropping what the block holds,
/// for that happens inside `poll` too.
///
/// Whether what the future worked on is still good after a panic is for the caller to know.
///
/// # Errors
///
/// The panic's payload; see [`panic_text`].
pub async fn catch_panic<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The text of a panic's payload, as `std::panic::catch_unwind`, [`catch_panic`] or a join error hands it out.
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "panic with a payload that is not text".to_owned()
    }
}
