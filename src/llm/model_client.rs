//! The client that a job is given: one model, every call recorded (`LLM-2`, `CTX-7`).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::client::{CallOptions, LlmClient, StreamChunk};
use super::conversation::Conversation;
use super::response::{LlmResponse, StopReason};
use crate::admission::TokenBucket;
use crate::error::{ErrorKind, JobError, RetrySignal};
use crate::events::{ContentStream, Event, EventKind, ModelCall, ProgressEvent};
use crate::job::core::JobCore;
use crate::job::{JobContext, Metadata};
use crate::models::ModelSpec;
use crate::unwind::contain_result;

/// A client of the one model that the attempt's slot was resolved to.
///
/// Each call is recorded on the job, is refused once the job has been told to stop, and tells the
/// model's account how it went. Several threads may call it at once.
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
    /// As for [`respond`](Self::respond). What would have the attempt run again is final once the
    /// first piece is out, for it cannot be taken back (SIG-5).
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
            Some(signal) if begun => self.failed_mid_stream(&error, signal),
            _ => error,
        })
    }

    /// The signal is no source of it: a job that wraps the error would raise it again.
    fn failed_mid_stream(&self, error: &JobError, signal: &RetrySignal) -> JobError {
        let failed = JobError::uncorrectable(format!(
            "{} failed mid-stream and cannot be asked again: {signal}",
            self.spec.id
        ));
        match error.upstream_failure() {
            Some(upstream) => failed.with_upstream(upstream),
            None => failed,
        }
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

    /// One call: looked at before, recorded after, its verdict fed to the account once. A panic in
    /// it is its failure, and recorded as that.
    fn call(
        &self,
        call: impl FnOnce(&dyn LlmClient, &CallOptions) -> Result<LlmResponse, JobError>,
    ) -> Result<LlmResponse, JobError> {
        JobContext::new(Arc::clone(&self.job)).check_cancellation()?;
        let started_at = self.job.clock().wall();
        let result = contain_result("model call", || call(&*self.client, &self.options));
        self.job
            .record_model_call(self.report(&result, started_at, self.job.clock().wall()));
        self.tell_account(&result);
        result
    }

    fn report(
        &self,
        result: &Result<LlmResponse, JobError>,
        started_at: SystemTime,
        ended_at: SystemTime,
    ) -> ModelCall {
        let response = result.as_ref().ok();
        let error = result.as_ref().err();
        let stop_reason = match result {
            Ok(response) => Some(response.stop_reason),
            Err(error) => stop_reason(error),
        };
        ModelCall {
            model: self.spec.id.as_str().into(),
            successful: result.is_ok(),
            stop_reason: stop_reason.map(|reason| reason.to_string()),
            input_tokens: response.map(|response| response.usage.input_tokens),
            output_tokens: response.map(|response| response.usage.output_tokens),
            reason: error.map(ToString::to_string),
            cause: error.cloned(),
            started_at,
            ended_at,
        }
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
