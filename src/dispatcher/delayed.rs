//! Submissions that wait for their time (`RT-6`). They cost no thread while they do.
//!
//! # Invariants
//!
//! 1. All that there is to ask of the job is asked when the submission is asked for, on the thread of
//!    whoever does; a queue's thread makes it and calls nothing of a user's.
//! 2. Whoever waits is answered: a submission that is dropped unmade answers that it was cancelled,
//!    wherever it is dropped (an alarm taken back, an errand that nobody runs any more).

use std::fmt;
use std::sync::Arc;

use super::door::{self, Judged};
use super::inner::Inner;
use crate::admission::refuse_reentry;
use crate::clock::{Clock, WaitCell};
use crate::error::JobError;
use crate::job::JobHandle;
use crate::job::current::{self, Current};
use crate::sync::Mutex;

/// A submission that has not been made yet.
#[must_use = "dropping it lets the submission happen unseen"]
pub struct DelayedHandle<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    clock: Arc<dyn Clock>,
    answer: Mutex<Option<Result<JobHandle<T>, JobError>>>,
    waiters: Mutex<Vec<Arc<WaitCell>>>,
}

impl<T> Clone for DelayedHandle<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> DelayedHandle<T> {
    /// Waits until the job has been submitted and answers its handle. Inside a job the wait ends
    /// when that job is told to stop.
    ///
    /// # Errors
    /// Why it was not submitted: the dispatcher's refusal, or `Cancelled` when it shut down first.
    /// `Deadlock` when the calling job holds resources.
    pub fn get(&self) -> Result<JobHandle<T>, JobError> {
        refuse_reentry("get")?;
        let caller = current::owner();
        if let Some(holder) = caller.as_ref().and_then(Current::holder) {
            return Err(JobError::deadlock(format!(
                "{} holds resources and may not wait for a delayed submission",
                holder.id()
            )));
        }
        let cell = caller
            .as_ref()
            .map_or_else(WaitCell::new, |caller| Arc::clone(caller.job.cell()));
        self.shared.waiters.lock().push(Arc::clone(&cell));
        let result = loop {
            let seen = cell.epoch();
            if let Some(answer) = self.shared.answer.lock().clone() {
                break answer;
            }
            if let Some(stop) = caller.as_ref().and_then(|caller| caller.job.interruption()) {
                break Err(stop);
            }
            self.shared.clock.wait_until(&cell, seen, None);
        };
        self.shared
            .waiters
            .lock()
            .retain(|waiter| !Arc::ptr_eq(waiter, &cell));
        result
    }

    /// The job's handle, if it has been submitted; never waits.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn try_get(&self) -> Result<Option<JobHandle<T>>, JobError> {
        self.shared.answer.lock().clone().transpose()
    }
}

impl<T> fmt::Debug for DelayedHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedHandle")
            .field("answer", &*self.shared.answer.lock())
            .finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn answer(&self, answer: Result<JobHandle<T>, JobError>) {
        self.answer.lock().get_or_insert(answer);
        for waiter in std::mem::take(&mut *self.waiters.lock()) {
            waiter.notify();
        }
    }
}

/// A delayed submission, its types erased. Its drop answers whoever waits that it will not be.
pub(super) trait DueSubmission: Send {
    /// Submits, and answers whoever waits.
    fn submit(self: Box<Self>, inner: &Arc<Inner>);

    /// Answers whoever waits why it will not be.
    fn refuse(self: Box<Self>, why: JobError);
}

struct Delayed<T> {
    /// Until it is submitted.
    judged: Option<Judged>,
    shared: Arc<Shared<T>>,
}

impl<T> Drop for Delayed<T> {
    fn drop(&mut self) {
        if let Some(judged) = self.judged.take() {
            self.shared
                .answer(Err(JobError::cancelled("the dispatcher shut down")));
            judged.discard();
        }
    }
}

/// What will make a submission, and where its handle will be.
pub(super) fn delayed<T: Send + Sync + 'static>(
    clock: Arc<dyn Clock>,
    judged: Judged,
) -> (Box<dyn DueSubmission>, DelayedHandle<T>) {
    let shared = Arc::new(Shared {
        clock,
        answer: Mutex::new(None),
        waiters: Mutex::default(),
    });
    let handle = DelayedHandle {
        shared: Arc::clone(&shared),
    };
    let submission = Delayed {
        judged: Some(judged),
        shared,
    };
    (Box::new(submission), handle)
}

impl<T: Send + Sync + 'static> DueSubmission for Delayed<T> {
    fn submit(mut self: Box<Self>, inner: &Arc<Inner>) {
        let Some(judged) = self.judged.take() else {
            return;
        };
        let submitted = door::submit_judged(inner, judged).map_err(JobError::from);
        self.shared.answer(submitted.map(JobHandle::new));
    }

    fn refuse(mut self: Box<Self>, why: JobError) {
        self.shared.answer(Err(why));
        if let Some(judged) = self.judged.take() {
            judged.discard();
        }
    }
}
