//! The order in which a job is told of (`EVT-7`).
//!
//! # Invariants
//!
//! 1. Everything that is told of a job is published under this one lock, so every subscriber gets
//!    it in one order.
//! 2. The terminal event and the workflow's are published once each, and the terminal one is the
//!    last that names the job but for the workflow's: what comes later, from a thread that was
//!    left behind or from the permit of an orphaned connection, is dropped, or told as nobody's.
//! 3. Nothing foreign runs under the lock. What publishing leaves to be logged is logged after it.
//!
//! Lock order: admission's queue of notes, then this, then the job's `live` and the jobs' register.

use crate::events::Overflow;
use crate::sync::Mutex;

/// What has been told of one job.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    terminal: bool,
    complete: bool,
}

impl Telling {
    /// Publishes, unless the terminal event is out.
    pub(super) fn tell(&self, publish: impl FnOnce() -> Overflow) {
        let told = self.told.lock();
        if !told.terminal {
            let overflow = publish();
            drop(told);
            overflow.log();
        }
    }

    /// Publishes the terminal event, once.
    pub(super) fn tell_terminal(&self, publish: impl FnOnce() -> Overflow) {
        let mut told = self.told.lock();
        if !std::mem::replace(&mut told.terminal, true) {
            let overflow = publish();
            drop(told);
            overflow.log();
        }
    }

    /// Publishes the end of the workflow, once.
    pub(super) fn tell_complete(&self, publish: impl FnOnce() -> Overflow) {
        let mut told = self.told.lock();
        if !std::mem::replace(&mut told.complete, true) {
            let overflow = publish();
            drop(told);
            overflow.log();
        }
    }

    /// Has something published that the job caused, in its place among the job's events. `publish`
    /// is told whether the terminal one is out: then it must not name the job.
    pub(crate) fn in_place<R>(&self, publish: impl FnOnce(bool) -> R) -> R {
        let told = self.told.lock();
        publish(told.terminal)
    }
}
