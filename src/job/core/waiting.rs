//! What a job's thread waits for, and the cycles that waits would close (`WAIT-1`).
//!
//! # Invariants
//!
//! 1. A wait is on record before anybody looks for a cycle, so of two jobs that begin to wait for each
//!    other at once at least one sees it.
//! 2. The record is of the job's own thread, which alone writes it and which sleeps in one place at a
//!    time. Others may have the job's context, and sleep or wait by it: the job goes on meanwhile.
//! 3. Of the waits that end by themselves (a sleep, admission) nobody asks, and none is recorded.

use std::collections::HashSet;
use std::sync::Arc;

use super::{JobCore, Supervisor};

/// What a job's own thread sleeps for, where somebody may have to know.
#[derive(Clone)]
pub(crate) enum WaitingFor {
    Job(Arc<JobCore>),
    /// The next attempt.
    Retry,
}

/// Ends the record of a wait when it is dropped.
pub(crate) struct Waiting<'a> {
    job: &'a JobCore,
    supervisor: Option<Arc<dyn Supervisor>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let over = self.job.waiting.lock().take();
        if let Some(supervisor) = &self.supervisor {
            supervisor.wait_ends();
        }
        // Last: a user's result may go with it, and what its destructor does is no part of the wait.
        drop(over);
    }
}

impl JobCore {
    /// Records what the job's thread sleeps for until the answer is dropped. On that thread alone.
    pub(crate) fn waits_for(&self, what: WaitingFor) -> Waiting<'_> {
        *self.waiting.lock() = Some(what);
        Waiting {
            job: self,
            supervisor: None,
        }
    }

    /// Records that the job's thread waits for another job. On that thread alone.
    ///
    /// # Errors
    /// The way from this job back to itself, when that job waits for this one, directly or through
    /// others. The record stands before the look, so of two jobs that begin to wait for each other
    /// at once at least one sees it.
    pub(crate) fn waits_for_job(
        self: &Arc<Self>,
        other: &Arc<JobCore>,
    ) -> Result<Waiting<'_>, Vec<Arc<JobCore>>> {
        let mut waiting = self.waits_for(WaitingFor::Job(Arc::clone(other)));
        if let Some(way) = self.way_back_from(other) {
            return Err(way);
        }
        let supervisor = self.supervisor();
        if let Some(supervisor) = &supervisor {
            supervisor.wait_begins();
        }
        // The job may be another dispatcher's, which does not see this wait begin.
        if let Some(others) = other.supervisor() {
            others.look();
        }
        waiting.supervisor = supervisor;
        Ok(waiting)
    }

    /// The chain of waits that leads from `other` to this job; an ancestor waits for its children.
    pub(crate) fn way_back_from(
        self: &Arc<Self>,
        other: &Arc<JobCore>,
    ) -> Option<Vec<Arc<JobCore>>> {
        let mut ancestor = Some(Arc::clone(self));
        while let Some(at) = ancestor {
            if Arc::ptr_eq(&at, other) {
                return Some(vec![at]);
            }
            ancestor = at.parent();
        }
        // Each job with the one that led to it, so that the way can be told from its end.
        let mut reached = vec![(Arc::clone(other), None)];
        let mut seen = HashSet::new();
        let mut at = 0;
        while let Some((job, _)) = reached.get(at).cloned() {
            if Arc::ptr_eq(&job, self) {
                let mut way = Vec::new();
                let mut next = Some(at);
                while let Some((job, from)) = next.and_then(|index| reached.get(index)) {
                    way.push(Arc::clone(job));
                    next = *from;
                }
                way.reverse();
                return Some(way);
            }
            if !job.is_settled() && seen.insert(Arc::as_ptr(&job)) {
                match job.waiting_for() {
                    Some(WaitingFor::Job(next)) => reached.push((next, Some(at))),
                    _ => reached.extend(
                        job.dependencies()
                            .iter()
                            .cloned()
                            .map(|next| (next, Some(at))),
                    ),
                }
            }
            at += 1;
        }
        None
    }

    pub(crate) fn waiting_for(&self) -> Option<WaitingFor> {
        self.waiting.lock().clone()
    }
}

#[cfg(test)]
mod tests;
