//! Where jobs are: the lifecycle family (`EVT-1`).

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::kind::EventKind;
use crate::error::JobError;
use crate::job::{JobSnapshot, JobState, Metadata};
use crate::models::{Cost, EmbeddingsPurpose, ModelKind, Usage};

/// A step in the life of a job.
#[derive(Clone, Debug)]
pub enum LifecycleEvent {
    /// The dispatcher accepted the job.
    Scheduled(JobScheduled),
    /// An attempt holds what it needs and executes; one for every attempt.
    Started(JobStarted),
    /// The job ended with a result.
    Completed(JobCompleted),
    /// The job ended with an error.
    Failed(JobFailed),
    /// The job's timeout passed.
    TimedOut(JobTimedOut),
    /// The job was told to stop before it finished.
    Cancelled(JobCancelled),
    /// A job that this one depends on failed, so it never ran.
    DependencyFailure(DependencyFailure),
    /// An orchestrator waits for its next piece of work.
    OrchestratorIdle(OrchestratorIdle),
    /// An orchestrator that was idle goes on.
    OrchestratorResumed(OrchestratorResumed),
}

/// The dispatcher accepted a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobScheduled {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The state that the job is in now.
    pub state: JobState,
    /// What the job asked for, in a line; empty when it asks for nothing.
    pub requirements: Arc<str>,
    /// Its priority; higher goes first.
    pub priority: i32,
}

/// An attempt holds what it needs and executes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobStarted {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// Which attempt, from 1.
    pub attempt: u32,
}

/// What a terminal event says about the run that ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TerminalInfo {
    /// How many attempts ran; 0 when none did.
    pub attempts: u32,
    /// The model calls that the job made, over all attempts, oldest first.
    pub model_calls: Arc<[ModelCall]>,
    /// The facts noted on the job.
    pub metadata: Metadata,
    /// When the job ended.
    pub completed_at: SystemTime,
    /// From the start of the first attempt to the end; zero when none started.
    pub duration: Duration,
}

impl TerminalInfo {
    /// What is to be said about a job that ended at `completed_at` after `attempts` attempts.
    pub(crate) fn new(
        snapshot: &JobSnapshot,
        attempts: u32,
        model_calls: Arc<[ModelCall]>,
        completed_at: SystemTime,
    ) -> Self {
        // The calendar may have been set back meanwhile; a duration is never negative.
        let duration = snapshot
            .started_at()
            .and_then(|started| completed_at.duration_since(started).ok())
            .unwrap_or_default();
        Self {
            attempts,
            model_calls,
            metadata: snapshot.metadata().clone(),
            completed_at,
            duration,
        }
    }
}

/// One call of a model that a job made.
///
/// Two are equal when everything but the [`cause`](Self::cause) is: errors do not compare, and the
/// reason says what the cause was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelCall {
    /// The entry of the catalog that was called.
    pub model: Arc<str>,
    /// The model that answered, in the provider's words, where it said.
    pub served: Option<Arc<str>>,
    /// What the model is for.
    pub kind: ModelKind,
    /// What vectors were asked for; `None` of any other call.
    pub purpose: Option<EmbeddingsPurpose>,
    /// Whether it answered with something that could be used.
    pub successful: bool,
    /// Why it stopped, in the provider's words, where known.
    pub stop_reason: Option<String>,
    /// The tokens that went in and came out, where the provider said. An answer that was cut off
    /// has some too.
    pub usage: Option<Usage>,
    /// What they cost; `None` when they are not known or the model has no price.
    pub cost: Option<Cost>,
    /// Whether the cost is what was reserved for the call, because its tokens are not known: it was
    /// out when the job ended, or its answer broke off after it had begun. A call that comes back
    /// later stays as it was charged.
    pub estimated: bool,
    /// Why the call failed; `None` when it did not.
    pub reason: Option<String>,
    /// The error that it failed with; `None` when it did not.
    pub cause: Option<JobError>,
    /// When the call was made.
    pub started_at: SystemTime,
    /// When it came back.
    pub ended_at: SystemTime,
}

impl PartialEq for ModelCall {
    fn eq(&self, other: &Self) -> bool {
        // Taken apart, so that a new field has to be thought of here.
        let Self {
            model,
            served,
            kind,
            purpose,
            successful,
            stop_reason,
            usage,
            cost,
            estimated,
            reason,
            cause: _,
            started_at,
            ended_at,
        } = self;
        *model == other.model
            && *served == other.served
            && *kind == other.kind
            && *purpose == other.purpose
            && *successful == other.successful
            && *stop_reason == other.stop_reason
            && *usage == other.usage
            && *cost == other.cost
            && *estimated == other.estimated
            && *reason == other.reason
            && *started_at == other.started_at
            && *ended_at == other.ended_at
    }
}

/// A job ended with a result.
#[derive(Clone)]
#[non_exhaustive]
pub struct JobCompleted {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The result, shared with the job's handle; `None` when the job has none to give.
    pub result: Option<Arc<dyn Any + Send + Sync>>,
    /// What is to be said about the run.
    pub terminal: TerminalInfo,
}

impl JobCompleted {
    /// The result, if it is a `T`.
    #[must_use]
    pub fn result<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.result.as_ref()?).downcast().ok()
    }
}

impl fmt::Debug for JobCompleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is the user's: it may be large, secret, or not printable at all.
        f.debug_struct("JobCompleted")
            .field("snapshot", &self.snapshot)
            .field("at", &self.at)
            .field("has_result", &self.result.is_some())
            .field("terminal", &self.terminal)
            .finish()
    }
}

/// A job ended with an error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobFailed {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// Why, where it is known.
    pub error: Option<JobError>,
    /// What is to be said about the run.
    pub terminal: TerminalInfo,
}

/// A job's timeout passed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobTimedOut {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The timeout, where it is known.
    pub budget: Option<Duration>,
    /// What is to be said about the run.
    pub terminal: TerminalInfo,
}

/// A job was told to stop before it finished. Neither a success nor a failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobCancelled {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// Whether it was not given the time to stop by itself.
    pub forced: bool,
    /// Why, in the words of whoever cancelled it.
    pub message: String,
    /// What is to be said about the run.
    pub terminal: TerminalInfo,
}

/// A job that this one depends on failed, so it never ran.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DependencyFailure {
    /// The job that did not run.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// What went wrong, where it is known.
    pub error: Option<JobError>,
}

/// An orchestrator waits for its next piece of work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OrchestratorIdle {
    /// The orchestrator.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
}

/// An orchestrator that was idle goes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OrchestratorResumed {
    /// The orchestrator.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
}

impl LifecycleEvent {
    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Scheduled(_) => EventKind::JobScheduled,
            Self::Started(_) => EventKind::JobStarted,
            Self::Completed(_) => EventKind::JobCompleted,
            Self::Failed(_) => EventKind::JobFailed,
            Self::TimedOut(_) => EventKind::JobTimedOut,
            Self::Cancelled(_) => EventKind::JobCancelled,
            Self::DependencyFailure(_) => EventKind::DependencyFailure,
            Self::OrchestratorIdle(_) => EventKind::OrchestratorIdle,
            Self::OrchestratorResumed(_) => EventKind::OrchestratorResumed,
        }
    }

    /// The job, and when it happened.
    pub(super) fn stamp(&self) -> (&JobSnapshot, SystemTime) {
        match self {
            Self::Scheduled(event) => (&event.snapshot, event.at),
            Self::Started(event) => (&event.snapshot, event.at),
            Self::Completed(event) => (&event.snapshot, event.at),
            Self::Failed(event) => (&event.snapshot, event.at),
            Self::TimedOut(event) => (&event.snapshot, event.at),
            Self::Cancelled(event) => (&event.snapshot, event.at),
            Self::DependencyFailure(event) => (&event.snapshot, event.at),
            Self::OrchestratorIdle(event) => (&event.snapshot, event.at),
            Self::OrchestratorResumed(event) => (&event.snapshot, event.at),
        }
    }

    /// The job that it is about.
    #[must_use]
    pub fn snapshot(&self) -> &JobSnapshot {
        self.stamp().0
    }

    /// What is to be said about the run, on the terminal events of a job that got as far as to
    /// have one: completed, failed, timed out, cancelled.
    #[must_use]
    pub fn terminal(&self) -> Option<&TerminalInfo> {
        match self {
            Self::Completed(event) => Some(&event.terminal),
            Self::Failed(event) => Some(&event.terminal),
            Self::TimedOut(event) => Some(&event.terminal),
            Self::Cancelled(event) => Some(&event.terminal),
            _ => None,
        }
    }

    /// The model calls that the job made; empty on an event that carries none.
    #[must_use]
    pub fn model_calls(&self) -> &[ModelCall] {
        self.terminal().map_or(&[], |info| &info.model_calls)
    }

    /// The error behind it: of a failed job, or of the dependency that failed.
    #[must_use]
    pub fn cause(&self) -> Option<&JobError> {
        match self {
            Self::Failed(event) => event.error.as_ref(),
            Self::DependencyFailure(event) => event.error.as_ref(),
            _ => None,
        }
    }
}
