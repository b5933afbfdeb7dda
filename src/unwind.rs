//! The one place where a panic stops (`ATT-11`).
//!
//! Everything foreign that the runtime calls (jobs, hooks, callbacks, observers, limiters,
//! providers, destructors of users' values) is called through here. What cannot be contained: a
//! second panic while the first unwinds, a stack overflow, memory that runs out, and a program
//! built with `panic = "abort"`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::JobError;

/// Runs foreign code; a panic comes back as its text.
pub(crate) fn catch<T>(foreign: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safety: what foreign code left half done is its own, and is never run again; state
    // of ours is only changed outside of such calls.
    catch_unwind(AssertUnwindSafe(foreign)).map_err(text_of)
}

// What becomes of a panic is kept out of the functions that call foreign code: it is rare, and its
// stack would be a part of every waiting thread's.

#[cold]
#[inline(never)]
fn text_of(payload: Box<dyn Any + Send>) -> String {
    let text = panic_text(&*payload);
    discard(payload);
    text
}

#[cold]
#[inline(never)]
fn panicked(component: &str, text: String) -> JobError {
    JobError::system(component, format!("panicked: {text}"))
}

/// Runs foreign code; a panic becomes a `System` error of `component` with the panic's text.
pub(crate) fn contain<T>(component: &str, foreign: impl FnOnce() -> T) -> Result<T, JobError> {
    catch(foreign).map_err(|text| panicked(component, text))
}

/// Runs foreign code that itself may fail; a panic is a failure too.
pub(crate) fn contain_result<T>(
    component: &str,
    foreign: impl FnOnce() -> Result<T, JobError>,
) -> Result<T, JobError> {
    contain(component, foreign).and_then(|result| result)
}

/// Writes to the log. The logger is the program's, and one that panics (its pipe is closed, its disk
/// full) takes nothing with it but the line.
pub(crate) fn write(line: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(line)) {
        // Whoever writes relies on getting past it, and there is nobody left to tell.
        std::mem::forget(payload);
    }
}

/// Drops a value of a user's type, whose destructor may panic.
pub(crate) fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        write(|| {
            log::error!(
                "a destructor panicked: {}; its value is gone",
                panic_text(&*payload)
            );
        });
        // The payload is a user's value as well, and would take the same way out.
        std::mem::forget(payload);
    }
}

/// Drops values of users' types, each on its own: two destructors that panic in one unwinding would end the process.
pub(crate) fn discard_each<T>(values: impl IntoIterator<Item = T>) {
    values.into_iter().for_each(discard);
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_system_error_with_its_text() {
        let error = contain("job", || panic!("boom {}", 7)).unwrap_err();
        assert_eq!(error.to_string(), "system error in job: panicked: boom 7");
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_survived() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        assert!(contain("job", || std::panic::panic_any(Bomb)).is_err());
        discard(Bomb);
    }
}
