//! A conversation that is longer than its model's window.

use std::fmt;

/// A conversation does not fit the window of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextOverflow {
    /// The model.
    pub model: String,
    /// How many tokens go in, as far as that is known; an estimate before the call.
    pub tokens: Option<u64>,
    /// How many fit, where that is known.
    pub limit: Option<u64>,
    /// The provider's words; empty when it was not asked.
    pub details: String,
}

impl ContextOverflow {
    /// Found before the call, by an estimate.
    #[must_use]
    pub fn estimated(model: impl Into<String>, tokens: u64, limit: u64) -> Self {
        Self {
            model: model.into(),
            tokens: Some(tokens),
            limit: Some(limit),
            details: String::new(),
        }
    }

    /// Found by the provider.
    #[must_use]
    pub fn reported(model: impl Into<String>, limit: u64, details: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            tokens: None,
            limit: Some(limit),
            details: details.into(),
        }
    }

    /// By how many tokens it is too long; `None` when that is not known.
    #[must_use]
    pub fn overflow(&self) -> Option<u64> {
        Some(self.tokens?.saturating_sub(self.limit?))
    }

    /// How many times the window it is; `None` when that is not known.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let (tokens, limit) = (self.tokens?, self.limit?);
        (limit > 0).then(|| tokens as f64 / limit as f64)
    }
}

impl fmt::Display for ContextOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tokens, self.limit) {
            (Some(tokens), Some(limit)) => write!(
                f,
                "Pre-flight ESTIMATE: an input of about {tokens} tokens does not fit the context \
                 window of {} ({limit} tokens): shorten it",
                self.model
            ),
            (_, Some(limit)) => write!(
                f,
                "the conversation does not fit the context window of {} ({limit} tokens): {}",
                self.model, self.details
            ),
            _ => write!(
                f,
                "the conversation does not fit the context window of {}: {}",
                self.model, self.details
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, JobError};

    // case RTY-17
    #[test]
    fn an_estimate_that_is_too_long_says_by_how_much() {
        let overflow = ContextOverflow::estimated("m", 150_000, 100_000);
        assert_eq!(overflow.overflow(), Some(50_000));
        assert_eq!(overflow.ratio(), Some(1.5));
        let error = JobError::from_kind(ErrorKind::ContextOverflow(overflow));
        assert!(!error.is_correctable() && error.retry_signal().is_none());
        let text = error.to_string();
        assert!(text.starts_with("Pre-flight ESTIMATE"), "{text}");
        let reported = ContextOverflow::reported("m", 100, "too long");
        assert_eq!((reported.overflow(), reported.ratio()), (None, None));
    }
}
