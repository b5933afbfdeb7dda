//! One call of a model on a job's behalf (`LLM-2`, `CTX-7`): looked at before, recorded and costed
//! after, its verdict fed to the model's account once.
//!
//! # Invariants
//!
//! 1. A reservation pays for one request, of no more than it was made for: whatever else is asked
//!    for is refused before it is sent.
//! 2. A call is on the job's record from before it is sent, at the most that it may cost.

use std::cell::Cell;
use std::sync::Arc;
use std::time::SystemTime;

use super::rate_limit::RateLimitInfo;
use super::response::{LlmResponse, StopReason};
use super::secret::Secrets;
use super::{DecisionResponse, EmbeddingsResponse};
use crate::admission::{TokenBucket, TokenBudget};
use crate::error::{ErrorKind, JobError, RetrySignal};
use crate::events::ModelCall;
use crate::job::JobContext;
use crate::job::core::JobCore;
use crate::models::{EmbeddingsPurpose, ModelSlot, ModelSpec, Reservation, TokenCounter, Usage};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::unwind::{contain, contain_result};

/// Why a call has no verdict that was out when its job ended.
const OUT: &str = "still out when the job ended";

/// What an answer says besides itself.
pub(super) trait Answer {
    fn usage(&self) -> Usage;
    /// The model that it says answered.
    fn served(&mut self) -> &mut Option<String>;
    fn stop_reason(&self) -> Option<StopReason> {
        None
    }
    fn limits(&self) -> Option<&RateLimitInfo> {
        None
    }
}

impl Answer for LlmResponse {
    fn usage(&self) -> Usage {
        self.usage
    }

    fn served(&mut self) -> &mut Option<String> {
        &mut self.served
    }

    fn stop_reason(&self) -> Option<StopReason> {
        Some(self.stop_reason)
    }

    fn limits(&self) -> Option<&RateLimitInfo> {
        self.limits.as_ref()
    }
}

impl Answer for EmbeddingsResponse {
    fn usage(&self) -> Usage {
        self.usage
    }

    fn served(&mut self) -> &mut Option<String> {
        &mut self.served
    }
}

impl Answer for DecisionResponse {
    fn usage(&self) -> Usage {
        self.usage
    }

    fn served(&mut self) -> &mut Option<String> {
        &mut self.served
    }
}

/// What an answer said that is worth a record, kept while the answer may turn into a failure.
struct Noted {
    usage: Usage,
    served: Option<String>,
    stop_reason: Option<StopReason>,
    limits: Option<RateLimitInfo>,
}

impl Noted {
    fn of(answer: &mut impl Answer) -> Self {
        Self {
            usage: answer.usage(),
            served: answer.served().clone(),
            stop_reason: answer.stop_reason(),
            limits: answer.limits().cloned(),
        }
    }
}

/// What is about to be sent.
pub(super) struct Sending<'a> {
    pub(super) purpose: Option<EmbeddingsPurpose>,
    pub(super) texts: Vec<&'a str>,
    /// Raised once a part of the answer has come.
    pub(super) begun: &'a Cell<bool>,
}

/// Calls one model for one job.
pub(crate) struct Caller {
    pub(crate) slot: ModelSlot,
    pub(crate) reservation: Reservation,
    pub(crate) counter: Arc<dyn TokenCounter>,
    /// Whether the reservation is used up.
    pub(crate) spent: AtomicBool,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) job: Arc<JobCore>,
    /// `None` for a model that is bounded by calls at once.
    pub(crate) bucket: Option<Arc<TokenBucket>>,
    pub(crate) secrets: Arc<Secrets>,
}

impl Caller {
    /// Makes one call. `conclude` says what the answer means; a panic in either is its failure.
    pub(super) fn call<A: Answer>(
        &self,
        sending: &Sending<'_>,
        call: impl FnOnce(&ModelSpec) -> Result<A, JobError>,
        conclude: impl FnOnce(A) -> Result<A, JobError>,
    ) -> Result<A, JobError> {
        JobContext::new(Arc::clone(&self.job)).check_cancellation()?;
        self.refuse_more_than_reserved(&sending.texts)?;
        self.take_place()?;
        let started_at = self.job.clock().wall();
        let number = self
            .job
            .begin_model_call(self.out(sending.purpose, started_at))?;
        let mut noted = None;
        let result = contain_result("model call", || {
            let mut answer = call(&self.spec)?;
            let served = answer.served();
            if let Some(hidden) = served.as_deref().and_then(|it| self.secrets.hide(it)) {
                *served = Some(hidden);
            }
            noted = Some(Noted::of(&mut answer));
            conclude(answer)
        })
        .map_err(|error| self.tidy(error));
        let report = self.report(&noted, result.as_ref().err(), sending, started_at);
        self.job.end_model_call(number, report);
        self.tell_account(result.as_ref().err(), &noted);
        result
    }

    /// What was reserved was reserved for this much, give or take the token that each text's estimate
    /// rounds up.
    fn refuse_more_than_reserved(&self, texts: &[&str]) -> Result<(), JobError> {
        let counted = contain("token counter", || {
            texts.iter().fold(0_u32, |sum, text| {
                sum.saturating_add(self.counter.count(text))
            })
        })?;
        let rounded = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        let reserved = self.reservation.input;
        if counted <= reserved.saturating_add(rounded) {
            return Ok(());
        }
        Err(JobError::illegal_state(format!(
            "what is sent counts as {counted} tokens, and the slot '{}' reserved {reserved} for it: \
             declare in `requirements` what `execute` sends",
            self.slot.name()
        )))
    }

    /// Uses the reservation up: a second request is in nobody's account.
    fn take_place(&self) -> Result<(), JobError> {
        if !self.spent.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        Err(JobError::illegal_state(format!(
            "the slot '{}' reserved for one call an attempt, and that has been made: declare a slot \
             for each call, or make each call a job of its own",
            self.slot.name()
        )))
    }

    /// The call as it stands should the job end before it comes back.
    fn out(&self, purpose: Option<EmbeddingsPurpose>, started_at: SystemTime) -> ModelCall {
        ModelCall {
            model: self.spec.id.as_str().into(),
            served: None,
            kind: self.spec.kind,
            purpose,
            successful: false,
            stop_reason: None,
            usage: None,
            cost: self.reservation.cost(&self.spec),
            estimated: true,
            reason: Some(OUT.to_owned()),
            cause: None,
            started_at,
            ended_at: started_at,
        }
    }

    /// The failure as the job sees it: without secrets, and a signal with the model on it.
    fn tidy(&self, error: JobError) -> JobError {
        let error = self.secrets.redact(error);
        match error.retry_signal() {
            Some(signal) if signal.is_upstream() && signal.model().is_none() => {
                let signal = signal.clone().on_model(&self.spec.id);
                error.with_kind(ErrorKind::Retry(signal))
            }
            _ => error,
        }
    }

    fn report(
        &self,
        noted: &Option<Noted>,
        error: Option<&JobError>,
        sending: &Sending<'_>,
        started_at: SystemTime,
    ) -> ModelCall {
        let usage = noted.as_ref().map(|noted| noted.usage);
        // A provider charges for what it had written, and nobody said how much that was.
        let broke_off = usage.is_none() && sending.begun.get();
        let stop_reason = error.and_then(stop_reason).or_else(|| {
            // Of a failed answer that is no longer why it ended.
            let said = noted.as_ref()?.stop_reason;
            error.is_none().then_some(said).flatten()
        });
        ModelCall {
            model: self.spec.id.as_str().into(),
            served: noted
                .as_ref()
                .and_then(|noted| noted.served.as_deref())
                .map(Into::into),
            kind: self.spec.kind,
            purpose: sending.purpose,
            successful: error.is_none(),
            stop_reason: stop_reason.map(|reason| reason.to_string()),
            usage,
            cost: match usage {
                Some(usage) => self.spec.prices.as_ref().map(|prices| prices.cost(&usage)),
                None if broke_off => self.reservation.cost(&self.spec),
                None => None,
            },
            estimated: broke_off,
            reason: error.map(ToString::to_string),
            cause: error.cloned(),
            started_at,
            ended_at: self.job.clock().wall(),
        }
    }

    fn tell_account(&self, error: Option<&JobError>, noted: &Option<Noted>) {
        let Some(bucket) = &self.bucket else { return };
        let now = self.job.clock().now();
        match error.map(|error| error.retry_signal().map(RetrySignal::throttle_increments)) {
            None => bucket.record_success(now),
            Some(Some(increments)) => bucket.record_backpressure(increments, now),
            Some(None) => {}
        }
        let limits = noted.as_ref().and_then(|noted| noted.limits.as_ref());
        if let Some(limits) = limits {
            let figure = |figure: u64| u32::try_from(figure).unwrap_or(u32::MAX);
            // A figure of zero is one that the provider did not say, and changes nothing (TB-7).
            let budget = TokenBudget::new(
                figure(limits.tokens_per_minute()),
                figure(limits.requests_per_minute()),
            );
            bucket.set_config(budget, now);
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
