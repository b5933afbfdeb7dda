//! The names of the concrete events, and which family each is of (`EVT-1`..`EVT-4`).

use std::fmt;

/// A concrete type of event. Every event has exactly one, and every one is of exactly one
/// [`EventFamily`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// [`JobScheduled`](super::JobScheduled).
    JobScheduled,
    /// [`JobStarted`](super::JobStarted).
    JobStarted,
    /// [`JobCompleted`](super::JobCompleted).
    JobCompleted,
    /// [`JobFailed`](super::JobFailed).
    JobFailed,
    /// [`JobTimedOut`](super::JobTimedOut).
    JobTimedOut,
    /// [`JobCancelled`](super::JobCancelled).
    JobCancelled,
    /// [`DependencyFailure`](super::DependencyFailure).
    DependencyFailure,
    /// [`OrchestratorIdle`](super::OrchestratorIdle).
    OrchestratorIdle,
    /// [`OrchestratorResumed`](super::OrchestratorResumed).
    OrchestratorResumed,
    /// [`WorkflowComplete`](super::WorkflowComplete).
    WorkflowComplete,
    /// [`JobProgress`](super::JobProgress).
    JobProgress,
    /// [`ContentStream`](super::ContentStream).
    ContentStream,
    /// [`Notification`](super::Notification).
    Notification,
    /// [`RateLimitRetry`](super::RateLimitRetry).
    RateLimitRetry,
    /// [`TransientRetry`](super::TransientRetry).
    TransientRetry,
    /// [`OutputTruncationRetry`](super::OutputTruncationRetry).
    OutputTruncationRetry,
    /// [`ResponseCorrectionRetry`](super::ResponseCorrectionRetry).
    ResponseCorrectionRetry,
    /// [`LimiterEvent`](super::LimiterEvent).
    Limiter,
    /// [`SchedulerStarted`](super::SchedulerStarted).
    SchedulerStarted,
    /// [`SchedulerStopping`](super::SchedulerStopping).
    SchedulerStopping,
    /// [`SchedulerStopped`](super::SchedulerStopped).
    SchedulerStopped,
    /// [`SchedulerError`](super::SchedulerError).
    SchedulerError,
    /// [`HeartbeatRequested`](super::HeartbeatRequested).
    HeartbeatRequested,
    /// [`CancelHeartbeat`](super::CancelHeartbeat).
    CancelHeartbeat,
    /// [`HeartbeatScheduled`](super::HeartbeatScheduled).
    HeartbeatScheduled,
    /// [`HeartbeatRebound`](super::HeartbeatRebound).
    HeartbeatRebound,
    /// [`HeartbeatFired`](super::HeartbeatFired).
    HeartbeatFired,
    /// [`HeartbeatFireFailed`](super::HeartbeatFireFailed).
    HeartbeatFireFailed,
    /// [`AppEventEnvelope`](super::AppEventEnvelope): an application's own event.
    App,
}

impl EventKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::JobScheduled,
        Self::JobStarted,
        Self::JobCompleted,
        Self::JobFailed,
        Self::JobTimedOut,
        Self::JobCancelled,
        Self::DependencyFailure,
        Self::OrchestratorIdle,
        Self::OrchestratorResumed,
        Self::WorkflowComplete,
        Self::JobProgress,
        Self::ContentStream,
        Self::Notification,
        Self::RateLimitRetry,
        Self::TransientRetry,
        Self::OutputTruncationRetry,
        Self::ResponseCorrectionRetry,
        Self::Limiter,
        Self::SchedulerStarted,
        Self::SchedulerStopping,
        Self::SchedulerStopped,
        Self::SchedulerError,
        Self::HeartbeatRequested,
        Self::CancelHeartbeat,
        Self::HeartbeatScheduled,
        Self::HeartbeatRebound,
        Self::HeartbeatFired,
        Self::HeartbeatFireFailed,
        Self::App,
    ];

    /// The family that the kind is of.
    #[must_use]
    pub const fn family(self) -> EventFamily {
        match self {
            Self::JobScheduled
            | Self::JobStarted
            | Self::JobCompleted
            | Self::JobFailed
            | Self::JobTimedOut
            | Self::JobCancelled
            | Self::DependencyFailure
            | Self::OrchestratorIdle
            | Self::OrchestratorResumed => EventFamily::Lifecycle,
            Self::WorkflowComplete => EventFamily::Workflow,
            Self::JobProgress | Self::ContentStream => EventFamily::Progress,
            Self::Notification => EventFamily::Notification,
            Self::RateLimitRetry
            | Self::TransientRetry
            | Self::OutputTruncationRetry
            | Self::ResponseCorrectionRetry => EventFamily::Retry,
            Self::Limiter => EventFamily::Limiter,
            Self::SchedulerStarted
            | Self::SchedulerStopping
            | Self::SchedulerStopped
            | Self::SchedulerError => EventFamily::Scheduler,
            Self::HeartbeatRequested
            | Self::CancelHeartbeat
            | Self::HeartbeatScheduled
            | Self::HeartbeatRebound
            | Self::HeartbeatFired
            | Self::HeartbeatFireFailed => EventFamily::Heartbeat,
            Self::App => EventFamily::App,
        }
    }

    /// Whether it says that a job ended with a result.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::JobCompleted)
    }

    /// Whether it says that a job ended in failure. A cancellation is none.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::JobFailed | Self::JobTimedOut | Self::DependencyFailure
        )
    }

    /// Whether it is the last lifecycle event of a job.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::JobCompleted
                | Self::JobFailed
                | Self::JobTimedOut
                | Self::JobCancelled
                | Self::DependencyFailure
        )
    }

    /// The kind's bit in a mask of kinds.
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A group of events that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventFamily {
    /// Where jobs are: [`LifecycleEvent`](super::LifecycleEvent).
    Lifecycle,
    /// Root jobs that ended: [`WorkflowComplete`](super::WorkflowComplete).
    Workflow,
    /// What jobs say while they run: [`ProgressEvent`](super::ProgressEvent).
    Progress,
    /// Messages for people: [`Notification`](super::Notification).
    Notification,
    /// Attempts that will run again: [`RetryEvent`](super::RetryEvent).
    Retry,
    /// Accounts that moved: [`LimiterEvent`](super::LimiterEvent).
    Limiter,
    /// The dispatcher itself: [`SchedulerEvent`](super::SchedulerEvent).
    Scheduler,
    /// Work on a schedule: [`HeartbeatEvent`](super::HeartbeatEvent).
    Heartbeat,
    /// The application's own events: [`AppEvent`](super::AppEvent).
    App,
}

impl EventFamily {
    /// The bits of all kinds in the family.
    pub(crate) const fn mask(self) -> u64 {
        let mut mask = 0;
        let mut at = 0;
        while at < EventKind::ALL.len() {
            if EventKind::ALL[at].family() as u8 == self as u8 {
                mask |= EventKind::ALL[at].bit();
            }
            at += 1;
        }
        mask
    }
}

impl fmt::Display for EventFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
