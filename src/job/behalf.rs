//! For whom foreign code runs (`DOOR-1`, `SCP-3`).
//!
//! What a job hands to the runtime (a callback, an observer, a job that is submitted later) may run
//! on a thread that is not the job's. It runs there for the job that handed it over: what it submits
//! is judged as that job's, and that of a leaf is refused.
//!
//! # Invariants
//!
//! 1. Who hands something over is noted when it is handed over, never found out where it runs.
//! 2. Nothing of a job is kept alive by it but who the job is and what it is bound to.

use std::fmt;
use std::sync::Arc;

use scopeguard::ScopeGuard;

use super::snapshot::JobProfile;
use crate::guard;
use crate::threads::Slot;
use crate::unwind::discard_here;

/// A job, as the author of code.
pub(crate) struct Behalf {
    pub(crate) profile: Arc<JobProfile>,
    pub(crate) orchestrator: bool,
    /// What the job is bound to.
    pub(crate) guard: guard::ScopeGuard,
}

impl fmt::Debug for Behalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Behalf")
            .field(&self.profile.ids.job)
            .finish()
    }
}

crate::sync::thread_local! {
    static HERE: Slot<Arc<Behalf>> = const { Slot::empty() };
}

/// For whom the code runs that the calling thread is in; none outside any job.
pub(crate) fn here() -> Option<Arc<Behalf>> {
    HERE.with(Slot::get)
}

/// Puts the thread back to whom it ran for before.
#[must_use]
pub(crate) struct Acting {
    before: Option<Arc<Behalf>>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        let over = HERE.with(|here| here.replace(self.before.take()));
        // Outside of the borrow: the last scope of a user's may go with it.
        drop(over);
    }
}

/// The thread runs for `behalf`, or for nobody, until the answer is dropped.
pub(crate) fn enter(behalf: Option<Arc<Behalf>>) -> Acting {
    Acting {
        before: HERE.with(|here| here.replace(behalf)),
    }
}

/// Runs code that somebody handed over, for whoever did.
pub(crate) fn acting<R>(behalf: Option<&Arc<Behalf>>, work: impl FnOnce() -> R) -> R {
    let _acting = enter(behalf.cloned());
    work()
}

type By = Option<Arc<Behalf>>;
type Unused<T> = fn((T, By));

/// A user's value, with whoever handed it over. It is used for them, and dropped for them when it is not used.
pub(crate) struct Handed<T>(ScopeGuard<(T, By), Unused<T>>);

impl<T> Handed<T> {
    pub(crate) fn new(by: By, value: T) -> Self {
        let unused: Unused<T> = |(value, by)| acting(by.as_ref(), || discard_here(value));
        Self(scopeguard::guard((value, by), unused))
    }

    /// Handed over by whoever's code the calling thread is in.
    pub(crate) fn here(value: T) -> Self {
        Self::new(here(), value)
    }

    pub(crate) fn value(&self) -> &T {
        &self.0.0
    }

    pub(crate) fn by(&self) -> Option<&Arc<Behalf>> {
        self.0.1.as_ref()
    }

    /// What is to become of it from here on is the caller's affair.
    pub(crate) fn into_value(self) -> T {
        ScopeGuard::into_inner(self.0).0
    }

    /// Uses it up, for whoever handed it over.
    pub(crate) fn spend<R>(self, work: impl FnOnce(T) -> R) -> R {
        let (value, by) = ScopeGuard::into_inner(self.0);
        acting(by.as_ref(), || work(value))
    }
}
