//! What every model client answers (`LLM-1`).

use super::conversation::Conversation;
use super::response::LlmResponse;
use crate::error::JobError;
use crate::models::ModelSpec;

/// How one call differs from the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// The most tokens that the model may write, thinking included.
    pub max_output_tokens: u32,
}

impl CallOptions {
    /// At most so many tokens of answer.
    #[must_use]
    pub const fn new(max_output_tokens: u32) -> Self {
        Self { max_output_tokens }
    }
}

/// A piece of a streamed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamChunk {
    /// The piece.
    pub text: String,
    /// Whether it is the last.
    pub last: bool,
}

impl StreamChunk {
    /// A piece.
    #[must_use]
    pub fn new(text: impl Into<String>, last: bool) -> Self {
        Self {
            text: text.into(),
            last,
        }
    }
}

/// A blocking client of one provider.
///
/// It only speaks the provider's dialect: it does not retry, does not count and does not wait for
/// quota; the runtime does. A provider's "not now" is raised as a
/// [`RetrySignal`](crate::RetrySignal).
pub trait LlmClient: Send + Sync + 'static {
    /// Has `model` answer the conversation.
    ///
    /// # Errors
    /// The provider's refusal or failure.
    fn respond(
        &self,
        model: &ModelSpec,
        conversation: &Conversation,
        options: &CallOptions,
    ) -> Result<LlmResponse, JobError>;

    /// As [`respond`](Self::respond), and hands each piece to `deliver` as it comes. In one piece
    /// unless the client says otherwise.
    ///
    /// # Errors
    /// As for [`respond`](Self::respond); what was delivered stays delivered.
    fn stream(
        &self,
        model: &ModelSpec,
        conversation: &Conversation,
        options: &CallOptions,
        deliver: &mut dyn FnMut(StreamChunk),
    ) -> Result<LlmResponse, JobError> {
        let response = self.respond(model, conversation, options)?;
        deliver(StreamChunk::new(response.text(), true));
        Ok(response)
    }
}
