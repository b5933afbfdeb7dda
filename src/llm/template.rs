//! What an answer of a provider means to the runtime, for every provider alike (`LLM-3`).
//!
//! A client reads its provider's dialect into an [`LlmResponse`](super::LlmResponse) or a
//! [`ProviderFailure`]; what follows from it is decided here.

use std::error::Error as StdError;
use std::time::Duration;

use super::response::{LlmResponse, StopReason};
use crate::error::{
    ContextOverflow, ErrorKind, HttpFailure, JobError, RetrySignal, UpstreamFailure, failure_text,
    says_out_of_money, text_says_out_of_money,
};
use crate::models::ModelSpec;

/// What a provider answered that is no answer, as a client read it.
///
/// | | becomes |
/// |---|---|
/// | out of money: said by the client, by the text, or by a 402 | `QuotaExhausted` |
/// | a conversation that is too long, said by the client | `ContextOverflow` |
/// | 429, and a 401 or 403 that is about the rate | [`RetrySignal::RateLimit`] |
/// | 529 | [`RetrySignal::Overload`] |
/// | 408, any other 5xx, no connection | [`RetrySignal::Transient`] |
/// | 404 | `ModelNotFound` |
/// | everything else | as [`HttpFailure`] says |
///
/// ```
/// use nucleo_runtime::llm::ProviderFailure;
/// use nucleo_runtime::models::Catalog;
/// use std::time::Duration;
///
/// let catalog = Catalog::starter();
/// let model = catalog.get("starter-small").unwrap();
/// let error = ProviderFailure::status(429)
///     .body(r#"{"error": "slow down"}"#)
///     .retry_after(Duration::from_secs(20))
///     .into_error(model);
/// assert!(error.retry_signal().is_some());
/// ```
#[derive(Clone, Debug)]
#[must_use = "it is an error once it has been turned into one"]
pub struct ProviderFailure {
    status: u16,
    endpoint: String,
    body: String,
    retry_after: Option<Duration>,
    meaning: Meaning,
}

/// What only the dialect can tell.
#[derive(Clone, Debug)]
enum Meaning {
    /// As the status says.
    Status,
    OutOfMoney {
        account: Option<String>,
    },
    ContextTooLong,
}

/// What an account is called whose name nobody told.
const UNNAMED_ACCOUNT: &str = "default";

impl ProviderFailure {
    /// The provider answered this status.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            endpoint: String::new(),
            body: String::new(),
            retry_after: None,
            meaning: Meaning::Status,
        }
    }

    /// The provider did not answer: no connection, or a read that failed.
    pub fn no_answer(error: &(dyn StdError + 'static)) -> Self {
        let failure = Self::status(0).body(failure_text(error));
        if says_out_of_money(error) {
            failure.out_of_money(None)
        } else {
            failure
        }
    }

    /// Where it was asked. A query is cut off.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = endpoint.into();
        self
    }

    /// What it said.
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    /// How long it asked to be left alone.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// It said that the account is out of money.
    pub fn out_of_money(mut self, account: Option<String>) -> Self {
        self.meaning = Meaning::OutOfMoney { account };
        self
    }

    /// It said that the conversation is too long for the model.
    pub fn context_too_long(mut self) -> Self {
        self.meaning = Meaning::ContextTooLong;
        self
    }

    /// What it means for a call of `model`.
    #[must_use]
    pub fn into_error(self, model: &ModelSpec) -> JobError {
        // Before anything else: a spent account answers 429 as well (SIG-4).
        let out_of_money = self.status == 402 || text_says_out_of_money(&self.body);
        let account = match &self.meaning {
            Meaning::OutOfMoney { account } => Some(account.clone()),
            Meaning::Status if out_of_money => Some(None),
            _ => None,
        };
        let upstream = self.upstream(model);
        if let Some(account) = account {
            return JobError::from_kind(ErrorKind::QuotaExhausted {
                provider: model.provider.clone(),
                account: account.unwrap_or_else(|| UNNAMED_ACCOUNT.to_owned()),
                model: Some(model.id.clone()),
                message: (!upstream.body.is_empty()).then(|| upstream.body.clone()),
            })
            .with_upstream(upstream);
        }
        if let Meaning::ContextTooLong = self.meaning {
            let limit = model.context_tokens.into();
            let overflow = ContextOverflow::reported(&*model.id, limit, &*upstream.body);
            return JobError::from_kind(ErrorKind::ContextOverflow(overflow))
                .with_upstream(upstream);
        }
        let provider = &*model.provider;
        let said = upstream.detail.clone();
        let raised = |signal: RetrySignal, upstream: UpstreamFailure| {
            JobError::from(signal.on_model(&model.id).with_failure(upstream))
        };
        match self.status {
            429 => raised(RetrySignal::rate_limit(provider, said), upstream),
            529 => raised(RetrySignal::overload(provider, said), upstream),
            0 | 408 | 500.. => raised(RetrySignal::transient(provider, said), upstream),
            404 => JobError::from_kind(ErrorKind::ModelNotFound {
                model: model.wire_id.clone(),
            })
            .with_upstream(upstream),
            status => {
                let answer = HttpFailure::new(status, provider, &self.endpoint).body(&self.body);
                let error = JobError::from(answer);
                match error.kind() {
                    ErrorKind::UpstreamThrottle { .. } => {
                        raised(RetrySignal::rate_limit(provider, said), upstream)
                    }
                    _ => error,
                }
            }
        }
    }

    fn upstream(&self, model: &ModelSpec) -> UpstreamFailure {
        let said = match (self.status, self.body.is_empty()) {
            (0, true) => "no answer".to_owned(),
            (status, true) => format!("HTTP {status}"),
            (_, false) => self.body.clone(),
        };
        let mut failure = UpstreamFailure::with_status(self.status, &*model.provider, "")
            .answered(&self.endpoint, &said);
        failure.detail = failure.body.clone();
        if self.body.is_empty() {
            failure.body.clear();
        }
        failure.retry_after = self.retry_after;
        failure
    }
}

/// What an answer that did arrive means, by why the model stopped.
pub(super) fn conclude(
    model: &ModelSpec,
    ceiling: u32,
    response: LlmResponse,
) -> Result<LlmResponse, JobError> {
    match response.stop_reason {
        StopReason::MaxTokens => Err(cut_off(model, ceiling)),
        StopReason::Refusal => Err(refusal(model, "unspecified", response.text())),
        _ => Ok(response),
    }
}

/// The model's answer ran into a ceiling of `previous` tokens: to be asked again with twice as
/// much, while the model can write more.
fn cut_off(model: &ModelSpec, previous: u32) -> JobError {
    let next = previous.saturating_mul(2).min(model.max_output_tokens);
    if next > previous {
        RetrySignal::truncated(&*model.id, previous, Some(next)).into()
    } else {
        JobError::uncorrectable(format!(
            "the answer of {} was cut off at {previous} tokens, and it has no larger output budget",
            model.id
        ))
    }
}

/// The model refused on grounds of safety.
pub(super) fn refusal(model: &ModelSpec, category: &str, explanation: &str) -> JobError {
    JobError::from_kind(ErrorKind::ProviderRefusal {
        model: model.id.clone(),
        category: category.to_owned(),
        explanation: explanation.to_owned(),
    })
}

/// The provider answered with something that is no answer.
pub(super) fn unreadable(model: &ModelSpec, body: &str) -> JobError {
    const QUOTED_CHARS: usize = 200;
    let quoted: String = body.chars().take(QUOTED_CHARS).collect();
    JobError::external(
        &*model.provider,
        format!("the answer cannot be read: {quoted}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelBound;
    use std::num::NonZeroU32;

    fn model() -> ModelSpec {
        ModelSpec::new("m", "acme", ModelBound::Concurrency(NonZeroU32::MIN)).unwrap()
    }

    fn meaning(failure: ProviderFailure) -> String {
        let error = failure.into_error(&model());
        match error.retry_signal() {
            Some(RetrySignal::RateLimit(signal)) => {
                assert_eq!(signal.model.as_deref(), Some("m"));
                "RateLimit".to_owned()
            }
            Some(RetrySignal::Overload(_)) => "Overload".to_owned(),
            Some(RetrySignal::Transient(_)) => "Transient".to_owned(),
            _ => error.kind().name().to_owned(),
        }
    }

    // case F14
    // case RTY-22
    #[test]
    fn a_failure_is_read_in_one_order_for_every_provider() {
        let status = ProviderFailure::status;
        for (failure, expected) in [
            (
                status(429).body("{\"code\":\"insufficient_quota\"}"),
                "QuotaExhausted",
            ),
            (status(402), "QuotaExhausted"),
            (
                status(400).out_of_money(Some("team".into())),
                "QuotaExhausted",
            ),
            (status(400).context_too_long(), "ContextOverflow"),
            (status(429), "RateLimit"),
            (status(403).body("Rate limit reached"), "RateLimit"),
            (status(529), "Overload"),
            (status(500), "Transient"),
            (status(503), "Transient"),
            (status(408), "Transient"),
            (status(404), "ModelNotFound"),
            (status(401), "Unauthorized"),
            (status(400).body("temperature"), "InvalidInput"),
            (status(418), "ExternalService"),
        ] {
            let shown = format!("{failure:?}");
            assert_eq!(meaning(failure), expected, "{shown}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(meaning(ProviderFailure::no_answer(&refused)), "Transient");
    }

    #[test]
    fn what_was_answered_stays_reachable() {
        let error = ProviderFailure::status(429)
            .endpoint("/v1/chat?key=k")
            .body("slow down")
            .retry_after(Duration::from_secs(45))
            .into_error(&model());
        let failure = error.upstream_failure().unwrap();
        assert_eq!((failure.status, &*failure.endpoint), (429, "/v1/chat"));
        assert_eq!((&*failure.body, &*failure.service), ("slow down", "acme"));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(45)));
    }
}
