//! The client that a job is given: one model, every call recorded (`LLM-2`, `CTX-7`).

use std::fmt;
use std::sync::Arc;

use super::client::{CallOptions, LlmClient, StreamChunk};
use super::conversation::Conversation;
use super::response::{LlmResponse, StopReason};
use crate::admission::TokenBucket;
use crate::error::JobError;
use crate::events::{ContentStream, Event, EventKind, ModelCall, ProgressEvent};
use crate::job::core::JobCore;
use crate::job::{JobContext, Metadata};
use crate::models::ModelSpec;
use crate::{ErrorKind, RetrySignal};

/// A client of the one model that the attempt's slot was resolved to.
///
/// Each call is recorded on the job, is refused once the job has been told to stop, and tells the
/// model's account how it went.
pub struct ModelClient {
    spec: Arc<ModelSpec>,
    client: Arc<dyn LlmClient>,
    bucket: Option<Arc<TokenBucket>>,
    job: Arc<JobCore>,
    options: CallOptions,
}

impl ModelClient {
    pub(crate) fn new(
        spec: Arc<ModelSpec>,
        client: Arc<dyn LlmClient>,
        bucket: Option<Arc<TokenBucket>>,
        job: Arc<JobCore>,
        options: CallOptions,
    ) -> Self {
        Self {
            spec,
            client,
            bucket,
            job,
            options,
        }
    }

    /// The model's id.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.spec.id
    }

    /// Has the model answer the conversation, within the output that was reserved.
    ///
    /// # Errors
    /// The provider's failure as it is; `Cancelled` or `TimedOut` when the job has been told to
    /// stop.
    pub fn respond(&self, conversation: &Conversation) -> Result<LlmResponse, JobError> {
        self.call(|client, options| client.respond(&self.spec, conversation, options))
    }

    /// As [`respond`](Self::respond), and hands each piece to `deliver` as it comes; each is
    /// published as well.
    ///
    /// # Errors
    /// As for [`respond`](Self::respond). A provider's "not now" after the first piece is final:
    /// what was delivered cannot be taken back.
    pub fn stream(
        &self,
        conversation: &Conversation,
        mut deliver: impl FnMut(&StreamChunk),
    ) -> Result<LlmResponse, JobError> {
        let mut begun = false;
        self.call(|client, options| {
            client.stream(&self.spec, conversation, options, &mut |chunk| {
                begun = true;
                self.tell_chunk(&chunk);
                deliver(&chunk);
            })
        })
        .map_err(|error| match error.retry_signal() {
            Some(signal) if begun && signal.is_upstream() => JobError::uncorrectable(format!(
                "{} failed mid-stream and cannot be asked again: {signal}",
                self.spec.id
            )),
            _ => error,
        })
    }

    fn tell_chunk(&self, chunk: &StreamChunk) {
        let at = self.job.clock().wall();
        self.job.tell(EventKind::ContentStream, |snapshot| {
            Event::Progress(ProgressEvent::Content(ContentStream::new(
                snapshot,
                at,
                chunk.text.as_str(),
                chunk.last,
                &Metadata::new(),
            )))
        });
    }

    /// One call: looked at before, recorded after, its verdict fed to the account once.
    fn call(
        &self,
        call: impl FnOnce(&dyn LlmClient, &CallOptions) -> Result<LlmResponse, JobError>,
    ) -> Result<LlmResponse, JobError> {
        JobContext::new(Arc::clone(&self.job)).check_cancellation()?;
        let started_at = self.job.clock().wall();
        let result = call(&*self.client, &self.options);
        let call = match &result {
            Ok(response) => ModelCall {
                model: self.spec.id.as_str().into(),
                successful: true,
                stop_reason: Some(response.stop_reason.to_string()),
                input_tokens: Some(response.usage.input_tokens),
                output_tokens: Some(response.usage.output_tokens),
                reason: None,
                started_at,
                ended_at: self.job.clock().wall(),
            },
            Err(error) => ModelCall {
                model: self.spec.id.as_str().into(),
                successful: false,
                stop_reason: stop_reason(error).map(|reason| reason.to_string()),
                input_tokens: None,
                output_tokens: None,
                reason: Some(error.to_string()),
                started_at,
                ended_at: self.job.clock().wall(),
            },
        };
        self.job.record_model_call(call);
        self.tell_account(&result);
        result
    }

    fn tell_account(&self, result: &Result<LlmResponse, JobError>) {
        let Some(bucket) = &self.bucket else { return };
        let now = self.job.clock().now();
        match result {
            Ok(_) => bucket.record_success(now),
            Err(error) => match error.retry_signal().map(RetrySignal::throttle_increments) {
                Some(increments) if increments > 0 => bucket.record_backpressure(increments, now),
                _ => {}
            },
        }
    }
}

fn stop_reason(error: &JobError) -> Option<StopReason> {
    match error.kind() {
        ErrorKind::Retry(RetrySignal::OutputTruncation(_)) => Some(StopReason::MaxTokens),
        ErrorKind::ProviderRefusal { .. } => Some(StopReason::Refusal),
        _ => None,
    }
}

impl fmt::Debug for ModelClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelClient")
            .field("model", &self.spec.id)
            .finish_non_exhaustive()
    }
}
