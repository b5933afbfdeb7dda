//! Choosing among given answers.

use super::response::Usage;
use crate::error::JobError;
use crate::models::ModelSpec;

/// What a model chose.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DecisionResponse {
    /// The place of the chosen answer among those that were given.
    pub choice: usize,
    /// How sure the model is, from 0 to 1, where it said.
    pub confidence: Option<f64>,
    /// What the call used.
    pub usage: Usage,
    /// The model that answered, in the provider's words, where it said.
    pub served: Option<String>,
}

impl DecisionResponse {
    /// The answer at this place.
    #[must_use]
    pub fn new(choice: usize, usage: Usage) -> Self {
        Self {
            choice,
            confidence: None,
            usage,
            served: None,
        }
    }

    /// Says how sure the model is, from 0 to 1.
    #[must_use]
    pub fn confidence(mut self, confidence: f64) -> Self {
        self.confidence = Some(confidence);
        self
    }

    /// Says which model answered, in the provider's words.
    #[must_use]
    pub fn served_by(mut self, model: impl Into<String>) -> Self {
        self.served = Some(model.into());
        self
    }
}

/// A blocking client of one provider's decision models. What holds for an
/// [`LlmClient`](super::LlmClient) holds for it.
pub trait DecisionClient: Send + Sync + 'static {
    /// Which of `choices` answers `question`.
    ///
    /// # Errors
    /// The provider's refusal or failure.
    fn decide(
        &self,
        model: &ModelSpec,
        question: &str,
        choices: &[&str],
    ) -> Result<DecisionResponse, JobError>;
}
