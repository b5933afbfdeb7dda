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

    /// The verdict, if there is one.
    #[inline(never)]
    pub(super) fn answer(&mut self) -> Option<Result<Grant, JobError>> {
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
