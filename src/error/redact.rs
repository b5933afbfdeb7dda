//! Taking secrets out of errors (`ERR-4`): a provider may well quote a key that it refuses.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;

use super::chain::links;
use super::{ErrorKind, Inner, JobError, RetrySignal, UpstreamFailure, UpstreamSignal};

/// What stands where a secret was.
const REDACTED: &str = "[secret]";

impl JobError {
    /// The same error with none of these texts in it. An error that has none is the same value. A
    /// foreign cause that shows one is let go.
    pub(crate) fn redacted(self, secrets: &[&str]) -> Self {
        let mut done = HashMap::new();
        self.redacted_once(secrets, &mut done)
    }

    /// One error may be reached over many ways, and is cleaned on one. The ways are as long as a chain may be.
    fn redacted_once(self, secrets: &[&str], done: &mut Done) -> Self {
        let key = Arc::as_ptr(&self.inner);
        if let Some((_, clean)) = done.get(&key) {
            return clean.clone();
        }
        let clean = self.clone().cleaned(secrets, done);
        done.insert(key, (self, clean.clone()));
        clean
    }

    fn cleaned(self, secrets: &[&str], done: &mut Done) -> Self {
        let shows = |text: &str| secrets.iter().any(|secret| text.contains(secret));
        if !self.hides(&shows) {
            return self;
        }
        let clean = |text: &mut String| {
            for secret in secrets {
                if text.contains(secret) {
                    *text = text.replace(secret, REDACTED);
                }
            }
        };
        self.edit(|inner| {
            each_text(&mut inner.kind, &clean);
            if let ErrorKind::Retry(RetrySignal::ResponseCorrection(correction)) = &mut inner.kind {
                correction.cause = correction.cause.clone().redacted_once(secrets, done);
            }
            if let Some(upstream) = &mut inner.upstream {
                each_upstream(upstream, &clean);
            }
            if let Some(human) = &mut inner.human {
                clean(human);
            }
            for attached in &mut inner.attached {
                *attached = attached.clone().redacted_once(secrets, done);
            }
            inner.source =
                inner
                    .source
                    .take()
                    .and_then(|source| match source.downcast_ref::<JobError>() {
                        Some(known) => {
                            let known = known.clone().redacted_once(secrets, done);
                            Some(Arc::new(known) as _)
                        }
                        None => (!shown_in_chain(&*source, &shows)).then_some(source),
                    });
        })
    }

    /// Whether it has one anywhere, in what it shows or keeps to itself.
    fn hides(&self, shows: &impl Fn(&str) -> bool) -> bool {
        let mut found = false;
        self.each(|error| found = found || error.hides_itself(shows));
        found
    }

    fn hides_itself(&self, shows: &impl Fn(&str) -> bool) -> bool {
        let answered = |failure: &UpstreamFailure| {
            [&failure.detail, &failure.body, &failure.endpoint]
                .into_iter()
                .any(|text| shows(text))
        };
        shows(&self.to_string())
            || shows(&format!("{:?}", self.inner.kind))
            || self.inner.upstream.as_ref().is_some_and(answered)
            || self.inner.human.as_deref().is_some_and(shows)
            || self.inner.source.as_ref().is_some_and(|source| {
                // One of this type is looked at for itself.
                !source.is::<JobError>() && shown_in_chain(&**source, shows)
            })
    }
}

/// What has been cleaned, by where it is kept; with itself, so that nothing else is kept there meanwhile.
type Done = HashMap<*const Inner, (JobError, JobError)>;

fn shown_in_chain(error: &(dyn StdError + 'static), shows: &impl Fn(&str) -> bool) -> bool {
    links(error).any(|error| shows(&error.to_string()) || shows(&format!("{error:?}")))
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
    if let Some(failure) = &mut signal.failure {
        each_upstream(failure, clean);
    }
}

fn each_text(kind: &mut ErrorKind, clean: &impl Fn(&mut String)) {
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
                // Its cause is an error like any other.
                RetrySignal::ResponseCorrection(correction) => clean(&mut correction.model),
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
            let clean = error.redacted(&[KEY]);
            assert!(!shown(&clean).contains(KEY), "{clean:?}");
            assert_eq!(clean.kind().name(), kind, "it stays what it is");
        }
    }

    #[test]
    fn an_error_without_a_secret_is_the_same_value() {
        let error = JobError::external("acme", "down").with_source(io::Error::other("reset"));
        assert!(error.clone().redacted(&[KEY]).is_same(&error));
    }
}
