//! How a job is told to stop, and who decides its end (`ST-3`).

use std::sync::Arc;

use super::{Cancellation, Decision, JobCore};
use crate::error::JobError;
use crate::job::state::JobState;
use crate::sync::atomic::Ordering;
#[cfg(nucleo_model)]
use crate::sync::fault::{self, Fault};

impl JobCore {
    /// Raises the cancellation: decides the outcome if nothing has, wakes the job's thread, and
    /// leaves the callbacks to [`fire_cancellation`](Self::fire_cancellation). Answers whether it
    /// was the first.
    pub(crate) fn signal_cancellation(&self, reason: &str, message: &str) -> bool {
        let (wall, at) = (self.clock.wall(), self.clock.now());
        {
            let mut live = self.live.lock();
            if live.cancellation.is_some() {
                return false;
            }
            live.cancellation = Some(Cancellation {
                reason: reason.to_owned(),
                message: message.to_owned(),
                at,
            });
            if live.decision == Decision::Open && live.moment.state.is_active() {
                live.decision = Decision::Cancelled;
                let moment = Arc::make_mut(&mut live.moment);
                moment.state = JobState::Cancelled;
                moment.ended_at = Some(wall);
            }
            self.cancelled.store(true, Ordering::SeqCst);
        }
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::CancelWakesNobody) {
            return true;
        }
        self.cell.notify();
        true
    }

    pub(crate) fn fire_cancellation(&self) {
        self.on_cancel.fire();
    }

    /// Raises the timeout, as [`signal_cancellation`](Self::signal_cancellation) does the
    /// cancellation. Answers whether it decided the outcome.
    pub(crate) fn signal_timeout(&self) -> bool {
        let wall = self.clock.wall();
        {
            let mut live = self.live.lock();
            if live.decision != Decision::Open || live.moment.state.is_terminal() {
                return false;
            }
            live.decision = Decision::TimedOut;
            let moment = Arc::make_mut(&mut live.moment);
            moment.state = JobState::TimedOut;
            moment.ended_at = Some(wall);
            self.timed_out.store(true, Ordering::SeqCst);
            self.cancelled.store(true, Ordering::SeqCst);
        }
        self.cell.notify();
        true
    }

    pub(crate) fn fire_timeout(&self) {
        self.on_timeout.fire();
        self.on_cancel.fire();
    }

    pub(crate) fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) {
        self.on_cancel.register(&self.behalf, callback);
    }

    pub(crate) fn on_timeout(&self, callback: impl FnOnce() + Send + 'static) {
        self.is_timed_out();
        self.on_timeout.register(&self.behalf, callback);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Whether the deadline has passed. Whoever finds out first raises the timeout.
    pub(crate) fn is_timed_out(&self) -> bool {
        if self.timed_out.load(Ordering::SeqCst) {
            return true;
        }
        let passed = self
            .deadline()
            .is_some_and(|deadline| self.clock.now() >= deadline);
        if passed && self.signal_timeout() {
            self.fire_timeout();
        }
        self.timed_out.load(Ordering::SeqCst)
    }

    /// Why the job's thread should stop what it does; `None` while it should go on.
    pub(crate) fn interruption(&self) -> Option<JobError> {
        if !self.is_cancelled() {
            return None;
        }
        let live = self.live.lock();
        Some(match (live.decision, &live.cancellation) {
            (Decision::TimedOut, _) | (_, None) => JobError::timed_out(self.terms.timeout),
            (_, Some(cancellation)) => JobError::cancelled(&cancellation.reason),
        })
    }

    pub(crate) fn cancellation(&self) -> Option<Cancellation> {
        self.live.lock().cancellation.clone()
    }

    /// The job's own work is done: from here on a cancellation or timeout comes too late.
    ///
    /// # Errors
    /// What was decided before.
    pub(crate) fn begin_finishing(&self) -> Result<(), Decision> {
        let mut live = self.live.lock();
        match live.decision {
            Decision::Open => {
                live.decision = Decision::Finishing;
                Ok(())
            }
            Decision::Finishing => Ok(()),
            decided => Err(decided),
        }
    }
}
