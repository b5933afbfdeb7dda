//! What a model answers.

use std::fmt;

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

/// The tokens of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

impl Usage {
    /// So many tokens read and written.
    #[must_use]
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            input_tokens,
            output_tokens,
        }
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
}

impl LlmResponse {
    /// A finished answer.
    #[must_use]
    pub fn new(text: impl Into<String>, usage: Usage) -> Self {
        Self {
            text: text.into(),
            stop_reason: StopReason::EndTurn,
            usage,
        }
    }

    /// The same answer, ended for another reason.
    #[must_use]
    pub fn stopped_by(mut self, reason: StopReason) -> Self {
        self.stop_reason = reason;
        self
    }

    /// What the model wrote.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
