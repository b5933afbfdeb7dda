//! One model on one provider.

use std::num::NonZeroU32;

use super::grade::{Depth, Grade};
use crate::error::JobError;

/// What limits the use of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelBound {
    /// A provider's quota per minute.
    Quota {
        /// Tokens per minute, both directions together.
        tokens_per_minute: NonZeroU32,
        /// Requests per minute; a thousandth of the tokens, at least one, where the provider does
        /// not say (TB-7).
        requests_per_minute: Option<NonZeroU32>,
    },
    /// How many calls a machine of one's own serves at once.
    Concurrency(NonZeroU32),
}

/// One model on one provider, as the deployment knows it. Two are equal when their ids are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelSpec {
    /// The entry's id, which also names its account.
    pub id: String,
    /// The provider's key.
    pub provider: String,
    /// How capable it is.
    pub grade: Grade,
    /// Tokens that fit into one request, input and output together.
    pub context_tokens: u32,
    /// Tokens that it can write at most.
    pub max_output_tokens: u32,
    /// What limits its use.
    pub bound: ModelBound,
}

impl ModelSpec {
    /// A model of `provider`, of grade `Medium`, with a window of 200 000 tokens of which it writes
    /// at most 32 768.
    ///
    /// # Errors
    /// `InvalidInput` for a blank id or provider.
    pub fn new(id: &str, provider: &str, bound: ModelBound) -> Result<Self, JobError> {
        for (field, value) in [("id", id), ("provider", provider)] {
            if value.trim().is_empty() {
                return Err(JobError::invalid_input(field, value, "must not be blank"));
            }
        }
        Ok(Self {
            id: id.to_owned(),
            provider: provider.to_owned(),
            grade: Grade::Medium,
            context_tokens: 200_000,
            max_output_tokens: 32_768,
            bound,
        })
    }

    /// Sets the grade.
    #[must_use]
    pub fn grade(mut self, grade: Grade) -> Self {
        self.grade = grade;
        self
    }

    /// Sets the window and how much of it the model can write, in tokens.
    ///
    /// # Errors
    /// `InvalidInput` when either is zero or the output is larger than the window.
    pub fn limits(mut self, context_tokens: u32, max_output_tokens: u32) -> Result<Self, JobError> {
        if max_output_tokens == 0 {
            return Err(JobError::invalid_input(
                "max_output_tokens",
                max_output_tokens,
                "must be positive",
            ));
        }
        if context_tokens < max_output_tokens {
            return Err(JobError::invalid_input(
                "context_tokens",
                context_tokens,
                format!("must hold the {max_output_tokens} tokens of the longest answer"),
            ));
        }
        self.context_tokens = context_tokens;
        self.max_output_tokens = max_output_tokens;
        Ok(self)
    }

    pub(crate) fn thinking_budget(&self, depth: Depth) -> u32 {
        depth.thinking_budget(self.max_output_tokens)
    }
}

impl PartialEq for ModelSpec {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ModelSpec {}
