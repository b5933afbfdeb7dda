//! What an HTTP status means (`ERR-5`): by what to do about it.

use std::fmt;
use std::time::Duration;

use super::{ErrorKind, JobError, UpstreamFailure};

/// How much of a body is kept.
const KEPT_BODY_BYTES: usize = 1_024;

/// An answer of a service that is no success, as it came. It becomes the error that says what to do
/// about it.
///
/// | status | error |
/// |---|---|
/// | 400, 413, 422 | `InvalidInput`: the caller can mend it |
/// | 401, 403 | `Unauthorized`, unless the body says that it is about the rate: then as 429 |
/// | 404 on a fetch by id | `ResourceNotFound` |
/// | 429 | `UpstreamThrottle` |
/// | everything else | `ExternalService` |
///
/// Whatever it becomes, the answer stays reachable as
/// [`upstream_failure`](JobError::upstream_failure).
///
/// ```
/// use nucleo_runtime::{ErrorKind, HttpFailure, JobError};
///
/// let error: JobError = HttpFailure::new(404, "PubMed", "/articles/7?key=k")
///     .fetching("article", "7")
///     .into();
/// assert!(matches!(error.kind(), ErrorKind::ResourceNotFound { .. }));
/// let upstream = error.upstream_failure().unwrap();
/// assert_eq!((upstream.status, upstream.endpoint.as_str()), (404, "/articles/7"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "it is an error once it has been turned into one"]
pub struct HttpFailure {
    failure: UpstreamFailure,
    fetched: Option<(String, String)>,
}

impl HttpFailure {
    /// The status that `service` answered at `endpoint`. A query is cut off: it may hold what is
    /// not to be shown.
    pub fn new(status: u16, service: impl Into<String>, endpoint: &str) -> Self {
        let mut failure = UpstreamFailure::with_status(status, service, "");
        failure.endpoint = endpoint
            .split_once('?')
            .map_or(endpoint, |(path, _)| path)
            .to_owned();
        Self {
            failure,
            fetched: None,
        }
    }

    /// The body; its first kilobyte is kept.
    pub fn body(mut self, body: &str) -> Self {
        self.failure.body = first_kilobyte(body).to_owned();
        self
    }

    /// How long the service asked to be left alone.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.failure.retry_after = Some(wait);
        self
    }

    /// Says that the request was for the one thing of this kind that has this id, so that a 404
    /// means that there is none.
    pub fn fetching(mut self, kind: impl Into<String>, id: impl fmt::Display) -> Self {
        self.fetched = Some((kind.into(), id.to_string()));
        self
    }

    /// Fails for a status of 400 and up, and lets every other pass.
    ///
    /// # Errors
    /// What the status means.
    pub fn check(self) -> Result<(), JobError> {
        if self.failure.status < 400 {
            Ok(())
        } else {
            Err(self.into())
        }
    }

    fn kind(&self) -> ErrorKind {
        let UpstreamFailure {
            status,
            service,
            endpoint,
            detail,
            body,
            ..
        } = &self.failure;
        let throttled = || ErrorKind::UpstreamThrottle {
            service: service.clone(),
            details: detail.clone(),
        };
        match (status, &self.fetched) {
            (400 | 413 | 422, _) => ErrorKind::InvalidInput {
                parameter: "request".to_owned(),
                value: endpoint.clone(),
                rule: format!("{service} answered {detail}"),
            },
            (401 | 403, _) if says_throttle(body) => throttled(),
            (401 | 403, _) => ErrorKind::Unauthorized {
                service: service.clone(),
                reason: detail.clone(),
            },
            (404, Some((kind, id))) => ErrorKind::ResourceNotFound {
                kind: kind.clone(),
                id: id.clone(),
            },
            (429, _) => throttled(),
            _ => ErrorKind::ExternalService {
                service: service.clone(),
                details: detail.clone(),
            },
        }
    }
}

impl From<HttpFailure> for JobError {
    fn from(mut answer: HttpFailure) -> Self {
        let UpstreamFailure {
            status,
            endpoint,
            body,
            ..
        } = &answer.failure;
        answer.failure.detail = format!("HTTP {status} at {endpoint}: {body}");
        let kind = answer.kind();
        JobError::from_kind(kind).with_upstream(answer.failure)
    }
}

/// Some services answer 403 to who calls too often.
fn says_throttle(body: &str) -> bool {
    let body = body.to_lowercase();
    [
        "rate limit",
        "rate_limit",
        "ratelimit",
        "throttl",
        "too many requests",
    ]
    .iter()
    .any(|word| body.contains(word))
}

/// The first kilobyte, cut between characters.
pub(super) fn first_kilobyte(text: &str) -> &str {
    let end = (0..=KEPT_BODY_BYTES.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: u16, endpoint: &str, body: &str) -> JobError {
        HttpFailure::new(status, "svc", endpoint).body(body).into()
    }

    fn carried(error: &JobError) -> (u16, String, String, String) {
        let failure = error.upstream_failure().unwrap();
        (
            failure.status,
            failure.service,
            failure.endpoint,
            failure.body,
        )
    }

    // case ERR-11
    // case ERR-12
    // case ERR-14
    // case ERR-15
    #[test]
    fn a_status_becomes_what_to_do_about_it_and_stays_reachable() {
        for (status, kind) in [
            (400, "InvalidInput"),
            (413, "InvalidInput"),
            (422, "InvalidInput"),
            (401, "Unauthorized"),
            (403, "Unauthorized"),
            (404, "ExternalService"),
            (429, "UpstreamThrottle"),
            (500, "ExternalService"),
            (502, "ExternalService"),
            (503, "ExternalService"),
        ] {
            let error = error(status, "/x", "said so");
            assert_eq!(error.kind().name(), kind, "{status}");
            assert_eq!(error.is_correctable(), kind == "InvalidInput");
            let text = "said so".to_owned();
            assert_eq!(carried(&error), (status, "svc".into(), "/x".into(), text));
        }
        let throttled = error(403, "/x", "Rate limit exceeded");
        assert_eq!(throttled.kind().name(), "UpstreamThrottle");
        let found: JobError = HttpFailure::new(404, "svc", "/x/7").fetching("x", 7).into();
        assert!(found.is_correctable());
    }

    // case ERR-16
    // case ERR-19
    #[test]
    fn a_status_without_a_meaning_is_told_as_it_is_and_without_the_query() {
        let error = error(418, "/brew?cup=7", "short and stout");
        assert!(
            matches!(error.kind(), ErrorKind::ExternalService { details, .. }
            if details == "HTTP 418 at /brew: short and stout")
        );
        assert_eq!(
            error.llm_message(),
            "HTTP 418 from svc at /brew: short and stout"
        );
        assert_eq!(carried(&error).2, "/brew");
        for text in [error.to_string(), format!("{error:?}"), error.llm_message()] {
            assert!(!text.contains("cup"), "{text}");
        }
    }

    // case ERR-17
    #[test]
    fn only_a_status_of_400_and_up_is_a_failure() {
        for passes in [200, 302, 399] {
            assert!(HttpFailure::new(passes, "svc", "/").check().is_ok());
        }
        for fails in [400, 503] {
            assert!(HttpFailure::new(fails, "svc", "/").check().is_err());
        }
    }

    // case ERR-20
    // case ERR-21
    #[test]
    fn a_retry_after_is_kept_and_none_is_made_up() {
        let waits: JobError = HttpFailure::new(429, "svc", "/x")
            .retry_after(Duration::from_secs(42))
            .into();
        let asked = waits.upstream_failure().and_then(|f| f.retry_after);
        assert_eq!(asked, Some(Duration::from_secs(42)));
        let failure = error(503, "/x", "down").upstream_failure().unwrap();
        assert_eq!(failure.detail, "HTTP 503 at /x: down");
        assert_eq!((failure.status, failure.retry_after), (503, None));
    }

    #[test]
    fn no_more_than_a_kilobyte_of_a_body_is_kept() {
        let kept = carried(&error(500, "/x", &"ä".repeat(2_000))).3;
        assert_eq!(kept.len(), KEPT_BODY_BYTES);
        assert_eq!(
            first_kilobyte(&format!("a{}", "ä".repeat(600))).len(),
            1_023
        );
    }
}
