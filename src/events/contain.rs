//! Foreign code on a thread of the bus, and its panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code; its panic comes back as the text that it was raised with.
pub(super) fn contain<T>(foreign: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safe: what foreign code left half done is its own, and it is told so by its panic.
    catch_unwind(AssertUnwindSafe(foreign)).map_err(|payload| {
        let text = describe(&*payload);
        // A payload is foreign too. One that panics as it is dropped is left to leak.
        if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            std::mem::forget(second);
        }
        text
    })
}

fn describe(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}
