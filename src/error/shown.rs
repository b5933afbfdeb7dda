//! What an error says: to a log, to a model and to a person.

use std::error::Error as StdError;
use std::fmt;

use super::chain::{links, said};
use super::{ErrorKind, JobError};

impl JobError {
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

/// How many causes, and how many other failures, a `Debug` shows.
const SHOWN: usize = 16;

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("JobError");
        debug.field("kind", &self.inner.kind);
        let causes: Vec<&(dyn StdError + 'static)> = links(self).skip(1).collect();
        if !causes.is_empty() {
            debug.field("causes", &Texts(&causes));
        }
        if !self.inner.attached.is_empty() {
            debug.field("attached", &Texts(&self.inner.attached));
        }
        debug.finish()
    }
}

/// What failures say of themselves. Not their own `Debug`, which shows their causes once more, so that of a
/// chain everything would be shown as often as it is long.
struct Texts<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Debug for Texts<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        list.entries(self.0.iter().take(SHOWN).map(said));
        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => list.finish(),
            Some(more) => list.entry(&format_args!("{more} more")).finish(),
        }
    }
}
