//! The signals that ask the runtime to run an attempt again (`RR`, `SIG`).
//!
//! Pure figures: which window a signal waits in, how it grows, and how much it weighs on the
//! account of the model that raised it. The loop that uses them is the dispatcher's.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{JobError, UpstreamFailure};

/// A provider's "not now", or the runtime's own reason to run an attempt again.
///
/// Raised as an error by a model client; never addressed to a model or a person.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetrySignal {
    /// 429: this caller's own budget is spent.
    RateLimit(UpstreamSignal),
    /// 529: the provider's fleet is overloaded.
    Overload(UpstreamSignal),
    /// Another 5xx, or no connection.
    Transient(UpstreamSignal),
    /// The answer was cut off; a larger budget may do.
    OutputTruncation(TruncationSignal),
    /// The reply could not be used; the job wants the model to try again.
    ResponseCorrection(CorrectionSignal),
}

/// What a provider said when it refused for now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpstreamSignal {
    /// The provider.
    pub provider: String,
    /// The entry of the catalog that was called, where that is known.
    pub model: Option<String>,
    /// Its words.
    pub details: String,
    /// Which attempt of the job ended so, from 1. The runtime sets it.
    pub attempt: u32,
    /// The response behind it, where there was one.
    pub failure: Option<UpstreamFailure>,
}

/// A model's answer ran into its output budget.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TruncationSignal {
    /// The model.
    pub model: String,
    /// The budget, in tokens, that was not enough.
    pub previous: u32,
    /// The budget to try next, where the model has a larger one.
    pub next: Option<u32>,
}

/// A model's reply could not be used.
#[derive(Clone)]
#[non_exhaustive]
pub struct CorrectionSignal {
    /// The model.
    pub model: String,
    /// Which correction this is, from 1.
    pub attempt: u32,
    /// What was wrong with the reply.
    pub cause: JobError,
}

impl fmt::Debug for CorrectionSignal {
    /// Its cause by what it says: it may be a correction itself, whose cause is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CorrectionSignal")
            .field("model", &self.model)
            .field("attempt", &self.attempt)
            .field("cause", &self.cause.to_string())
            .finish()
    }
}

/// The largest factor by which a window grows with the attempts (RR-1).
const MAX_ATTEMPT_FACTOR: u32 = 10;
/// The upper edge of every scaled window (RR-1).
const MAX_UPPER_EDGE: Duration = Duration::from_secs(300);

impl RetrySignal {
    fn upstream(provider: impl Into<String>, details: impl Into<String>) -> UpstreamSignal {
        UpstreamSignal {
            provider: provider.into(),
            model: None,
            details: details.into(),
            attempt: 1,
            failure: None,
        }
    }

    /// A 429 of this provider.
    pub fn rate_limit(provider: impl Into<String>, details: impl Into<String>) -> Self {
        Self::RateLimit(Self::upstream(provider, details))
    }

    /// A 529 of this provider.
    pub fn overload(provider: impl Into<String>, details: impl Into<String>) -> Self {
        Self::Overload(Self::upstream(provider, details))
    }

    /// Another server error of this provider, or no connection to it.
    pub fn transient(provider: impl Into<String>, details: impl Into<String>) -> Self {
        Self::Transient(Self::upstream(provider, details))
    }

    /// An answer cut off at `previous` tokens, with the budget to try next.
    pub fn truncated(model: impl Into<String>, previous: u32, next: Option<u32>) -> Self {
        Self::OutputTruncation(TruncationSignal {
            model: model.into(),
            previous,
            next,
        })
    }

    /// A reply that could not be used, for the `attempt`-th time.
    pub fn correction(model: impl Into<String>, attempt: u32, cause: JobError) -> Self {
        Self::ResponseCorrection(CorrectionSignal {
            model: model.into(),
            attempt,
            cause,
        })
    }

    /// Keeps the response behind an upstream signal; the other kinds have none.
    #[must_use]
    pub fn with_failure(mut self, failure: UpstreamFailure) -> Self {
        if let Some(signal) = self.upstream_mut() {
            signal.failure = Some(failure);
        }
        self
    }

    /// Says which entry of the catalog answered so, unless that is known; the runtime's own signals
    /// name their model themselves.
    #[must_use]
    pub fn on_model(mut self, model: &str) -> Self {
        if let Some(signal) = self.upstream_mut() {
            signal.model.get_or_insert_with(|| model.to_owned());
        }
        self
    }

    /// The same signal, raised by a later attempt. Everything else stays.
    #[must_use]
    pub fn on_attempt(mut self, attempt: u32) -> Self {
        if let Some(signal) = self.upstream_mut() {
            signal.attempt = attempt;
        }
        self
    }

    /// The model that it is about: the entry of the catalog, where that is known.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::RateLimit(signal) | Self::Overload(signal) | Self::Transient(signal) => {
                signal.model.as_deref()
            }
            Self::OutputTruncation(signal) => Some(&signal.model),
            Self::ResponseCorrection(signal) => Some(&signal.model),
        }
    }

    fn upstream_mut(&mut self) -> Option<&mut UpstreamSignal> {
        match self {
            Self::RateLimit(signal) | Self::Overload(signal) | Self::Transient(signal) => {
                Some(signal)
            }
            _ => None,
        }
    }

    /// Whether this is one of the three that a provider causes and that share one counter (RR-2).
    #[must_use]
    pub fn is_upstream(&self) -> bool {
        matches!(
            self,
            Self::RateLimit(_) | Self::Overload(_) | Self::Transient(_)
        )
    }

    /// How many throttle increments it puts on the bucket of the model that raised it (SIG).
    #[must_use]
    pub fn throttle_increments(&self) -> u32 {
        match self {
            Self::RateLimit(_) => 1,
            Self::Overload(_) => 3,
            _ => 0,
        }
    }

    /// The window in which the wait before the next attempt is drawn, after `attempt` attempts.
    ///
    /// Both edges of the signal's window are multiplied by the attempt number, at most 10, and the
    /// upper edge is never past 300 s (RR-1). A `Retry-After` above the lower edge replaces it:
    /// then the window keeps its width above that instant and the 300 s do not apply (SIG-1). The
    /// runtime's own signals do not wait.
    #[must_use]
    pub fn window(&self, attempt: u32) -> RangeInclusive<Duration> {
        let (low, high) = match self {
            Self::RateLimit(_) | Self::Transient(_) => (5, 30),
            Self::Overload(_) => (15, 90),
            _ => return Duration::ZERO..=Duration::ZERO,
        };
        let factor = attempt.clamp(1, MAX_ATTEMPT_FACTOR);
        let low = Duration::from_secs(low) * factor;
        let high = (Duration::from_secs(high) * factor).min(MAX_UPPER_EDGE);
        match self.retry_after() {
            Some(asked) if asked > low => asked..=asked.saturating_add(high - low),
            _ => low..=high,
        }
    }

    /// The response behind an upstream signal, where there was one.
    #[must_use]
    pub fn upstream_failure(&self) -> Option<&UpstreamFailure> {
        match self {
            Self::RateLimit(signal) | Self::Overload(signal) | Self::Transient(signal) => {
                signal.failure.as_ref()
            }
            _ => None,
        }
    }

    /// How long the provider asked to be left alone, where it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.upstream_failure()?.retry_after
    }
}

impl fmt::Display for RetrySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateLimit(s) => write!(f, "rate limited by {}: {}", s.provider, s.details),
            Self::Overload(s) => write!(f, "{} is overloaded: {}", s.provider, s.details),
            Self::Transient(s) => write!(f, "server error from {}: {}", s.provider, s.details),
            Self::OutputTruncation(s) => write!(
                f,
                "output truncated at {} tokens on {}",
                s.previous, s.model
            ),
            Self::ResponseCorrection(s) => write!(
                f,
                "response of {} needs correction (attempt {}): {}",
                s.model, s.attempt, s.cause
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(window: &RangeInclusive<Duration>) -> (u64, u64) {
        (window.start().as_secs(), window.end().as_secs())
    }

    // case RTY-01
    // case RTY-02
    #[test]
    fn windows_grow_with_the_attempt_and_stay_under_the_cap() {
        let rate = RetrySignal::rate_limit("p", "d");
        let transient = RetrySignal::transient("p", "d");
        let overload = RetrySignal::overload("p", "d");
        let table = [
            (1, (5, 30), (15, 90)),
            (2, (10, 60), (30, 180)),
            (3, (15, 90), (45, 270)),
            (4, (20, 120), (60, 300)),
            (10, (50, 300), (150, 300)),
            (11, (50, 300), (150, 300)),
            (u32::MAX, (50, 300), (150, 300)),
        ];
        for (attempt, own, fleet) in table {
            assert_eq!(seconds(&rate.window(attempt)), own);
            assert_eq!(seconds(&transient.window(attempt)), own);
            assert_eq!(seconds(&overload.window(attempt)), fleet);
        }
        assert_eq!(rate.throttle_increments(), 1);
        assert_eq!(overload.throttle_increments(), 3);
        assert_eq!(transient.throttle_increments(), 0);
    }

    #[test]
    fn a_retry_after_is_the_floor_of_the_wait_and_passes_the_cap() {
        let asked = |secs| {
            RetrySignal::rate_limit("p", "d").with_failure(
                UpstreamFailure::with_status(429, "p", "d").retry_after(Duration::from_secs(secs)),
            )
        };
        assert_eq!(seconds(&asked(45).window(1)), (45, 70));
        assert_eq!(seconds(&asked(3).window(1)), (5, 30));
        assert_eq!(seconds(&asked(400).window(2)), (400, 450));
    }

    #[test]
    fn the_response_behind_a_signal_is_the_errors_own() {
        let failure = UpstreamFailure::with_status(529, "p", "busy");
        let signal = RetrySignal::overload("p", "busy").with_failure(failure);
        let error = JobError::uncorrectable("gave up").with_source(JobError::from(signal));
        assert_eq!(error.upstream_failure().map(|f| f.status), Some(529));
        let bare = JobError::from(RetrySignal::overload("p", "busy"));
        assert!(bare.upstream_failure().is_none());
    }

    // case RTY-04
    #[test]
    fn a_signal_raised_again_counts_on_and_stays_the_same_otherwise() {
        let failure =
            UpstreamFailure::with_status(429, "p", "slow").retry_after(Duration::from_secs(3));
        let first = RetrySignal::rate_limit("p", "slow")
            .with_failure(failure.clone())
            .on_model("m");
        let again = first.clone().on_attempt(2).on_model("other");
        let (RetrySignal::RateLimit(first), RetrySignal::RateLimit(again)) = (first, again) else {
            unreachable!()
        };
        assert_eq!((first.attempt, again.attempt), (1, 2));
        assert_eq!(again.model.as_deref(), Some("m"));
        assert_eq!(
            (first.provider, first.details),
            (again.provider, again.details)
        );
        assert_eq!(again.failure, Some(failure));
    }

    // case RTY-15
    #[test]
    fn signals_carry_what_they_name() {
        let correction = RetrySignal::correction("m", 2, JobError::correctable("no title"));
        let text = correction.to_string();
        assert!(text.contains("attempt 2") && text.contains("no title"));
        let RetrySignal::OutputTruncation(cut) = RetrySignal::truncated("m", 1_000, Some(4_000))
        else {
            unreachable!()
        };
        assert_eq!((cut.previous, cut.next), (1_000, Some(4_000)));
    }
}
