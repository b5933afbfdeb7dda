//! The runtime about itself: accounts, the dispatcher, heartbeats (`EVT-4`, `HB-8`).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::kind::EventKind;
use crate::admission::AccountCategory;
use crate::error::JobError;
use crate::job::JobSnapshot;

/// An account moved, or a job began to wait for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterEvent {
    /// The account's name.
    pub account: Arc<str>,
    /// What kind of limit it is.
    pub category: AccountCategory,
    /// How much there is in all.
    pub capacity: u64,
    /// How much of it is in use after the change.
    pub in_use: u64,
    /// How many jobs wait for it.
    pub waiters: usize,
    /// How long the job has waited; zero when it did not.
    pub wait: Duration,
    /// What happened.
    pub change: LimiterChange,
    /// Why a wait was refused; `None` on every other change.
    pub reason: Option<RejectReason>,
    /// What the account says about itself besides, such as a throttle.
    pub indicator: Option<String>,
    /// How much the job asked for.
    pub amount: u64,
    /// The job behind the change; `None` when none is.
    pub snapshot: Option<JobSnapshot>,
    /// When.
    pub at: SystemTime,
}

/// What happened to an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimiterChange {
    /// A job got its amount at once.
    GrantedImmediate,
    /// A job began to wait.
    Held,
    /// A job that waited got its amount.
    GrantedFromHold,
    /// A job that waited will not get it.
    Rejected,
    /// An amount came back.
    Released,
}

/// Why a wait for an account was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The job was cancelled.
    Cancelled,
    /// The service behind the account is taken to be down.
    CircuitBlocked,
    /// The job was torn down.
    Aborted,
    /// The dispatcher shuts down.
    Shutdown,
}

impl RejectReason {
    /// The reason as logs and metrics spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::CircuitBlocked => "circuit_blocked",
            Self::Aborted => "aborted",
            Self::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The dispatcher about itself.
#[derive(Clone, Debug)]
pub enum SchedulerEvent {
    /// It takes jobs from now on.
    Started(SchedulerStarted),
    /// It takes no more jobs.
    Stopping(SchedulerStopping),
    /// It has stopped.
    Stopped(SchedulerStopped),
    /// Something went wrong that is no job's fault.
    Error(SchedulerError),
}

/// The dispatcher takes jobs from now on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerStarted {
    /// When.
    pub at: SystemTime,
}

/// The dispatcher takes no more jobs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerStopping {
    /// When.
    pub at: SystemTime,
}

/// The dispatcher has stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerStopped {
    /// When.
    pub at: SystemTime,
}

/// Something went wrong in the dispatcher that is no job's fault.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerError {
    /// When.
    pub at: SystemTime,
    /// What.
    pub message: Arc<str>,
}

impl SchedulerEvent {
    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Started(_) => EventKind::SchedulerStarted,
            Self::Stopping(_) => EventKind::SchedulerStopping,
            Self::Stopped(_) => EventKind::SchedulerStopped,
            Self::Error(_) => EventKind::SchedulerError,
        }
    }

    pub(super) fn at(&self) -> SystemTime {
        match self {
            Self::Started(event) => event.at,
            Self::Stopping(event) => event.at,
            Self::Stopped(event) => event.at,
            Self::Error(event) => event.at,
        }
    }
}

/// Work on a schedule.
#[derive(Clone, Debug)]
pub enum HeartbeatEvent {
    /// Somebody asked for a schedule.
    Requested(HeartbeatRequested),
    /// Somebody asked for a schedule to end.
    Cancel(CancelHeartbeat),
    /// The schedule stands.
    Scheduled(HeartbeatScheduled),
    /// A schedule took the place of another under the same id.
    Rebound(HeartbeatRebound),
    /// A run was submitted.
    Fired(HeartbeatFired),
    /// A run could not be submitted.
    FireFailed(HeartbeatFireFailed),
}

/// Somebody asked for a schedule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeartbeatRequested {
    /// The schedule's id.
    pub id: Arc<str>,
    /// When.
    pub at: SystemTime,
}

/// Somebody asked for a schedule to end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CancelHeartbeat {
    /// The schedule's id.
    pub id: Arc<str>,
    /// When.
    pub at: SystemTime,
}

/// A schedule stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeartbeatScheduled {
    /// The schedule's id.
    pub id: Arc<str>,
    /// When.
    pub at: SystemTime,
}

/// A schedule took the place of another under the same id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeartbeatRebound {
    /// The id of both.
    pub id: Arc<str>,
    /// When.
    pub at: SystemTime,
}

/// A run of a schedule was submitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeartbeatFired {
    /// The schedule's id.
    pub id: Arc<str>,
    /// The id of the job that runs for it.
    pub job_id: Arc<str>,
    /// When.
    pub at: SystemTime,
}

/// A run of a schedule could not be submitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeartbeatFireFailed {
    /// The schedule's id.
    pub id: Arc<str>,
    /// Why.
    pub error: JobError,
    /// When.
    pub at: SystemTime,
}

impl HeartbeatEvent {
    /// Which concrete event this is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Requested(_) => EventKind::HeartbeatRequested,
            Self::Cancel(_) => EventKind::CancelHeartbeat,
            Self::Scheduled(_) => EventKind::HeartbeatScheduled,
            Self::Rebound(_) => EventKind::HeartbeatRebound,
            Self::Fired(_) => EventKind::HeartbeatFired,
            Self::FireFailed(_) => EventKind::HeartbeatFireFailed,
        }
    }

    pub(super) fn stamp(&self) -> (&Arc<str>, SystemTime) {
        match self {
            Self::Requested(event) => (&event.id, event.at),
            Self::Cancel(event) => (&event.id, event.at),
            Self::Scheduled(event) => (&event.id, event.at),
            Self::Rebound(event) => (&event.id, event.at),
            Self::Fired(event) => (&event.id, event.at),
            Self::FireFailed(event) => (&event.id, event.at),
        }
    }

    /// The schedule's id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.stamp().0
    }
}
