//! Turning texts into vectors.

use super::response::Usage;
use crate::error::JobError;
use crate::models::ModelSpec;

pub use crate::models::EmbeddingsPurpose;

/// The vectors of some texts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EmbeddingsResponse {
    /// One vector a text, in the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    /// What the call used.
    pub usage: Usage,
    /// The model that answered, in the provider's words, where it said.
    pub served: Option<String>,
}

impl EmbeddingsResponse {
    /// These vectors.
    #[must_use]
    pub fn new(vectors: Vec<Vec<f32>>, usage: Usage) -> Self {
        Self {
            vectors,
            usage,
            served: None,
        }
    }

    /// Says which model answered, in the provider's words.
    #[must_use]
    pub fn served_by(mut self, model: impl Into<String>) -> Self {
        self.served = Some(model.into());
        self
    }
}

/// A blocking client of one provider's embeddings. What holds for an
/// [`LlmClient`](super::LlmClient) holds for it.
pub trait EmbeddingsClient: Send + Sync + 'static {
    /// The vectors of the texts, one each.
    ///
    /// # Errors
    /// The provider's refusal or failure.
    fn embed(
        &self,
        model: &ModelSpec,
        texts: &[&str],
        purpose: EmbeddingsPurpose,
    ) -> Result<EmbeddingsResponse, JobError>;
}
