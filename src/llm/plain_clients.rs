//! The clients for embeddings and decisions that a job is given.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::call::{Caller, Sending};
use super::decision::{DecisionClient, DecisionResponse};
use super::embeddings::{EmbeddingsClient, EmbeddingsPurpose, EmbeddingsResponse};
use super::template;
use crate::error::JobError;

/// A client of the one embeddings model that the attempt's slot was resolved to. Its calls are
/// recorded as a [`ModelClient`](super::ModelClient)'s are.
pub struct EmbeddingsModel {
    caller: Caller,
    client: Arc<dyn EmbeddingsClient>,
}

impl EmbeddingsModel {
    pub(crate) fn new(caller: Caller, client: Arc<dyn EmbeddingsClient>) -> Self {
        Self { caller, client }
    }

    /// The model's id.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.caller.spec.id
    }

    /// The vectors of the texts, one each.
    ///
    /// # Errors
    /// The provider's failure as it is, `ExternalService` when it answered another number of vectors;
    /// `Cancelled` or `TimedOut` when the job has been told to stop; `IllegalState`, and nothing is
    /// sent, for more tokens than were declared and for a second call in one attempt.
    pub fn embed(
        &self,
        texts: &[&str],
        purpose: EmbeddingsPurpose,
    ) -> Result<EmbeddingsResponse, JobError> {
        let sending = Sending {
            purpose: Some(purpose),
            texts: texts.to_vec(),
            begun: &Cell::new(false),
        };
        self.caller.call(
            &sending,
            |spec| self.client.embed(spec, texts, purpose),
            |answer| {
                if answer.vectors.len() == texts.len() {
                    return Ok(answer);
                }
                let said = format!("{} vectors of {} texts", answer.vectors.len(), texts.len());
                Err(template::unreadable(&self.caller.spec, &said))
            },
        )
    }
}

impl fmt::Debug for EmbeddingsModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingsModel")
            .field("model", &self.model_id())
            .finish_non_exhaustive()
    }
}

/// A client of the one decision model that the attempt's slot was resolved to. Its calls are recorded
/// as a [`ModelClient`](super::ModelClient)'s are.
pub struct DecisionModel {
    caller: Caller,
    client: Arc<dyn DecisionClient>,
}

impl DecisionModel {
    pub(crate) fn new(caller: Caller, client: Arc<dyn DecisionClient>) -> Self {
        Self { caller, client }
    }

    /// The model's id.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.caller.spec.id
    }

    /// Which of `choices` answers `question`.
    ///
    /// # Errors
    /// The provider's failure as it is, `ExternalService` when it chose what was not given;
    /// `Cancelled` or `TimedOut` when the job has been told to stop; `IllegalState`, and nothing is
    /// sent, for more tokens than were declared and for a second call in one attempt.
    pub fn decide(&self, question: &str, choices: &[&str]) -> Result<DecisionResponse, JobError> {
        let sending = Sending {
            purpose: None,
            texts: [&[question], choices].concat(),
            begun: &Cell::new(false),
        };
        self.caller.call(
            &sending,
            |spec| self.client.decide(spec, question, choices),
            |answer| {
                if answer.choice < choices.len() {
                    return Ok(answer);
                }
                let said = format!("choice {} of {}", answer.choice, choices.len());
                Err(template::unreadable(&self.caller.spec, &said))
            },
        )
    }
}

impl fmt::Debug for DecisionModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionModel")
            .field("model", &self.model_id())
            .finish_non_exhaustive()
    }
}
