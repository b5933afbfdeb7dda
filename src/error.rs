//! What goes wrong, told to the one who can do something about it.
//!
//! A failure has two readers: the model that called the tool, and a person. And one question
//! decides what happens next: can the caller fix it? [`JobError`] answers all three.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

mod hide;
mod http;
mod overflow;
mod redact;
mod retry;
mod text;

pub(crate) use hide::Redactor;
pub use http::HttpFailure;
pub use overflow::ContextOverflow;
pub(crate) use text::text_says_out_of_money;
pub use text::{failure_text, says_out_of_money};

pub use retry::{CorrectionSignal, RetrySignal, TruncationSignal, UpstreamSignal};

type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// The one error of a job.
///
/// Cheap to clone: `get()` may be called many times, and events carry it. `Display` is for logs.
/// The cause is in [`source`](StdError::source) and is not repeated in the text.
#[derive(Clone)]
pub struct JobError {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    source: Option<Source>,
    attached: Vec<JobError>,
    upstream: Option<UpstreamFailure>,
    human: Option<String>,
}

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

/// What an upstream service answered when it failed, kept reachable through every wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamFailure {
    /// The HTTP status, or 0 when no response arrived.
    pub status: u16,
    /// The service.
    pub service: String,
    /// Where it was asked, without a query; empty when that is not known.
    pub endpoint: String,
    /// What it said.
    pub detail: String,
    /// The first kilobyte of its answer; empty when there was none.
    pub body: String,
    /// How long it asked to be left alone, where it did.
    pub retry_after: Option<Duration>,
}

impl UpstreamFailure {
    /// A failure without a response: a refused connection, a read that timed out.
    #[must_use]
    pub fn without_response(service: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::with_status(0, service, detail)
    }

    /// A failure with the status that the service answered.
    #[must_use]
    pub fn with_status(status: u16, service: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            status,
            service: service.into(),
            endpoint: String::new(),
            detail: detail.into(),
            body: String::new(),
            retry_after: None,
        }
    }

    /// Adds where it was asked and what it answered, of which the first kilobyte is kept.
    #[must_use]
    pub fn answered(mut self, endpoint: &str, body: &str) -> Self {
        self.endpoint = endpoint
            .split_once('?')
            .map_or(endpoint, |(path, _)| path)
            .to_owned();
        self.body = http::first_kilobyte(body).to_owned();
        self
    }

    /// Adds the `Retry-After` that the service sent.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            0 => write!(f, "no response")?,
            status => write!(f, "HTTP {status}")?,
        }
        if !self.service.is_empty() {
            write!(f, " from {}", self.service)?;
        }
        if !self.endpoint.is_empty() {
            write!(f, " at {}: {}", self.endpoint, self.body)?;
        } else if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, " (server asked for {}s)", wait.as_secs())?;
        }
        Ok(())
    }
}

/// Inputs may be long documents; an error quotes no more of one than this many characters.
const QUOTED_VALUE_CHARS: usize = 200;

impl JobError {
    fn new(kind: ErrorKind) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                source: None,
                attached: Vec::new(),
                upstream: None,
                human: None,
            }),
        }
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// The value given for a parameter breaks a rule. At most 200 characters of the value are kept.
    pub fn invalid_input(
        parameter: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
    ) -> Self {
        let value = value.to_string();
        let value = match value.char_indices().nth(QUOTED_VALUE_CHARS) {
            None => value,
            Some((end, _)) => format!("{}...", &value[..end]),
        };
        Self::new(ErrorKind::InvalidInput {
            parameter: parameter.into(),
            value,
            rule: rule.into(),
        })
    }

    /// Nothing of this kind has this id.
    pub fn not_found(kind: impl Into<String>, id: impl fmt::Display) -> Self {
        Self::new(ErrorKind::ResourceNotFound {
            kind: kind.into(),
            id: id.to_string(),
        })
    }

    /// A guardrail's refusal; the message is addressed to the model.
    pub fn guardrail(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Guardrail {
            message: message.into(),
        })
    }

    /// A failure that other input can mend.
    pub fn correctable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Correctable {
            message: message.into(),
        })
    }

    /// A failure of a service outside, without a response of its.
    pub fn external(service: impl Into<String>, details: impl Into<String>) -> Self {
        Self::new(ErrorKind::ExternalService {
            service: service.into(),
            details: details.into(),
        })
    }

    /// A service outside asked to slow down.
    pub fn throttled(service: impl Into<String>, details: impl Into<String>) -> Self {
        Self::new(ErrorKind::UpstreamThrottle {
            service: service.into(),
            details: details.into(),
        })
    }

    /// Credentials were refused.
    pub fn unauthorized(service: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthorized {
            service: service.into(),
            reason: reason.into(),
        })
    }

    /// The principal may not do this.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PermissionDenied {
            message: message.into(),
        })
    }

    /// A defect in the named component.
    pub fn system(component: impl Into<String>, details: impl Into<String>) -> Self {
        Self::new(ErrorKind::System {
            component: component.into(),
            details: details.into(),
        })
    }

    /// An operation was called in a state that does not allow it.
    pub fn illegal_state(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::IllegalState {
            message: message.into(),
        })
    }

    /// The job was cancelled for this reason.
    pub fn cancelled(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::Cancelled {
            reason: reason.into(),
        })
    }

    /// The job's time budget passed.
    #[must_use]
    pub fn timed_out(budget: Option<Duration>) -> Self {
        Self::new(ErrorKind::TimedOut { budget })
    }

    /// The account at a provider is out of money.
    pub fn quota_exhausted(provider: impl Into<String>, account: impl Into<String>) -> Self {
        Self::new(ErrorKind::QuotaExhausted {
            provider: provider.into(),
            account: account.into(),
            model: None,
            message: None,
        })
    }

    pub(crate) fn deadlock(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Deadlock {
            message: message.into(),
        })
    }

    pub(crate) fn dependency_failed(dependency: impl Into<String>, cause: JobError) -> Self {
        Self::new(ErrorKind::DependencyFailed {
            dependency: dependency.into(),
        })
        .with_source(cause)
    }

    /// No model serves what was asked for.
    pub fn model_resolution(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ModelResolution {
            message: message.into(),
        })
    }

    /// A failure that the caller cannot mend.
    pub fn uncorrectable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Uncorrectable {
            message: message.into(),
        })
    }

    /// A failure of any kind, from its parts.
    #[must_use]
    pub fn from_kind(kind: ErrorKind) -> Self {
        Self::new(kind)
    }

    /// Keeps `source` as the cause.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The same error, of another kind.
    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        self.edit(|inner| inner.kind = kind)
    }

    /// Keeps what the upstream service answered.
    #[must_use]
    pub fn with_upstream(self, failure: UpstreamFailure) -> Self {
        self.edit(|inner| inner.upstream = Some(failure))
    }

    /// Adds a sentence that may be shown to a person.
    #[must_use]
    pub fn with_human_message(self, message: impl Into<String>) -> Self {
        self.edit(|inner| inner.human = Some(message.into()))
    }

    /// Adds a failure that happened while this one was being dealt with, such as a rollback that
    /// failed too. It never replaces this one.
    #[must_use]
    pub fn with_attached(self, other: JobError) -> Self {
        self.edit(|inner| inner.attached.push(other))
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// Failures that happened while this one was being dealt with, oldest first.
    #[must_use]
    pub fn attached(&self) -> &[JobError] {
        &self.inner.attached
    }

    /// What the upstream service answered, read off this error or the nearest one in its chain of
    /// causes that knows; the service is that of the outermost error that names one.
    #[must_use]
    pub fn upstream_failure(&self) -> Option<UpstreamFailure> {
        let service = match self.kind() {
            ErrorKind::ExternalService { service, .. }
            | ErrorKind::UpstreamThrottle { service, .. } => Some(service),
            _ => None,
        };
        let carried = self
            .inner
            .upstream
            .clone()
            .or_else(|| self.retry_signal()?.upstream_failure().cloned())
            .or_else(|| self.causes().find_map(|cause| cause.upstream_failure()));
        match (carried, service) {
            (Some(mut failure), Some(service)) => {
                failure.service.clone_from(service);
                Some(failure)
            }
            (Some(failure), None) => Some(failure),
            (None, Some(service)) => match self.kind() {
                ErrorKind::ExternalService { details, .. }
                | ErrorKind::UpstreamThrottle { details, .. } => {
                    Some(UpstreamFailure::without_response(service, details))
                }
                _ => None,
            },
            (None, None) => None,
        }
    }

    /// Whether other input can help: the caller may try again with a corrected call.
    #[must_use]
    pub fn is_correctable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::InvalidInput { .. }
                | ErrorKind::ResourceNotFound { .. }
                | ErrorKind::Guardrail { .. }
                | ErrorKind::Correctable { .. }
        )
    }

    /// Whether this is the runtime's signal that the job was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.kind(), ErrorKind::Cancelled { .. })
    }

    /// Whether the job's timeout passed.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        matches!(self.kind(), ErrorKind::TimedOut { .. })
    }

    /// The signal to run the attempt again, where this error is one.
    #[must_use]
    pub fn retry_signal(&self) -> Option<&RetrySignal> {
        match self.kind() {
            ErrorKind::Retry(signal) => Some(signal),
            _ => None,
        }
    }

    /// Whether this is the very same failure, passed on, and not another that reads the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether a failure of a service outside lies at the top of this error, so that the limiters
    /// that the job declared should hear of it.
    pub(crate) fn is_upstream_family(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::ExternalService { .. } | ErrorKind::UpstreamThrottle { .. }
        )
    }

    /// The errors of this type in the chain of causes, nearest first.
    fn causes(&self) -> impl Iterator<Item = &JobError> {
        chain(self.inner.source.as_deref().map(|source| source as _))
    }

    /// The plain and actionable message for a model.
    #[must_use]
    pub fn llm_message(&self) -> String {
        match self.kind() {
            ErrorKind::Guardrail { message } => format!("Guardrail violation: {message}"),
            ErrorKind::System { component, .. } => {
                format!("Internal error in {component}")
            }
            ErrorKind::Cancelled { reason } => format!("The job was cancelled: {reason}"),
            ErrorKind::TimedOut {
                budget: Some(budget),
            } => format!("The job exceeded its time budget ({budget:?})"),
            ErrorKind::TimedOut { budget: None } => "The job exceeded its time budget".to_owned(),
            ErrorKind::ExternalService { service, details } => match &self.inner.upstream {
                Some(answer) if answer.status > 0 && !answer.endpoint.is_empty() => format!(
                    "HTTP {} from {service} at {}: {}",
                    answer.status, answer.endpoint, answer.body
                ),
                _ => format!("{service}: {details}"),
            },
            ErrorKind::QuotaExhausted {
                provider,
                account,
                model,
                message,
            } => {
                let mut notice = format!("OUT OF MONEY: the account at {provider} [{account}]");
                if let Some(model) = model {
                    notice.push_str(&format!(" cannot pay for {model}"));
                } else {
                    notice.push_str(" cannot pay");
                }
                notice.push_str(". Trying again does not help");
                match message {
                    Some(message) => format!("{notice}. {provider} says: {message}"),
                    None => notice,
                }
            }
            _ => sentence(&self.to_string()),
        }
    }

    /// [`llm_message`](Self::llm_message), and one line that says whether trying again with other
    /// input can help.
    #[must_use]
    pub fn explain_to_llm(&self) -> String {
        let hint = if self.is_correctable() {
            "[This may be correctable: check the input and try again with other values.]"
        } else {
            "[This is not correctable by changing the input.]"
        };
        format!("{}\n{hint}", self.llm_message())
    }

    /// The sentence for a person, where the failure has one.
    #[must_use]
    pub fn human_message(&self) -> Option<&str> {
        self.inner.human.as_deref()
    }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// A chain of causes that is longer is taken to go round in a circle.
pub(crate) const MAX_CAUSES: usize = 64;

/// The [`JobError`]s in a chain of causes that starts at `first`, which is part of it.
fn chain<'a>(
    first: Option<&'a (dyn StdError + 'static)>,
) -> impl Iterator<Item = &'a JobError> + 'a {
    std::iter::successors(first, |error| StdError::source(*error))
        .take(MAX_CAUSES)
        .filter_map(|error| error.downcast_ref::<JobError>())
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ErrorKind::InvalidInput {
                parameter,
                value,
                rule,
            } => write!(
                f,
                "parameter '{parameter}' with value '{value}' failed validation: {rule}"
            ),
            ErrorKind::ResourceNotFound { kind, id } => write!(f, "no {kind} with id '{id}'"),
            ErrorKind::Guardrail { message }
            | ErrorKind::Correctable { message }
            | ErrorKind::PermissionDenied { message }
            | ErrorKind::IllegalState { message }
            | ErrorKind::Deadlock { message }
            | ErrorKind::ModelResolution { message }
            | ErrorKind::SpendCapExceeded { message }
            | ErrorKind::Uncorrectable { message } => f.write_str(message),
            ErrorKind::ExternalService { service, details } => {
                write!(f, "{service} failed: {details}")
            }
            ErrorKind::UpstreamThrottle { service, details } => {
                write!(f, "{service} asked to slow down: {details}")
            }
            ErrorKind::Unauthorized { service, reason } => {
                write!(f, "{service} refused the credentials: {reason}")
            }
            ErrorKind::System { component, details } => {
                write!(f, "system error in {component}: {details}")
            }
            ErrorKind::Cancelled { reason } => write!(f, "cancelled: {reason}"),
            ErrorKind::TimedOut {
                budget: Some(budget),
            } => write!(f, "timed out after {budget:?}"),
            ErrorKind::TimedOut { budget: None } => f.write_str("timed out"),
            ErrorKind::DependencyFailed { dependency } => {
                write!(f, "the dependency {dependency} failed")
            }
            ErrorKind::ModelNotFound { model } => write!(f, "no model '{model}'"),
            ErrorKind::ContextOverflow(overflow) => write!(f, "{overflow}"),
            ErrorKind::QuotaExhausted {
                provider,
                account,
                message,
                ..
            } => {
                write!(f, "the account '{account}' at {provider} is out of money")?;
                match message {
                    Some(message) => write!(f, ": {message}"),
                    None => Ok(()),
                }
            }
            ErrorKind::ProviderRefusal {
                model,
                category,
                explanation,
            } => write!(f, "{model} refused ({category}): {explanation}"),
            ErrorKind::Retry(signal) => write!(f, "{signal}"),
        }
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("JobError");
        debug.field("kind", &self.inner.kind);
        if let Some(source) = &self.inner.source {
            debug.field("source", source);
        }
        if !self.inner.attached.is_empty() {
            debug.field("attached", &self.inner.attached);
        }
        debug.finish()
    }
}

impl StdError for JobError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

impl From<io::Error> for JobError {
    /// A failure of component `io`. Wrap with [`ResultExt`] where you know which service or
    /// parameter is at fault.
    fn from(error: io::Error) -> Self {
        adopt(error, |error| JobError::system("io", error.to_string()))
    }
}

/// Turns foreign errors into [`JobError`]s, saying what they mean here.
///
/// None of these swallows what is already known: a retry signal anywhere in the chain of causes
/// comes back as itself, an error that was correctable stays correctable, and one that was final for a
/// reason of its own, such as money or a cancellation, stays what it was.
pub trait ResultExt<T> {
    /// The failure of a service outside.
    ///
    /// # Errors
    /// `ExternalService` with the original as its cause.
    fn external(self, service: &str) -> Result<T, JobError>;

    /// A defect of a component of this program.
    ///
    /// # Errors
    /// `System` with the original as its cause.
    fn system(self, component: &str) -> Result<T, JobError>;

    /// A value that the caller gave for `parameter` and that cannot be used.
    ///
    /// # Errors
    /// `InvalidInput` with the original as its cause; a final [`JobError`] as it is.
    fn for_parameter(self, parameter: &str, value: impl fmt::Display) -> Result<T, JobError>;
}

impl<T, E: StdError + Send + Sync + 'static> ResultExt<T> for Result<T, E> {
    fn external(self, service: &str) -> Result<T, JobError> {
        self.map_err(|error| {
            adopt(error, |error| {
                JobError::external(service, error.to_string())
            })
        })
    }

    fn system(self, component: &str) -> Result<T, JobError> {
        self.map_err(|error| {
            adopt(error, |error| {
                JobError::system(component, error.to_string())
            })
        })
    }

    fn for_parameter(self, parameter: &str, value: impl fmt::Display) -> Result<T, JobError> {
        self.map_err(|error| {
            if let Some(signal) = retry_in(&error) {
                return signal;
            }
            let rule = match chain(Some(&error)).next() {
                // Final: no other value of the parameter would help.
                Some(known) if !known.is_correctable() => return known.clone(),
                // The name under which the model knows the parameter wins over an inner one.
                Some(known) => match known.kind() {
                    ErrorKind::InvalidInput { rule, .. } => rule.clone(),
                    _ => error.to_string(),
                },
                None => error.to_string(),
            };
            JobError::invalid_input(parameter, value, rule).with_source(error)
        })
    }
}

/// Wraps `error` as `wrap` says, unless it carries a verdict that wrapping would lose.
fn adopt<E: StdError + Send + Sync + 'static>(
    error: E,
    wrap: impl FnOnce(&E) -> JobError,
) -> JobError {
    if let Some(signal) = retry_in(&error) {
        return signal;
    }
    // What lies behind an error that is final for a reason of its own is history.
    let known = chain(Some(&error))
        .take_while(|known| !matches!(known.kind(), ErrorKind::Uncorrectable { .. }))
        .find(|known| says_more_than_that_it_failed(known));
    if let Some(known) = known {
        return known.clone();
    }
    wrap(&error).with_source(error)
}

/// Whether an error has a verdict of its own, which "a service failed" or "a component failed" would
/// hide.
fn says_more_than_that_it_failed(error: &JobError) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::ExternalService { .. }
            | ErrorKind::UpstreamThrottle { .. }
            | ErrorKind::System { .. }
            | ErrorKind::Uncorrectable { .. }
    )
}

/// A retry signal in the chain of causes. A verdict that is final, such as a spent retry budget,
/// keeps its last signal as its cause; what lies behind it is history.
fn retry_in(error: &(dyn StdError + 'static)) -> Option<JobError> {
    chain(Some(error))
        .take_while(|known| !matches!(known.kind(), ErrorKind::Uncorrectable { .. }))
        .find(|known| known.retry_signal().is_some())
        .cloned()
}

impl From<RetrySignal> for JobError {
    fn from(signal: RetrySignal) -> Self {
        Self::new(ErrorKind::Retry(signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("wrapper")]
    struct Wrapper(#[source] JobError);

    #[test]
    fn wrapping_keeps_a_final_verdict() {
        for error in [
            JobError::quota_exhausted("p", "acct"),
            JobError::cancelled("c"),
            JobError::timed_out(None),
            JobError::unauthorized("p", "key"),
            JobError::permission_denied("no"),
            JobError::model_resolution("none"),
            JobError::deadlock("d"),
            JobError::from_kind(ErrorKind::SpendCapExceeded {
                message: "cap".into(),
            }),
            JobError::system("c", "d"),
            JobError::external("s", "d"),
            JobError::uncorrectable("u").with_source(JobError::correctable("old")),
        ] {
            let kind = error.kind().name();
            let failed = || Err::<(), _>(error.clone());
            let wrapped = failed().for_parameter("cid", 3).unwrap_err();
            assert_eq!(wrapped.kind().name(), kind);
            for wrapped in [failed().external("s"), failed().system("c")] {
                let wrapped = wrapped.unwrap_err();
                assert!(!wrapped.is_correctable(), "{kind}: {wrapped}");
                let general = ["System", "ExternalService", "Uncorrectable"];
                assert!(general.contains(&kind) || wrapped.kind().name() == kind);
            }
            let inside = Err::<(), _>(Wrapper(error.clone())).for_parameter("cid", 3);
            assert_eq!(inside.unwrap_err().kind().name(), kind);
        }
    }

    // case ERR-02
    #[test]
    fn the_explanation_is_the_message_and_a_hint() {
        let fixable = JobError::invalid_input("query", "", "must not be blank");
        let mut lines = fixable.explain_to_llm();
        assert!(lines.starts_with(&fixable.llm_message()));
        assert!(lines.contains("\n[This may be correctable"));
        lines = JobError::external("PubMed", "down").explain_to_llm();
        assert!(lines.contains("\n[This is not correctable"));
    }

    // case ERR-04
    #[test]
    fn a_system_error_names_its_component_to_a_model_and_its_detail_to_the_log() {
        let error = JobError::system("Tool instantiation", "no factory for Foo");
        assert!(error.llm_message().contains("Tool instantiation"));
        assert!(!error.llm_message().contains("Foo"));
        assert!(error.to_string().contains("no factory for Foo"));
    }

    #[test]
    fn correctable_is_exactly_what_the_caller_can_mend() {
        for fixable in [
            JobError::invalid_input("a", 1, "r"),
            JobError::not_found("order", 7),
            JobError::guardrail("no"),
            JobError::correctable("again"),
        ] {
            assert!(fixable.is_correctable(), "{fixable}");
        }
        for not in [
            JobError::external("s", "d"),
            JobError::throttled("s", "d"),
            JobError::unauthorized("s", "r"),
            JobError::permission_denied("m"),
            JobError::system("c", "d"),
            JobError::cancelled("r"),
            JobError::timed_out(None),
            JobError::deadlock("m"),
            JobError::dependency_failed("x", JobError::correctable("inner")),
            JobError::uncorrectable("m"),
            RetrySignal::transient("p", "d").into(),
        ] {
            assert!(!not.is_correctable(), "{not}");
        }
    }

    // case GRD-09
    #[test]
    fn a_guard_refusal_speaks_as_a_violation() {
        let error = JobError::guardrail("not your order");
        assert_eq!(error.to_string(), "not your order");
        assert_eq!(error.llm_message(), "Guardrail violation: not your order");
    }

    // case ERR-07
    #[test]
    fn wrapping_never_swallows_a_retry_signal() {
        let signals: [RetrySignal; 5] = [
            RetrySignal::rate_limit("p", "429"),
            RetrySignal::overload("p", "529"),
            RetrySignal::transient("p", "502"),
            RetrySignal::truncated("m", 1_000, Some(4_000)),
            RetrySignal::correction("m", 1, JobError::correctable("parse")),
        ];
        for signal in signals {
            let wrapped = || Err::<(), _>(Wrapper(Wrapped::nest(signal.clone().into())));
            for error in [
                wrapped().external("svc").unwrap_err(),
                wrapped().system("part").unwrap_err(),
                wrapped().for_parameter("p", "v").unwrap_err(),
            ] {
                assert!(error.retry_signal().is_some(), "{error:?}");
            }
        }
    }

    // A caller that wraps a child's final failure must not be run again for it.
    #[test]
    fn a_spent_retry_budget_is_not_taken_for_a_signal() {
        let spent = JobError::uncorrectable("the retry budget (3) is spent")
            .with_source(JobError::from(RetrySignal::transient("p", "502")));
        let wrapped = Err::<(), _>(Wrapper(spent)).external("svc").unwrap_err();
        assert!(wrapped.retry_signal().is_none(), "{wrapped:?}");
    }

    struct Wrapped;
    impl Wrapped {
        fn nest(inner: JobError) -> JobError {
            JobError::external("middle", "wrapped").with_source(inner)
        }
    }

    #[test]
    fn wrapping_keeps_a_correctable_verdict_and_renames_the_parameter() {
        let inner = JobError::invalid_input("id", "x7", "must be a number");
        let outer = Err::<(), _>(Wrapper(inner.clone()))
            .external("svc")
            .unwrap_err();
        assert!(outer.is_correctable());
        let renamed = Err::<(), _>(inner).for_parameter("cid", "x7").unwrap_err();
        assert_eq!(
            renamed.to_string(),
            "parameter 'cid' with value 'x7' failed validation: must be a number"
        );
    }

    // case ERR-24
    #[test]
    fn the_upstream_failure_is_read_through_a_wrap_under_the_outer_service() {
        let inner = JobError::throttled("pubmed-http", "HTTP 429").with_upstream(
            UpstreamFailure::with_status(429, "pubmed-http", "rate exceeded")
                .retry_after(Duration::from_secs(42)),
        );
        let outer = Err::<(), _>(inner).external("PubMed").unwrap_err();
        let failure = outer.upstream_failure().unwrap();
        assert_eq!(failure.status, 429);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(42)));
        assert_eq!(failure.service, "PubMed");
        assert_eq!(failure.detail, "rate exceeded");
    }

    // case ERR-27
    #[test]
    fn an_upstream_failure_summarises_itself() {
        let asked = UpstreamFailure::with_status(429, "PubMed", "rate exceeded")
            .retry_after(Duration::from_secs(42));
        assert_eq!(
            asked.to_string(),
            "HTTP 429 from PubMed: rate exceeded (server asked for 42s)"
        );
        assert_eq!(
            UpstreamFailure::without_response("PubMed", "connection refused").to_string(),
            "no response from PubMed: connection refused"
        );
        assert_eq!(
            UpstreamFailure::with_status(500, "", "").to_string(),
            "HTTP 500"
        );
    }

    // case ERR-22
    #[test]
    fn an_external_failure_without_a_response_has_status_zero() {
        let failure = JobError::external("PubMed", "connection refused")
            .upstream_failure()
            .unwrap();
        assert_eq!(
            (failure.status, failure.detail.as_str()),
            (0, "connection refused")
        );
    }

    #[test]
    fn question_mark_works_on_io_errors_and_keeps_the_cause() {
        fn read() -> Result<(), JobError> {
            Err(io::Error::other("disk gone"))?;
            Ok(())
        }
        let error = read().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::System { component, .. } if component == "io"));
        assert!(StdError::source(&error).is_some());
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let error = JobError::invalid_input("text", "ä".repeat(1_000), "too long");
        assert!(error.to_string().len() < 600);
    }

    // case RTY-16
    #[test]
    fn out_of_money_is_told_as_that_and_never_run_again() {
        let error = JobError::from_kind(ErrorKind::QuotaExhausted {
            provider: "acme".into(),
            account: "team-7".into(),
            model: Some("acme-1".into()),
            message: Some("add credit".into()),
        });
        assert!(!error.is_correctable() && error.retry_signal().is_none());
        let text = error.llm_message();
        assert!(text.starts_with("OUT OF MONEY"), "{text}");
        assert!(text.contains("acme") && text.contains("[team-7]") && text.contains("acme-1"));
        assert!(text.ends_with("add credit"), "{text}");
        let bare = JobError::quota_exhausted("acme", "team-7").llm_message();
        assert!(!bare.contains(" for ") && !bare.contains("says"), "{bare}");
    }

    // case ERR-01
    #[test]
    fn money_caps_missing_models_and_refusals_are_beyond_the_caller() {
        let overflow = ContextOverflow::estimated("m", 2, 1);
        for kind in [
            ErrorKind::QuotaExhausted {
                provider: "p".into(),
                account: "a".into(),
                model: None,
                message: None,
            },
            ErrorKind::SpendCapExceeded {
                message: "past the cap".into(),
            },
            ErrorKind::ModelNotFound { model: "m".into() },
            ErrorKind::ModelResolution {
                message: "none".into(),
            },
            ErrorKind::ProviderRefusal {
                model: "m".into(),
                category: "c".into(),
                explanation: "e".into(),
            },
            ErrorKind::ContextOverflow(overflow),
        ] {
            let error = JobError::from_kind(kind);
            assert!(!error.is_correctable(), "{error}");
            assert!(error.retry_signal().is_none());
        }
    }

    // case ERR-05
    #[test]
    fn a_final_failure_reads_the_same_to_a_model_and_keeps_its_cause() {
        let cause = JobError::external("s", "d");
        let error = JobError::from_kind(ErrorKind::SpendCapExceeded {
            message: "The cap is reached".into(),
        })
        .with_source(cause);
        assert_eq!(error.llm_message(), error.to_string());
        assert!(!error.is_correctable());
        assert!(StdError::source(&error).is_some());
    }

    // case ERR-10
    #[test]
    fn a_failed_dependency_names_itself_and_is_no_fault_of_the_input() {
        let cause = JobError::invalid_input("query", "", "must not be blank");
        let error = JobError::dependency_failed("Lookup-7", cause);
        assert!(
            matches!(error.kind(), ErrorKind::DependencyFailed { dependency }
            if dependency == "Lookup-7")
        );
        assert!(!error.is_correctable() && StdError::source(&error).is_some());
        assert!(!JobError::deadlock("both wait").is_correctable());
    }

    // case ERR-25
    #[test]
    fn an_io_error_wrapped_as_a_service_has_no_status_and_its_own_text() {
        let inner = io::Error::new(io::ErrorKind::ConnectionReset, "connection reset");
        let error = Err::<(), _>(inner).external("claims").unwrap_err();
        let failure = error.upstream_failure().unwrap();
        assert_eq!((failure.status, &*failure.detail), (0, "connection reset"));
        assert_eq!(failure.service, "claims");
    }

    // case ST-12
    #[test]
    fn the_two_terminations_explain_themselves() {
        let timed_out = JobError::timed_out(Some(Duration::from_secs(300)));
        assert!(timed_out.llm_message().contains("time budget"));
        assert!(timed_out.llm_message().contains("(300s)"));
        assert!(!JobError::timed_out(None).llm_message().contains('('));
        let cancelled = JobError::cancelled("operator");
        assert!(cancelled.llm_message().contains("cancelled"));
        for error in [timed_out, cancelled] {
            assert!(error.explain_to_llm().contains("not correctable"));
        }
    }
}
