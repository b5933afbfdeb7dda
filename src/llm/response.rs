//! What a model answers.

use std::fmt;

use super::rate_limit::RateLimitInfo;

pub use crate::models::Usage;

/// Why a model stopped writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// Its output budget ran out.
    MaxTokens,
    /// It refused.
    Refusal,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::EndTurn => "END_TURN",
            Self::MaxTokens => "MAX_TOKENS",
            Self::Refusal => "REFUSAL",
        })
    }
}

/// A model's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LlmResponse {
    text: String,
    /// Why the model stopped.
    pub stop_reason: StopReason,
    /// What the call used.
    pub usage: Usage,
    /// The model that answered, in the provider's words, where it said.
    pub served: Option<String>,
    /// What the provider said of its limits, where it did.
    pub limits: Option<RateLimitInfo>,
}

impl LlmResponse {
    /// A finished answer.
    #[must_use]
    pub fn new(text: impl Into<String>, usage: Usage) -> Self {
        Self {
            text: text.into(),
            stop_reason: StopReason::EndTurn,
            usage,
            served: None,
            limits: None,
        }
    }

    /// The same answer, ended for another reason.
    #[must_use]
    pub fn stopped_by(mut self, reason: StopReason) -> Self {
        self.stop_reason = reason;
        self
    }

    /// Says which model answered, in the provider's words.
    #[must_use]
    pub fn served_by(mut self, model: impl Into<String>) -> Self {
        self.served = Some(model.into());
        self
    }

    /// Adds what the provider said of its limits.
    #[must_use]
    pub fn with_limits(mut self, limits: RateLimitInfo) -> Self {
        self.limits = Some(limits);
        self
    }

    /// What the model wrote.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
