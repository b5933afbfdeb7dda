//! What kinds of failure there are, by what can be done about them (`ERR-2`, `ERR-3`).

use std::time::Duration;

#[cfg(doc)]
use super::JobError;
use super::{ContextOverflow, RetrySignal};

/// What kind of failure a [`JobError`] is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument breaks a rule. Correctable.
    InvalidInput {
        /// The parameter, by the name under which the caller knows it.
        parameter: String,
        /// What was given, as text.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// A thing that was asked for by id does not exist. Correctable.
    ResourceNotFound {
        /// What kind of thing.
        kind: String,
        /// The id asked for.
        id: String,
    },
    /// A guardrail or a scope refused. Correctable.
    Guardrail {
        /// Why, addressed to the model.
        message: String,
    },
    /// Anything else that other input can mend. Correctable.
    Correctable {
        /// What to do about it.
        message: String,
    },
    /// A service outside failed or could not be reached.
    ExternalService {
        /// Which service.
        service: String,
        /// What it said, or what happened.
        details: String,
    },
    /// A service outside asked to slow down.
    UpstreamThrottle {
        /// Which service.
        service: String,
        /// What it said.
        details: String,
    },
    /// Credentials were refused.
    Unauthorized {
        /// Which service.
        service: String,
        /// Why.
        reason: String,
    },
    /// The principal may not do this.
    PermissionDenied {
        /// What is not allowed.
        message: String,
    },
    /// A defect: in the runtime, in a job, or in how it is used.
    System {
        /// The part at fault. A model is told this much and no more.
        component: String,
        /// What went wrong, for logs.
        details: String,
    },
    /// An operation was called in a state that does not allow it.
    IllegalState {
        /// Which operation, and what state it needs.
        message: String,
    },
    /// The job was cancelled.
    Cancelled {
        /// Why.
        reason: String,
    },
    /// The job's timeout passed.
    TimedOut {
        /// The timeout, where there was one.
        budget: Option<Duration>,
    },
    /// A wait was refused because it could have blocked for ever.
    Deadlock {
        /// Both jobs, and where the wait was asked for.
        message: String,
    },
    /// A job that this one depends on failed; its failure is the source.
    DependencyFailed {
        /// The id of the dependency.
        dependency: String,
    },
    /// No model serves what was asked for.
    ModelResolution {
        /// What is missing, by provider.
        message: String,
    },
    /// A model was named that the deployment does not have.
    ModelNotFound {
        /// The name.
        model: String,
    },
    /// The account at a provider is out of money.
    QuotaExhausted {
        /// The provider.
        provider: String,
        /// The account, as the provider or the deployment knows it.
        account: String,
        /// The model that was called, where that is known.
        model: Option<String>,
        /// The provider's words, where there were any.
        message: Option<String>,
    },
    /// The workflow's spend cap does not allow this attempt.
    SpendCapExceeded {
        /// Spent, committed, asked for and cap.
        message: String,
    },
    /// The model refused on grounds of safety.
    ProviderRefusal {
        /// The model.
        model: String,
        /// The provider's category, where it gave one.
        category: String,
        /// The provider's words.
        explanation: String,
    },
    /// The conversation does not fit the model's window.
    ContextOverflow(ContextOverflow),
    /// Anything else that the caller cannot mend.
    Uncorrectable {
        /// What happened.
        message: String,
    },
    /// Addressed to the runtime alone: run the attempt again.
    Retry(RetrySignal),
}

impl ErrorKind {
    /// The kind's name, as it is spelt in this enum.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::InvalidInput { .. } => "InvalidInput",
            Self::ResourceNotFound { .. } => "ResourceNotFound",
            Self::Guardrail { .. } => "Guardrail",
            Self::Correctable { .. } => "Correctable",
            Self::ExternalService { .. } => "ExternalService",
            Self::UpstreamThrottle { .. } => "UpstreamThrottle",
            Self::Unauthorized { .. } => "Unauthorized",
            Self::PermissionDenied { .. } => "PermissionDenied",
            Self::System { .. } => "System",
            Self::IllegalState { .. } => "IllegalState",
            Self::Cancelled { .. } => "Cancelled",
            Self::TimedOut { .. } => "TimedOut",
            Self::Deadlock { .. } => "Deadlock",
            Self::DependencyFailed { .. } => "DependencyFailed",
            Self::ModelResolution { .. } => "ModelResolution",
            Self::ModelNotFound { .. } => "ModelNotFound",
            Self::QuotaExhausted { .. } => "QuotaExhausted",
            Self::SpendCapExceeded { .. } => "SpendCapExceeded",
            Self::ProviderRefusal { .. } => "ProviderRefusal",
            Self::ContextOverflow(_) => "ContextOverflow",
            Self::Uncorrectable { .. } => "Uncorrectable",
            Self::Retry(_) => "Retry",
        }
    }
}
