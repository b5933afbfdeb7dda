//! What goes wrong, told to the one who can do something about it.
//!
//! A failure has two readers: the model that called the tool, and a person. And one question
//! decides what happens next: can the caller fix it? [`JobError`] answers all three.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod chain;
mod hide;
mod http;
mod kind;
mod overflow;
mod redact;
mod retry;
mod shown;
mod text;
mod upstream;
mod wrap;

pub(crate) use chain::{chain, links, said};
pub(crate) use hide::Redactor;
pub use http::HttpFailure;
pub use kind::ErrorKind;
pub use overflow::ContextOverflow;
pub(crate) use text::text_says_out_of_money;
pub use text::{failure_text, says_out_of_money};

pub use upstream::UpstreamFailure;
pub use wrap::ResultExt;

pub use retry::{CorrectionSignal, RetrySignal, TruncationSignal, UpstreamSignal};

use crate::unwind::discard;

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
    /// How many links the longest way through its causes has, this one included.
    depth: usize,
}

/// Inputs may be long documents; an error quotes no more of one than this many characters.
const QUOTED_VALUE_CHARS: usize = 200;

fn brief(text: String) -> String {
    match text.char_indices().nth(QUOTED_VALUE_CHARS) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

impl JobError {
    fn new(kind: ErrorKind) -> Self {
        let mut inner = Inner {
            kind,
            source: None,
            attached: Vec::new(),
            upstream: None,
            human: None,
            depth: 1,
        };
        inner.bound();
        Self {
            inner: Arc::new(inner),
        }
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        change(inner);
        inner.bound();
        self
    }

    /// The value given for a parameter breaks a rule. At most 200 characters of the value are kept.
    pub fn invalid_input(
        parameter: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
    ) -> Self {
        Self::new(ErrorKind::InvalidInput {
            parameter: parameter.into(),
            value: brief(value.to_string()),
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

    /// Keeps `source` as the cause. Of a chain that has become longer than 64 links the two ends are kept, and
    /// how many were left out in between.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|inner| discard(inner.source.replace(Arc::new(source))))
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
        let mut named: Option<&String> = None;
        let mut unanswered = None;
        for known in self.known_links() {
            let failed = match known.kind() {
                ErrorKind::ExternalService { service, details }
                | ErrorKind::UpstreamThrottle { service, details } => Some((service, details)),
                _ => None,
            };
            named = named.or(failed.map(|(service, _)| service));
            let own = known.inner.upstream.as_ref();
            let carried = own.or_else(|| known.retry_signal()?.upstream_failure());
            if let Some(mut failure) = carried.cloned() {
                if let Some(service) = named {
                    failure.service.clone_from(service);
                }
                return Some(failure);
            }
            unanswered = failed.or(unanswered);
        }
        let (service, details) = unanswered?;
        Some(UpstreamFailure::without_response(
            named.unwrap_or(service),
            details,
        ))
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
}

impl StdError for JobError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

impl From<RetrySignal> for JobError {
    fn from(signal: RetrySignal) -> Self {
        Self::new(ErrorKind::Retry(signal))
    }
}

#[cfg(test)]
mod tests;
