//! What a panic said.

use std::any::Any;

/// The text of a panic's payload, as `std::panic::catch_unwind` or a join error hands it out.
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
