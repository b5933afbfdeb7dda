//! Taking secrets out of errors (`ERR-4`): a provider may well quote a key that it refuses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;

use super::chain::links;
use super::hide::Redactor;
use super::{ErrorKind, Inner, JobError, RetrySignal, UpstreamFailure, UpstreamSignal};
use crate::unwind::catch;

impl JobError {
    /// The same error with no secret in it. An error that has none is the same value. A foreign cause
    /// that shows one is let go.
    pub(crate) fn redacted(self, secrets: &Redactor) -> Self {
        self.redacted_once(secrets, &RefCell::default())
    }

    /// One error may be reached over many ways, and is cleaned on one. The ways are as long as a chain
    /// may be.
    fn redacted_once(self, secrets: &Redactor, done: &RefCell<Done>) -> Self {
        let key = Arc::as_ptr(&self.inner);
        if let Some((_, clean)) = done.borrow().get(&key) {
            return clean.clone();
        }
        let clean = self.clone().cleaned(secrets, done);
        done.borrow_mut().insert(key, (self, clean.clone()));
        clean
    }

    fn cleaned(self, secrets: &Redactor, done: &RefCell<Done>) -> Self {
        let changed = Cell::new(false);
        let clean = |text: &mut String| {
            if let Some(hidden) = secrets.hide(text) {
                *text = hidden;
                changed.set(true);
            }
        };
        let inside = |error: &JobError| {
            let clean = error.clone().redacted_once(secrets, done);
            changed.set(changed.get() || !clean.is_same(error));
            clean
        };
        let cleaned =
            self.clone().edit(|inner| {
                each_text(&mut inner.kind, &clean, &inside);
                if let Some(upstream) = &mut inner.upstream {
                    each_upstream(upstream, &clean);
                }
                if let Some(human) = &mut inner.human {
                    clean(human);
                }
                for attached in &mut inner.attached {
                    *attached = inside(attached);
                }
                inner.source = inner.source.take().and_then(|source| {
                    match source.downcast_ref::<JobError>() {
                        Some(known) => Some(Arc::new(inside(known)) as _),
                        None if shown_in_chain(&*source, secrets) => {
                            changed.set(true);
                            None
                        }
                        None => Some(source),
                    }
                });
            });
        if changed.get() { cleaned } else { self }
    }
}

/// What has been cleaned, by where it is kept; with itself, so that nothing else is kept there meanwhile.
type Done = HashMap<*const Inner, (JobError, JobError)>;

fn shown_in_chain(error: &(dyn StdError + 'static), secrets: &Redactor) -> bool {
    links(error).any(|error| {
        // What cannot be asked may show anything.
        let texts = catch(|| [error.to_string(), format!("{error:?}")]);
        texts.map_or(true, |texts| texts.iter().any(|text| secrets.finds(text)))
    })
}

fn each_upstream(failure: &mut UpstreamFailure, clean: &impl Fn(&mut String)) {
    for text in [
        &mut failure.service,
        &mut failure.endpoint,
        &mut failure.detail,
        &mut failure.body,
    ] {
        clean(text);
    }
}

fn each_signal(signal: &mut UpstreamSignal, clean: &impl Fn(&mut String)) {
    clean(&mut signal.provider);
    clean(&mut signal.details);
    if let Some(model) = &mut signal.model {
        clean(model);
    }
    if let Some(failure) = &mut signal.failure {
        each_upstream(failure, clean);
    }
}

fn each_text(
    kind: &mut ErrorKind,
    clean: &impl Fn(&mut String),
    inside: &impl Fn(&JobError) -> JobError,
) {
    use ErrorKind as K;
    let texts: Vec<&mut String> = match kind {
        K::InvalidInput {
            parameter,
            value,
            rule,
        } => vec![parameter, value, rule],
        K::ResourceNotFound { kind, id } => vec![kind, id],
        K::Guardrail { message }
        | K::Correctable { message }
        | K::PermissionDenied { message }
        | K::IllegalState { message }
        | K::Deadlock { message }
        | K::ModelResolution { message }
        | K::SpendCapExceeded { message }
        | K::Uncorrectable { message } => vec![message],
        K::ExternalService { service, details } | K::UpstreamThrottle { service, details } => {
            vec![service, details]
        }
        K::Unauthorized { service, reason } => vec![service, reason],
        K::System { component, details } => vec![component, details],
        K::Cancelled { reason } => vec![reason],
        K::DependencyFailed { dependency } => vec![dependency],
        K::ModelNotFound { model } => vec![model],
        K::QuotaExhausted {
            provider,
            account,
            model,
            message,
        } => {
            let mut texts = vec![provider, account];
            texts.extend(model);
            texts.extend(message);
            texts
        }
        K::ProviderRefusal {
            model,
            category,
            explanation,
        } => vec![model, category, explanation],
        K::ContextOverflow(overflow) => vec![&mut overflow.model, &mut overflow.details],
        K::TimedOut { .. } => Vec::new(),
        K::Retry(signal) => {
            match signal {
                RetrySignal::RateLimit(upstream)
                | RetrySignal::Overload(upstream)
                | RetrySignal::Transient(upstream) => each_signal(upstream, clean),
                RetrySignal::OutputTruncation(cut) => clean(&mut cut.model),
                RetrySignal::ResponseCorrection(correction) => {
                    clean(&mut correction.model);
                    correction.cause = inside(&correction.cause);
                }
            }
            Vec::new()
        }
    };
    texts.into_iter().for_each(clean);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const KEY: &str = "sk-very-secret-7";

    fn shown(error: &JobError) -> String {
        let mut shown = format!(
            "{error} {error:?} {} {:?}",
            error.llm_message(),
            error.human_message()
        );
        shown.push_str(&format!("{:?}", error.upstream_failure()));
        let mut cause = StdError::source(error);
        while let Some(next) = cause {
            shown.push_str(&format!("{next} {next:?}"));
            if let Some(known) = next.downcast_ref::<JobError>() {
                shown.push_str(&format!("{:?}", known.upstream_failure()));
            }
            cause = next.source();
        }
        shown
    }

    #[test]
    fn a_secret_is_taken_out_wherever_it_stands() {
        let says = format!("no such key: {KEY}");
        let mut upstream = UpstreamFailure::with_status(401, "acme", says.as_str());
        upstream.body = says.clone();
        let errors = [
            JobError::unauthorized("acme", &*says).with_upstream(upstream.clone()),
            RetrySignal::rate_limit("acme", &*says)
                .with_failure(upstream.clone())
                .into(),
            RetrySignal::transient(&*says, &*says)
                .on_model(&says)
                .into(),
            RetrySignal::truncated(&*says, 1, None).into(),
            JobError::unauthorized("acme", "down")
                .with_upstream(UpstreamFailure::with_status(500, &*says, "down")),
            RetrySignal::correction("m", 1, JobError::correctable(&*says)).into(),
            JobError::uncorrectable("failed").with_source(io::Error::other(says.clone())),
            JobError::uncorrectable("failed").with_source(JobError::external("acme", &*says)),
            JobError::uncorrectable("failed")
                .with_source(JobError::uncorrectable("inner").with_upstream(upstream)),
            JobError::uncorrectable("failed").with_attached(JobError::external("acme", &*says)),
            JobError::uncorrectable("failed").with_human_message(&*says),
        ];
        for error in errors {
            assert!(shown(&error).contains(KEY), "{error:?}");
            let kind = error.kind().name();
            let clean = error.redacted(&Redactor::new([KEY]));
            assert!(!shown(&clean).contains(KEY), "{clean:?}");
            assert_eq!(clean.kind().name(), kind, "it stays what it is");
        }
    }

    #[test]
    fn an_error_without_a_secret_is_the_same_value() {
        let error = JobError::external("acme", "down").with_source(io::Error::other("reset"));
        assert!(
            error
                .clone()
                .redacted(&Redactor::new([KEY]))
                .is_same(&error)
        );
    }
}
