//! Which job the calling thread works for.

use std::sync::Arc;

use super::behalf::{self, Acting};
use super::core::JobCore;
use crate::threads::Slot;

/// A thread's job.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) job: Arc<JobCore>,
    /// Whether this is the job's own thread, not one that works for it through
    /// [`JobContext::bind`](super::JobContext::bind).
    pub(crate) own_thread: bool,
    /// Whether foreign code runs that is not the job's, such as a callback: it sees no current
    /// job, but what the thread may do is still the job's to answer for.
    masked: bool,
    /// Whom the thread worked for before, and goes on to answer for: a job that runs what another
    /// one bound is no less bound by its own rules.
    around: Option<Arc<Current>>,
}

impl Current {
    /// All whom the thread answers for, from the inside out.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Current> {
        std::iter::successors(Some(self), |current| current.around.as_deref())
    }

    /// One of them that holds resources.
    pub(crate) fn holder(&self) -> Option<&Arc<JobCore>> {
        self.all()
            .map(|current| &current.job)
            .find(|job| job.is_holding())
    }
}

crate::sync::thread_local! {
    static CURRENT: Slot<Current> = const { Slot::empty() };
}

/// Puts the thread back to what it worked for before.
#[must_use]
pub(crate) struct Entered {
    before: Option<Current>,
    _acting: Option<Acting>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let ours = CURRENT.with(|current| current.replace(self.before.take()));
        // Outside of the borrow: this may be the last reference to the job.
        drop(ours);
    }
}

/// The thread works for this job until the answer is dropped.
pub(crate) fn enter(job: &Arc<JobCore>, own_thread: bool) -> Entered {
    let entering = Current {
        job: Arc::clone(job),
        own_thread,
        masked: false,
        around: owner().map(Arc::new),
    };
    Entered {
        before: CURRENT.with(|current| current.replace(Some(entering))),
        _acting: Some(behalf::enter(Some(Arc::clone(job.behalf())))),
    }
}

/// What the calling thread works for, as the code on it sees it.
pub(crate) fn current() -> Option<Current> {
    owner().filter(|current| !current.masked)
}

/// What the calling thread works for, whoever's code runs on it. Who may wait, submit or shut down
/// is judged by this: a callback on a job's thread is no way around the rules for that job.
pub(crate) fn owner() -> Option<Current> {
    CURRENT.with(Slot::get)
}

/// Runs `work` so that it sees no current job.
pub(crate) fn masked<R>(work: impl FnOnce() -> R) -> R {
    let before = owner();
    let masked = before.clone().map(|current| Current {
        masked: true,
        ..current
    });
    CURRENT.with(|current| current.replace(masked));
    let _entered = Entered {
        before,
        _acting: None,
    };
    work()
}
