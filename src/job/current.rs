//! Which job the calling thread works for.

use std::cell::RefCell;
use std::sync::Arc;

use super::core::JobCore;

/// A thread's job.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) job: Arc<JobCore>,
    /// Whether this is the job's own thread, not one that works for it through
    /// [`JobContext::bind`](super::JobContext::bind).
    pub(crate) own_thread: bool,
}

crate::sync::thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Puts the thread back to what it worked for before.
#[must_use]
pub(crate) struct Entered {
    before: Option<Current>,
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
    };
    Entered {
        before: CURRENT.with(|current| current.replace(Some(entering))),
    }
}

/// What the calling thread works for.
pub(crate) fn current() -> Option<Current> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Runs `work` as if the thread worked for no job.
pub(crate) fn masked<R>(work: impl FnOnce() -> R) -> R {
    let _entered = Entered {
        before: CURRENT.with(RefCell::take),
    };
    work()
}
