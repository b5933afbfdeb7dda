//! What is meant for people: progress, streamed text, notifications, the end of a workflow
//! (`EVT-2`..`EVT-4`).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::kind::EventKind;
use crate::job::{JobSnapshot, JobState, Metadata};

/// In what tone an event speaks to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Work begins.
    Starting,
    /// Work goes on.
    Progressing,
    /// A word on how things are, without a measure.
    StatusUpdate,
    /// Work ends well.
    Completing,
    /// Work ends badly.
    Failing,
    /// A message.
    Message,
    /// A message about something that went wrong.
    Error,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "STARTING",
            Self::Progressing => "PROGRESSING",
            Self::StatusUpdate => "STATUS_UPDATE",
            Self::Completing => "COMPLETING",
            Self::Failing => "FAILING",
            Self::Message => "MESSAGE",
            Self::Error => "ERROR",
        })
    }
}

/// A root job ended, and with it its part of the workflow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkflowComplete {
    /// The root job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// Whether the root job ended with a result.
    pub success: bool,
    /// Why, in a sentence.
    pub reason: Arc<str>,
}

impl WorkflowComplete {
    /// The reason that a workflow which ended well gives.
    pub const SUCCEEDED: &'static str = "Workflow completed successfully";

    /// The root job ended with a result.
    pub(crate) fn succeeded(snapshot: JobSnapshot, at: SystemTime) -> Self {
        Self {
            snapshot,
            at,
            success: true,
            reason: Self::SUCCEEDED.into(),
        }
    }

    /// The root job ended without one.
    pub(crate) fn failed(
        snapshot: JobSnapshot,
        at: SystemTime,
        reason: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            snapshot,
            at,
            success: false,
            reason: reason.into(),
        }
    }

    /// In what tone it speaks.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if self.success {
            Phase::Completing
        } else {
            Phase::Failing
        }
    }

    /// A heading.
    #[must_use]
    pub fn title(&self) -> &'static str {
        if self.success {
            "Workflow Completed"
        } else {
            "Workflow Failed"
        }
    }
}

/// What a job says while it runs.
#[derive(Clone, Debug)]
pub enum ProgressEvent {
    /// How far it is.
    Job(JobProgress),
    /// A piece of text as it comes.
    Content(ContentStream),
}

impl ProgressEvent {
    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Job(_) => EventKind::JobProgress,
            Self::Content(_) => EventKind::ContentStream,
        }
    }

    /// The job that it is about.
    #[must_use]
    pub fn snapshot(&self) -> &JobSnapshot {
        self.stamp().0
    }

    pub(super) fn stamp(&self) -> (&JobSnapshot, SystemTime) {
        match self {
            Self::Job(event) => (&event.snapshot, event.at),
            Self::Content(event) => (&event.snapshot, event.at),
        }
    }

    /// In what tone it speaks.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self {
            Self::Job(event) => event.phase(),
            Self::Content(event) => event.phase(),
        }
    }

    /// Percent done, where it says.
    #[must_use]
    pub fn percent(&self) -> Option<u8> {
        match self {
            Self::Job(event) => event.percent,
            Self::Content(event) => event.percent(),
        }
    }
}

/// How far a job is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobProgress {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// What it says, if anything.
    pub text: Option<Arc<str>>,
    /// Percent done, 0 to 100; `None` for a word on how things are.
    pub percent: Option<u8>,
}

impl JobProgress {
    /// In what tone it speaks, by its percentage.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.percent {
            None => Phase::StatusUpdate,
            Some(0) => Phase::Starting,
            Some(1..=99) => Phase::Progressing,
            Some(_) => Phase::Completing,
        }
    }
}

/// A piece of text as it comes from a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContentStream {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// The piece.
    pub chunk: Arc<str>,
    /// Whether it is the last one.
    pub last: bool,
    artifacts: Metadata,
}

impl ContentStream {
    /// A piece of text, with facts that go with it. The facts are those of this instant.
    pub(crate) fn new(
        snapshot: JobSnapshot,
        at: SystemTime,
        chunk: impl Into<Arc<str>>,
        last: bool,
        artifacts: &Metadata,
    ) -> Self {
        Self {
            snapshot,
            at,
            chunk: chunk.into(),
            last,
            artifacts: artifacts.clone(),
        }
    }

    /// The facts that came with the piece; `None` when there are none.
    #[must_use]
    pub fn artifacts(&self) -> Option<&Metadata> {
        (!self.artifacts.is_empty()).then_some(&self.artifacts)
    }

    /// In what tone it speaks: completing with the last piece.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if self.last {
            Phase::Completing
        } else {
            Phase::Progressing
        }
    }

    /// 100 with the last piece; before it nobody knows how many there will be.
    #[must_use]
    pub fn percent(&self) -> Option<u8> {
        self.last.then_some(100)
    }

    /// A heading.
    #[must_use]
    pub fn title(&self) -> &'static str {
        if self.last {
            "Streaming Complete"
        } else {
            "Streaming Content"
        }
    }
}

/// How much a notification matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something went well.
    Success,
    /// Something may need attention.
    Warning,
    /// Something went wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "INFO",
            Self::Success => "SUCCESS",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        })
    }
}

/// A message of a job to a person.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Notification {
    /// The job.
    pub snapshot: JobSnapshot,
    /// When.
    pub at: SystemTime,
    /// How much it matters.
    pub severity: Severity,
    /// A heading; may be empty.
    pub title: Arc<str>,
    /// The message.
    pub text: Arc<str>,
}

impl Notification {
    /// In what tone it speaks, by its severity.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.severity {
            Severity::Error => Phase::Error,
            Severity::Success => Phase::Completing,
            Severity::Warning | Severity::Info => Phase::Message,
        }
    }

    /// The state that the job was in.
    #[must_use]
    pub fn state(&self) -> JobState {
        self.snapshot.state()
    }
}
