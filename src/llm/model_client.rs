//! The client of a conversation that a job is given.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::call::{Caller, Sending};
use super::client::{CallOptions, LlmClient, StreamChunk};
use super::conversation::Conversation;
use super::response::LlmResponse;
use super::template;
use crate::error::{JobError, RetrySignal};
use crate::events::{ContentStream, Event, EventKind, ProgressEvent};
use crate::job::Metadata;
use crate::models::ModelBinding;

/// A client of the one model that the attempt's slot was resolved to.
///
/// The slot's reservation pays for one call: a second in the same attempt is refused, and so is one of
/// more than was declared. The call is recorded on the job, with what it cost, is refused once the job
/// has been told to stop, and tells the model's account how it went.
pub struct ModelClient {
    caller: Caller,
    client: Arc<dyn LlmClient>,
    binding: Arc<ModelBinding>,
    options: CallOptions,
}

impl ModelClient {
    pub(crate) fn new(
        caller: Caller,
        client: Arc<dyn LlmClient>,
        binding: Arc<ModelBinding>,
        options: CallOptions,
    ) -> Self {
        Self {
            caller,
            client,
            binding,
            options,
        }
    }

    /// The model's id.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.caller.spec.id
    }

    /// Has the model answer the conversation, within the output that was reserved.
    ///
    /// # Errors
    /// The provider's failure as it is; `Cancelled` or `TimedOut` when the job has been told to
    /// stop; `IllegalState`, and nothing is sent, when the conversation carries what was not declared
    /// or counts as more tokens than were, and when the slot has been called in this attempt.
    pub fn respond(&self, conversation: &Conversation) -> Result<LlmResponse, JobError> {
        self.refuse_undeclared(conversation)?;
        let begun = Cell::new(false);
        self.caller.call(
            &sending(conversation, &begun),
            |spec| self.client.respond(spec, conversation, &self.options),
            |answer| self.conclude(answer),
        )
    }

    /// As [`respond`](Self::respond), and hands each piece to `deliver` as it comes; each is
    /// published as well.
    ///
    /// # Errors
    /// As for [`respond`](Self::respond). What would have the attempt run again is final once the
    /// first piece is out, for it cannot be taken back (SIG-5).
    pub fn stream(
        &self,
        conversation: &Conversation,
        mut deliver: impl FnMut(&StreamChunk),
    ) -> Result<LlmResponse, JobError> {
        self.refuse_undeclared(conversation)?;
        let begun = Cell::new(false);
        self.caller
            .call(
                &sending(conversation, &begun),
                |spec| {
                    self.client
                        .stream(spec, conversation, &self.options, &mut |chunk| {
                            if !chunk.text.is_empty() {
                                begun.set(true);
                            }
                            self.tell_chunk(&chunk);
                            deliver(&chunk);
                        })
                },
                |answer| self.conclude(answer),
            )
            .map_err(|error| match error.retry_signal() {
                Some(signal) if begun.get() => self.failed_mid_stream(&error, signal),
                _ => error,
            })
    }

    fn conclude(&self, answer: LlmResponse) -> Result<LlmResponse, JobError> {
        template::conclude(&self.caller.spec, self.options.max_output_tokens, answer)
    }

    /// BIND-3: what was not declared was not matched against the model, nor judged.
    fn refuse_undeclared(&self, conversation: &Conversation) -> Result<(), JobError> {
        let undeclared = conversation
            .attachments()
            .find(|attachment| !self.binding.declares(attachment.kind));
        match undeclared {
            None => Ok(()),
            Some(attachment) => Err(JobError::illegal_state(format!(
                "the conversation carries {kind:?}, and the slot '{}' does not declare them: add \
                 `sends(slot, InputKind::{kind:?})` to the requirements",
                self.binding.slot().name(),
                kind = attachment.kind,
            ))),
        }
    }

    /// The signal is no source of it: a job that wraps the error would raise it again.
    fn failed_mid_stream(&self, error: &JobError, signal: &RetrySignal) -> JobError {
        let failed = JobError::uncorrectable(format!(
            "{} failed mid-stream and cannot be asked again: {signal}",
            self.model_id()
        ));
        match error.upstream_failure() {
            Some(upstream) => failed.with_upstream(upstream),
            None => failed,
        }
    }

    fn tell_chunk(&self, chunk: &StreamChunk) {
        let job = &self.caller.job;
        let at = job.clock().wall();
        job.tell(EventKind::ContentStream, |snapshot| {
            Event::Progress(ProgressEvent::Content(ContentStream::new(
                snapshot,
                at,
                chunk.text.as_str(),
                chunk.last,
                &Metadata::new(),
            )))
        });
    }
}

fn sending<'a>(conversation: &'a Conversation, begun: &'a Cell<bool>) -> Sending<'a> {
    Sending {
        purpose: None,
        texts: conversation
            .messages()
            .iter()
            .map(|message| &*message.text)
            .collect(),
        begun,
    }
}

impl fmt::Debug for ModelClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelClient")
            .field("model", &self.model_id())
            .finish_non_exhaustive()
    }
}
