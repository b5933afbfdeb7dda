//! What a provider says of its limits (`RLI`).

use std::time::Duration;

/// How long a provider that says nothing else is left alone after a refusal.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// What the figures of a [`RateLimitInfo`] are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitKind {
    /// The provider refused and did not say why.
    Unknown,
    /// The provider told how much capacity there is.
    Capacity,
}

/// What a provider said of its limits, in a refusal or in the headers of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitInfo {
    /// Whether it refused.
    pub rate_limited: bool,
    /// What its figures are about.
    pub kind: RateLimitKind,
    /// How long it asks to be left alone.
    pub retry_after: Option<Duration>,
    /// Tokens that may be used in a minute.
    pub token_limit: Option<u64>,
    /// Tokens that are left of them.
    pub remaining_tokens: Option<u64>,
    /// Requests that may be made in a minute.
    pub request_limit: Option<u64>,
    /// Requests that are left of them.
    pub remaining_requests: Option<u64>,
    /// When the limit starts anew, in the provider's words.
    pub reset: Option<String>,
}

impl RateLimitInfo {
    /// A refusal that says nothing else: nothing is left, for a minute.
    #[must_use]
    pub fn hit() -> Self {
        Self {
            rate_limited: true,
            kind: RateLimitKind::Unknown,
            retry_after: Some(RETRY_AFTER),
            token_limit: None,
            remaining_tokens: Some(0),
            request_limit: None,
            remaining_requests: Some(0),
            reset: None,
        }
    }

    /// What the headers about tokens of an answer say. A header that is missing or is no number is
    /// none.
    #[must_use]
    pub fn from_token_headers(
        limit: Option<&str>,
        remaining: Option<&str>,
        reset: Option<&str>,
    ) -> Self {
        Self {
            rate_limited: false,
            kind: RateLimitKind::Capacity,
            retry_after: None,
            token_limit: figure(limit),
            remaining_tokens: figure(remaining),
            request_limit: None,
            remaining_requests: None,
            reset: reset.map(str::to_owned),
        }
    }

    /// Tokens per minute, zero where the provider does not say.
    #[must_use]
    pub fn tokens_per_minute(&self) -> u64 {
        self.token_limit.unwrap_or(0)
    }

    /// Requests per minute, zero where the provider does not say.
    #[must_use]
    pub fn requests_per_minute(&self) -> u64 {
        self.request_limit.unwrap_or(0)
    }
}

fn figure(header: Option<&str>) -> Option<u64> {
    header?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // case RLI-01
    #[test]
    fn a_bare_refusal_leaves_nothing_for_a_minute() {
        let hit = RateLimitInfo::hit();
        assert!(hit.rate_limited);
        assert_eq!(hit.kind, RateLimitKind::Unknown);
        assert_eq!(hit.retry_after, Some(Duration::from_secs(60)));
        assert_eq!(
            (hit.remaining_tokens, hit.remaining_requests),
            (Some(0), Some(0))
        );
        assert_eq!((hit.token_limit, hit.request_limit), (None, None));
        assert_eq!((hit.tokens_per_minute(), hit.requests_per_minute()), (0, 0));
    }

    // case RLI-02
    #[test]
    fn headers_tell_capacity() {
        let info = RateLimitInfo::from_token_headers(Some("90000"), Some("42"), Some("6m0s"));
        assert!(!info.rate_limited);
        assert_eq!(info.kind, RateLimitKind::Capacity);
        assert_eq!(
            (info.token_limit, info.remaining_tokens),
            (Some(90_000), Some(42))
        );
        assert_eq!(info.reset.as_deref(), Some("6m0s"));
        assert_eq!((info.retry_after, info.request_limit), (None, None));
        assert_eq!(info.tokens_per_minute(), 90_000);
    }

    // case RLI-04
    #[test]
    fn a_header_that_is_no_number_is_none() {
        assert_eq!(figure(Some("42")), Some(42));
        assert_eq!(figure(Some(" 42 ")), Some(42));
        for none in [None, Some("n/a"), Some("")] {
            assert_eq!(figure(none), None);
        }
    }
}
