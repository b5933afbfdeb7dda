//! Turning foreign errors into this crate's, losing no verdict on the way (`ERR-3b`, `ERR-6`).

use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::chain::chain;
use super::{ErrorKind, JobError};

impl From<io::Error> for JobError {
    /// A failure of component `io`. Wrap with [`ResultExt`] where you know which service or
    /// parameter is at fault.
    fn from(error: io::Error) -> Self {
        adopt(error, |error| JobError::system("io", error.to_string()))
    }
}

/// Turns foreign errors into [`JobError`]s, saying what they mean here.
///
/// None of these swallows what is already known: a retry signal anywhere in the chain of causes
/// comes back as itself, an error that was correctable stays correctable, and one that was final for a
/// reason of its own, such as money or a cancellation, stays what it was.
pub trait ResultExt<T> {
    /// The failure of a service outside.
    ///
    /// # Errors
    /// `ExternalService` with the original as its cause.
    fn external(self, service: &str) -> Result<T, JobError>;

    /// A defect of a component of this program.
    ///
    /// # Errors
    /// `System` with the original as its cause.
    fn system(self, component: &str) -> Result<T, JobError>;

    /// A value that the caller gave for `parameter` and that cannot be used.
    ///
    /// # Errors
    /// `InvalidInput` with the original as its cause; a final [`JobError`] as it is.
    fn for_parameter(self, parameter: &str, value: impl fmt::Display) -> Result<T, JobError>;
}

impl<T, E: StdError + Send + Sync + 'static> ResultExt<T> for Result<T, E> {
    fn external(self, service: &str) -> Result<T, JobError> {
        self.map_err(|error| {
            adopt(error, |error| {
                JobError::external(service, error.to_string())
            })
        })
    }

    fn system(self, component: &str) -> Result<T, JobError> {
        self.map_err(|error| {
            adopt(error, |error| {
                JobError::system(component, error.to_string())
            })
        })
    }

    fn for_parameter(self, parameter: &str, value: impl fmt::Display) -> Result<T, JobError> {
        self.map_err(|error| {
            if let Some(signal) = retry_in(&error) {
                return signal;
            }
            let rule = match chain(&error).next() {
                // Final: no other value of the parameter would help.
                Some(known) if !known.is_correctable() => return known.clone(),
                // The name under which the model knows the parameter wins over an inner one.
                Some(known) => match known.kind() {
                    ErrorKind::InvalidInput { rule, .. } => rule.clone(),
                    _ => error.to_string(),
                },
                None => error.to_string(),
            };
            JobError::invalid_input(parameter, value, rule).with_source(error)
        })
    }
}

/// Wraps `error` as `wrap` says, unless it carries a verdict that wrapping would lose.
fn adopt<E: StdError + Send + Sync + 'static>(
    error: E,
    wrap: impl FnOnce(&E) -> JobError,
) -> JobError {
    if let Some(signal) = retry_in(&error) {
        return signal;
    }
    // What lies behind an error that is final for a reason of its own is history.
    let known = chain(&error)
        .take_while(|known| !matches!(known.kind(), ErrorKind::Uncorrectable { .. }))
        .find(|known| says_more_than_that_it_failed(known));
    if let Some(known) = known {
        return known.clone();
    }
    wrap(&error).with_source(error)
}

/// Whether an error has a verdict of its own, which "a service failed" or "a component failed" would
/// hide.
fn says_more_than_that_it_failed(error: &JobError) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::ExternalService { .. }
            | ErrorKind::UpstreamThrottle { .. }
            | ErrorKind::System { .. }
            | ErrorKind::Uncorrectable { .. }
    )
}

/// A retry signal in the chain of causes. A verdict that is final, such as a spent retry budget,
/// keeps its last signal as its cause; what lies behind it is history.
pub(super) fn retry_in(error: &(dyn StdError + 'static)) -> Option<JobError> {
    chain(error)
        .take_while(|known| !matches!(known.kind(), ErrorKind::Uncorrectable { .. }))
        .find(|known| known.retry_signal().is_some())
        .cloned()
}
