//! Taking secrets out of errors (`ERR-4`): a provider may well quote a key that it refuses.

use std::error::Error as StdError;

use super::{ErrorKind, JobError, RetrySignal, UpstreamFailure, UpstreamSignal};

/// What stands where a secret was.
const REDACTED: &str = "[secret]";

impl JobError {
    /// The same error with none of these texts in it. An error that has none is the same value. A
    /// foreign cause that shows one is let go.
    pub(crate) fn redacted(self, secrets: &[&str]) -> Self {
        let shows = |text: &str| secrets.iter().any(|secret| text.contains(secret));
        if !shows(&self.to_string()) && !shows(&format!("{self:?}")) && !self.hides(&shows) {
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
            each_text(&mut inner.kind, secrets, &clean);
            if let Some(upstream) = &mut inner.upstream {
                each_upstream(upstream, &clean);
            }
            if let Some(human) = &mut inner.human {
                clean(human);
            }
            for attached in &mut inner.attached {
                *attached = attached.clone().redacted(secrets);
            }
            inner.source =
                inner
                    .source
                    .take()
                    .and_then(|source| match source.downcast_ref::<JobError>() {
                        Some(known) => {
                            let known = known.clone().redacted(secrets);
                            Some(std::sync::Arc::new(known) as _)
                        }
                        None => (!shown_in_chain(&*source, &shows)).then_some(source),
                    });
        })
    }

    /// Whether a part that neither `Display` nor `Debug` shows has one.
    fn hides(&self, shows: &dyn Fn(&str) -> bool) -> bool {
        let own = |failure: &UpstreamFailure| {
            [&failure.detail, &failure.body, &failure.endpoint]
                .into_iter()
                .any(|text| shows(text))
        };
        self.inner.upstream.as_ref().is_some_and(own)
            || self.inner.human.as_deref().is_some_and(shows)
            || self.inner.source.as_ref().is_some_and(|source| {
                shown_in_chain(&**source, &shows)
                    || source
                        .downcast_ref::<JobError>()
                        .is_some_and(|known| known.hides(shows))
            })
            || self
                .inner
                .attached
                .iter()
                .any(|other| shows(&other.to_string()) || other.hides(shows))
    }
}

fn shown_in_chain(error: &(dyn StdError + 'static), shows: &impl Fn(&str) -> bool) -> bool {
    std::iter::successors(Some(error), |error| StdError::source(*error))
        .take(super::MAX_CAUSES)
        .any(|error| shows(&error.to_string()) || shows(&format!("{error:?}")))
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

fn each_text(kind: &mut ErrorKind, secrets: &[&str], clean: &impl Fn(&mut String)) {
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
                    correction.cause = correction.cause.clone().redacted(secrets);
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
