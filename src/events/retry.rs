//! Attempts that will run again: the retry family (`EVT-4`, `RR-5`).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::kind::EventKind;
use crate::job::JobSnapshot;

/// An attempt ended in a way that calls for another.
#[derive(Clone, Debug)]
pub enum RetryEvent {
    /// The provider asked this caller to slow down.
    RateLimit(RateLimitRetry),
    /// The provider failed, is overloaded or could not be reached.
    Transient(TransientRetry),
    /// The model's answer was cut off.
    OutputTruncation(OutputTruncationRetry),
    /// The model's reply could not be used.
    ResponseCorrection(ResponseCorrectionRetry),
}

/// Which limit a provider said was hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThrottleKind {
    /// The use grew too fast.
    Acceleration,
    /// The budget is spent.
    Capacity,
    /// The provider did not say. The default.
    #[default]
    Unknown,
}

impl fmt::Display for ThrottleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Acceleration => "ACCELERATION",
            Self::Capacity => "CAPACITY",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// The provider asked this caller to slow down.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RateLimitRetry {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The provider.
    pub provider: Arc<str>,
    /// The model, or the provider where no model is known.
    pub model: Arc<str>,
    /// What the provider said.
    pub details: Arc<str>,
    /// Which attempt ended so, from 1.
    pub attempt: u32,
    /// How long the next one waits, where it waits.
    pub delay: Option<Duration>,
    /// Which limit was hit.
    pub limit: ThrottleKind,
    /// What the runtime adds to the weight of the model's tokens for now: 0.5 is half as much
    /// again.
    pub throttle: f64,
}

/// The provider failed, is overloaded or could not be reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransientRetry {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The provider.
    pub provider: Arc<str>,
    /// What it said, or what happened.
    pub details: Arc<str>,
    /// Which attempt ended so, from 1.
    pub attempt: u32,
    /// How long the next one waits, where it waits.
    pub delay: Option<Duration>,
    /// Whether the provider said that it is overloaded.
    pub overload: bool,
}

/// The model's answer was cut off.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutputTruncationRetry {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The model.
    pub model: Arc<str>,
    /// Which attempt ended so, from 1.
    pub attempt: u32,
    /// The budget, in tokens, that was not enough.
    pub previous: u32,
    /// The budget of the next attempt, in tokens.
    pub next: u32,
}

/// The model's reply could not be used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResponseCorrectionRetry {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The model.
    pub model: Arc<str>,
    /// Which correction this is, from 1.
    pub attempt: u32,
    /// The name of the failure's kind, as [`ErrorKind::name`](crate::ErrorKind::name) gives it.
    pub failure: Arc<str>,
    /// What was wrong with the reply.
    pub details: Arc<str>,
}

impl RetryEvent {
    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::RateLimit(_) => EventKind::RateLimitRetry,
            Self::Transient(_) => EventKind::TransientRetry,
            Self::OutputTruncation(_) => EventKind::OutputTruncationRetry,
            Self::ResponseCorrection(_) => EventKind::ResponseCorrectionRetry,
        }
    }

    pub(super) fn stamp(&self) -> (&JobSnapshot, SystemTime) {
        match self {
            Self::RateLimit(event) => (&event.snapshot, event.at),
            Self::Transient(event) => (&event.snapshot, event.at),
            Self::OutputTruncation(event) => (&event.snapshot, event.at),
            Self::ResponseCorrection(event) => (&event.snapshot, event.at),
        }
    }

    /// The job that it is about.
    #[must_use]
    pub fn snapshot(&self) -> &JobSnapshot {
        self.stamp().0
    }

    /// Which attempt ended so, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::RateLimit(event) => event.attempt,
            Self::Transient(event) => event.attempt,
            Self::OutputTruncation(event) => event.attempt,
            Self::ResponseCorrection(event) => event.attempt,
        }
    }

    /// How long the next attempt waits; `None` when it follows at once.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        match self {
            Self::RateLimit(event) => event.delay,
            Self::Transient(event) => event.delay,
            Self::OutputTruncation(_) | Self::ResponseCorrection(_) => None,
        }
    }
}
