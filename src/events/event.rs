//! The one type that travels on the bus.

use std::sync::Arc;
use std::time::SystemTime;

use super::app::{AppEvent, AppEventEnvelope};
use super::kind::{EventFamily, EventKind};
use super::lifecycle::{self as life, LifecycleEvent, ModelCall, TerminalInfo};
use super::message;
use super::operation::{self as op, HeartbeatEvent, LimiterEvent, SchedulerError, SchedulerEvent};
use super::progress::{self as prog, Notification, Phase, ProgressEvent, WorkflowComplete};
use super::retry::{self, RetryEvent};
use crate::error::JobError;
use crate::job::JobSnapshot;
use crate::job::behalf;
use crate::job::snapshot::JobProfile;

/// Something that happened. Immutable, and stamped when it is made.
#[derive(Clone, Debug)]
pub enum Event {
    /// Where a job is.
    Lifecycle(LifecycleEvent),
    /// A root job ended.
    Workflow(WorkflowComplete),
    /// What a job says while it runs.
    Progress(ProgressEvent),
    /// A message for a person.
    Notification(Notification),
    /// An attempt will run again.
    Retry(RetryEvent),
    /// An account moved.
    Limiter(LimiterEvent),
    /// The dispatcher about itself.
    Scheduler(SchedulerEvent),
    /// Work on a schedule.
    Heartbeat(HeartbeatEvent),
    /// The application's own.
    App(AppEventEnvelope),
}

impl Event {
    /// An application's event that no job published.
    pub fn app(event: Arc<dyn AppEvent>, at: SystemTime) -> Self {
        Self::App(AppEventEnvelope {
            event,
            snapshot: None,
            at,
            by: behalf::here(),
        })
    }

    /// Something went wrong that is no job's fault.
    pub fn scheduler_error(message: impl Into<Arc<str>>, at: SystemTime) -> Self {
        Self::Scheduler(SchedulerEvent::Error(SchedulerError {
            at,
            message: message.into(),
        }))
    }

    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Lifecycle(event) => event.kind(),
            Self::Workflow(_) => EventKind::WorkflowComplete,
            Self::Progress(event) => event.kind(),
            Self::Notification(_) => EventKind::Notification,
            Self::Retry(event) => event.kind(),
            Self::Limiter(_) => EventKind::Limiter,
            Self::Scheduler(event) => event.kind(),
            Self::Heartbeat(event) => event.kind(),
            Self::App(_) => EventKind::App,
        }
    }

    /// Which family it is of.
    #[must_use]
    pub fn family(&self) -> EventFamily {
        self.kind().family()
    }

    /// The job that it is about; `None` when it is about none.
    #[must_use]
    pub fn snapshot(&self) -> Option<&JobSnapshot> {
        match self {
            Self::Lifecycle(event) => Some(event.stamp().0),
            Self::Workflow(event) => Some(&event.snapshot),
            Self::Progress(event) => Some(event.stamp().0),
            Self::Notification(event) => Some(&event.snapshot),
            Self::Retry(event) => Some(event.stamp().0),
            Self::Limiter(event) => event.snapshot.as_ref(),
            Self::Scheduler(_) | Self::Heartbeat(_) => None,
            Self::App(event) => event.snapshot.as_ref(),
        }
    }

    /// What never changes of the job that it is about.
    pub(super) fn subject(&self) -> Option<&JobProfile> {
        self.snapshot().map(|snapshot| &*snapshot.profile)
    }

    /// When it happened.
    #[must_use]
    pub fn timestamp(&self) -> SystemTime {
        match self {
            Self::Lifecycle(event) => event.stamp().1,
            Self::Workflow(event) => event.at,
            Self::Progress(event) => event.stamp().1,
            Self::Notification(event) => event.at,
            Self::Retry(event) => event.stamp().1,
            Self::Limiter(event) => event.at,
            Self::Scheduler(event) => event.at(),
            Self::Heartbeat(event) => event.stamp().1,
            Self::App(event) => event.at,
        }
    }

    /// One line for a log.
    #[must_use]
    pub fn message(&self) -> String {
        message::line(self)
    }

    /// A sentence for a person, on events that are meant for people.
    #[must_use]
    pub fn human_message(&self) -> Option<String> {
        message::human(self)
    }

    /// A heading for the sentence, on events that have one.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        match self {
            Self::Workflow(event) => Some(event.title()),
            Self::Progress(ProgressEvent::Content(event)) => Some(event.title()),
            Self::Notification(event) if !event.title.is_empty() => Some(&event.title),
            _ => None,
        }
    }

    /// In what tone it speaks to a person, on events that are meant for people.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        match self {
            Self::Workflow(event) => Some(event.phase()),
            Self::Progress(event) => Some(event.phase()),
            Self::Notification(event) => Some(event.phase()),
            Self::Retry(_) => Some(Phase::StatusUpdate),
            Self::Lifecycle(
                LifecycleEvent::OrchestratorIdle(_) | LifecycleEvent::OrchestratorResumed(_),
            ) => Some(Phase::StatusUpdate),
            _ => None,
        }
    }

    /// The error behind it: of a failed job, of a dependency that failed, of a heartbeat.
    #[must_use]
    pub fn cause(&self) -> Option<&JobError> {
        match self {
            Self::Lifecycle(event) => event.cause(),
            Self::Heartbeat(HeartbeatEvent::FireFailed(event)) => Some(&event.error),
            _ => None,
        }
    }

    /// What is to be said about the run that ended, on the terminal events that carry it.
    #[must_use]
    pub fn terminal(&self) -> Option<&TerminalInfo> {
        match self {
            Self::Lifecycle(event) => event.terminal(),
            _ => None,
        }
    }

    /// The model calls that the job made; empty on an event that carries none.
    #[must_use]
    pub fn model_calls(&self) -> &[ModelCall] {
        match self {
            Self::Lifecycle(event) => event.model_calls(),
            _ => &[],
        }
    }

    /// Whether it says that a job ended with a result.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.kind().is_success()
    }

    /// Whether it says that a job ended in failure. A cancellation is none.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.kind().is_failure()
    }

    /// Whether it is the last lifecycle event of a job.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.kind().is_terminal()
    }
}

/// From each struct, and each family, to the event that it is.
macro_rules! into_event {
    ($($from:ty => |$value:ident| $event:expr;)+) => {$(
        impl From<$from> for Event {
            fn from($value: $from) -> Self {
                $event
            }
        }
    )+};
}

into_event! {
    LifecycleEvent => |event| Self::Lifecycle(event);
    life::JobScheduled => |event| Self::Lifecycle(LifecycleEvent::Scheduled(event));
    life::JobStarted => |event| Self::Lifecycle(LifecycleEvent::Started(event));
    life::JobCompleted => |event| Self::Lifecycle(LifecycleEvent::Completed(event));
    life::JobFailed => |event| Self::Lifecycle(LifecycleEvent::Failed(event));
    life::JobTimedOut => |event| Self::Lifecycle(LifecycleEvent::TimedOut(event));
    life::JobCancelled => |event| Self::Lifecycle(LifecycleEvent::Cancelled(event));
    life::DependencyFailure => |event| Self::Lifecycle(LifecycleEvent::DependencyFailure(event));
    life::OrchestratorIdle => |event| Self::Lifecycle(LifecycleEvent::OrchestratorIdle(event));
    life::OrchestratorResumed =>
        |event| Self::Lifecycle(LifecycleEvent::OrchestratorResumed(event));
    WorkflowComplete => |event| Self::Workflow(event);
    ProgressEvent => |event| Self::Progress(event);
    prog::JobProgress => |event| Self::Progress(ProgressEvent::Job(event));
    prog::ContentStream => |event| Self::Progress(ProgressEvent::Content(event));
    Notification => |event| Self::Notification(event);
    RetryEvent => |event| Self::Retry(event);
    retry::RateLimitRetry => |event| Self::Retry(RetryEvent::RateLimit(event));
    retry::TransientRetry => |event| Self::Retry(RetryEvent::Transient(event));
    retry::OutputTruncationRetry => |event| Self::Retry(RetryEvent::OutputTruncation(event));
    retry::ResponseCorrectionRetry => |event| Self::Retry(RetryEvent::ResponseCorrection(event));
    LimiterEvent => |event| Self::Limiter(event);
    SchedulerEvent => |event| Self::Scheduler(event);
    op::SchedulerStarted => |event| Self::Scheduler(SchedulerEvent::Started(event));
    op::SchedulerStopping => |event| Self::Scheduler(SchedulerEvent::Stopping(event));
    op::SchedulerStopped => |event| Self::Scheduler(SchedulerEvent::Stopped(event));
    SchedulerError => |event| Self::Scheduler(SchedulerEvent::Error(event));
    HeartbeatEvent => |event| Self::Heartbeat(event);
    op::HeartbeatRequested => |event| Self::Heartbeat(HeartbeatEvent::Requested(event));
    op::CancelHeartbeat => |event| Self::Heartbeat(HeartbeatEvent::Cancel(event));
    op::HeartbeatScheduled => |event| Self::Heartbeat(HeartbeatEvent::Scheduled(event));
    op::HeartbeatRebound => |event| Self::Heartbeat(HeartbeatEvent::Rebound(event));
    op::HeartbeatFired => |event| Self::Heartbeat(HeartbeatEvent::Fired(event));
    op::HeartbeatFireFailed => |event| Self::Heartbeat(HeartbeatEvent::FireFailed(event));
    AppEventEnvelope => |event| Self::App(event);
}
