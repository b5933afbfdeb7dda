//! Jobs that do not respond, as they are shown.

use std::time::Instant;

use crate::job::JobSnapshot;

/// A job that was told to stop and has not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unresponsive {
    /// The job, as it is now.
    pub job: JobSnapshot,
    /// What it does not respond to.
    pub reason: UnresponsiveReason,
    /// Since when.
    pub since: Instant,
    /// The names of the accounts of which it still holds something.
    pub holds: Vec<String>,
}

/// What an unresponsive job does not respond to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnresponsiveReason {
    /// It was cancelled longer ago than its grace and runs on. Its handle answers when it ends.
    IgnoresCancellation,
    /// It ignored both phases of a timeout, or a shutdown. Its handle has answered; its thread
    /// counts against the cap until it ends.
    Abandoned,
}
