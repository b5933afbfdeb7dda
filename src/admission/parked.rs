//! The owner of a place in the line.
//!
//! # Invariants
//!
//! 1. A place is left once: with its verdict, by a withdrawal, or by the drop of its owner (a panic of
//!    whatever the thread slept in), which gives back a grant that nobody took.

use std::sync::Arc;

use super::demand::Demand;
use super::grant::Grant;
use super::line::{Ticket, Verdict};
use super::monitor::{Admission, is_inside};
use super::outbox::Behind;
use crate::error::JobError;
use crate::job::JobContext;

/// A place in the line, and what is granted to it until its thread takes that over.
pub(super) struct Parked {
    admission: Admission,
    ticket: Arc<Ticket>,
    demand: Arc<Demand>,
    behind: Option<Arc<Behind>>,
    has_left: bool,
}

impl Parked {
    pub(super) fn new(
        admission: Admission,
        ticket: Arc<Ticket>,
        demand: Arc<Demand>,
        behind: Option<Arc<Behind>>,
    ) -> Self {
        Self {
            admission,
            ticket,
            demand,
            behind,
            has_left: false,
        }
    }

    /// Whether there is nothing more to wait for: a verdict is there, or the job was told to stop and
    /// has left the line. A verdict that was decided first comes once its notes are out.
    ///
    /// # Errors
    /// A defect, which has failed everyone.
    #[inline(never)]
    pub(super) fn is_over(&mut self, context: &JobContext) -> Result<bool, JobError> {
        // Asked first: whoever is told to stop after it finds the verdict at the next look.
        let is_told_to_stop = context.core().interruption().is_some();
        Ok(self.ticket.has_verdict() || is_told_to_stop && self.withdraw()?)
    }

    /// What came of it. A cancelled job never keeps a permit.
    #[inline(never)]
    pub(super) fn conclude(mut self, context: &JobContext) -> Result<Grant, JobError> {
        let interruption = context.core().interruption();
        match (self.answer(), interruption) {
            (Some(Ok(grant)), Some(interruption)) => {
                grant.rollback();
                Err(interruption)
            }
            (Some(answer), _) => answer,
            (None, Some(interruption)) => Err(interruption),
            (None, None) => Err(JobError::system("admission", "a place had no verdict")),
        }
    }

    /// The verdict, if there is one.
    #[inline(never)]
    fn answer(&mut self) -> Option<Result<Grant, JobError>> {
        let verdict = self.ticket.take()?;
        self.has_left = true;
        Some(match verdict {
            Verdict::Granted(waits) => Ok(Grant::new(
                self.admission.clone(),
                Arc::clone(&self.demand),
                self.behind.clone(),
                Some(Box::new(waits)),
            )),
            Verdict::Refused(error) => Err(error),
        })
    }

    /// Leaves the line. Answers false when the verdict was there first, which then comes.
    ///
    /// # Errors
    /// A defect, which has failed everyone.
    #[cold]
    #[inline(never)]
    pub(super) fn withdraw(&mut self) -> Result<bool, JobError> {
        self.has_left = self.admission.withdraw(&self.ticket)?;
        Ok(self.has_left)
    }

    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        // Inside a step one is dropped only when the step fails, and that refuses everyone.
        if is_inside() || matches!(self.withdraw(), Ok(true)) {
            return;
        }
        self.admission.flush_verdicts();
        if let Some(Ok(grant)) = self.answer() {
            grant.rollback();
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if !self.has_left {
            self.abandon();
        }
    }
}
