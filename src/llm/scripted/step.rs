//! What a scripted model does at one call.

use std::time::Duration;

use crate::error::JobError;
use crate::llm::response::LlmResponse;
use crate::llm::template::{self, ProviderFailure};
use crate::models::ModelSpec;

/// What a [`ScriptedClient`](super::ScriptedClient) does at one call: answers, or fails as a
/// provider does.
///
/// A text is a step that answers it, and an error one that fails with it.
#[derive(Clone, Debug)]
pub struct Step {
    pub(super) outcome: Outcome,
    pub(super) latency: Option<Duration>,
    /// What a stream delivers before a failing step fails.
    pub(super) delivered: String,
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// A text, whose usage and end follow from the call.
    Reply(String),
    /// An answer as it stands.
    Response(LlmResponse),
    Truncated,
    Fail(Failure),
}

/// How a step fails. What it says of the model is known at the call only.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Provider(ProviderFailure),
    Refusal {
        category: String,
        explanation: String,
    },
    Malformed(String),
    Other(JobError),
}

impl Step {
    fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            latency: None,
            delivered: String::new(),
        }
    }

    /// Answers as a provider that fails so.
    #[must_use]
    pub fn failing(failure: ProviderFailure) -> Self {
        Self::new(Outcome::Fail(Failure::Provider(failure)))
    }

    /// Answers this text. Its tokens are estimated, and what is longer than the call's ceiling is
    /// cut off as a provider does.
    #[must_use]
    pub fn reply(text: impl Into<String>) -> Self {
        Self::new(Outcome::Reply(text.into()))
    }

    /// Answers exactly this, whatever the call asks for.
    #[must_use]
    pub fn response(response: LlmResponse) -> Self {
        Self::new(Outcome::Response(response))
    }

    /// A 429: this caller's budget is spent.
    #[must_use]
    pub fn rate_limit() -> Self {
        Self::failing(ProviderFailure::status(429).body("too many requests"))
    }

    /// A 529: the provider's fleet is overloaded.
    #[must_use]
    pub fn overload() -> Self {
        Self::failing(ProviderFailure::status(529).body("overloaded"))
    }

    /// A 503: the provider fails for now.
    #[must_use]
    pub fn transient() -> Self {
        Self::status(503, "unavailable")
    }

    /// Any status, with a body.
    #[must_use]
    pub fn status(status: u16, body: impl Into<String>) -> Self {
        Self::failing(ProviderFailure::status(status).body(body))
    }

    /// A 429 of an account that is out of money.
    #[must_use]
    pub fn out_of_money() -> Self {
        Self::status(429, "insufficient_quota: add credit to go on")
    }

    /// A 400 that says that the conversation is longer than the model's window.
    #[must_use]
    pub fn context_too_long() -> Self {
        let failure = ProviderFailure::status(400).body("the prompt is too long");
        Self::failing(failure.context_too_long())
    }

    /// The answer runs into the call's ceiling.
    #[must_use]
    pub fn truncated() -> Self {
        Self::new(Outcome::Truncated)
    }

    /// The model refuses on grounds of safety.
    #[must_use]
    pub fn refusal(category: impl Into<String>, explanation: impl Into<String>) -> Self {
        Self::new(Outcome::Fail(Failure::Refusal {
            category: category.into(),
            explanation: explanation.into(),
        }))
    }

    /// The provider answers with a body that cannot be read. For a readable answer of useless text
    /// take [`reply`](Self::reply).
    #[must_use]
    pub fn malformed(body: impl Into<String>) -> Self {
        Self::new(Outcome::Fail(Failure::Malformed(body.into())))
    }

    /// Fails with any other error.
    #[must_use]
    pub fn fail(error: JobError) -> Self {
        Self::new(Outcome::Fail(Failure::Other(error)))
    }

    /// Has the provider ask to be left alone for so long. Only a step that fails with a status says
    /// so; any other stays as it is.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        if let Outcome::Fail(Failure::Provider(failure)) = &mut self.outcome {
            *failure = failure.clone().retry_after(wait);
        }
        self
    }

    /// How long the call takes. The client's latency unless set.
    #[must_use]
    pub fn taking(mut self, latency: Duration) -> Self {
        self.latency = Some(latency);
        self
    }

    /// What a stream delivers before the step fails; nothing unless set. A step that answers
    /// delivers its answer.
    #[must_use]
    pub fn after_delivering(mut self, text: impl Into<String>) -> Self {
        self.delivered = text.into();
        self
    }
}

impl Failure {
    pub(super) fn on(&self, model: &ModelSpec) -> JobError {
        match self {
            Self::Provider(failure) => failure.clone().into_error(model),
            Self::Refusal {
                category,
                explanation,
            } => template::refusal(model, category, explanation),
            Self::Malformed(body) => template::unreadable(model, body),
            Self::Other(error) => error.clone(),
        }
    }
}

impl From<&str> for Step {
    fn from(text: &str) -> Self {
        Self::reply(text)
    }
}

impl From<String> for Step {
    fn from(text: String) -> Self {
        Self::reply(text)
    }
}

impl From<LlmResponse> for Step {
    fn from(response: LlmResponse) -> Self {
        Self::response(response)
    }
}

impl From<JobError> for Step {
    fn from(error: JobError) -> Self {
        Self::fail(error)
    }
}

impl<T: Into<Step>> From<Result<T, JobError>> for Step {
    fn from(result: Result<T, JobError>) -> Self {
        result.map_or_else(Self::fail, Into::into)
    }
}
