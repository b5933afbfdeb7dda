//! How a job settles: once, its handle last (`ST-4`).
//!
//! # Invariants
//!
//! 1. Nobody is kept by what it no longer waits for: a waiter and a dependent that have gone are
//!    forgotten, however long the job lives.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{JobCore, Outcome};
use crate::clock::WaitCell;
use crate::events::Subscription;
use crate::sync::atomic::Ordering;
#[cfg(nucleo_model)]
use crate::sync::fault::{self, Fault};
use crate::unwind::discard_each;

#[derive(Default)]
pub(super) struct Settled {
    pub(super) outcome: Option<Outcome>,
    /// Subscriptions have ended, and the outcome is about to be there.
    closing: bool,
    waiters: SmallVec<[Arc<WaitCell>; 1]>,
    /// By their numbers, which are in the order in which they were made.
    dependents: BTreeMap<u64, Arc<JobCore>>,
    /// Subscriptions that end with the job.
    subscriptions: Vec<Subscription>,
}

impl JobCore {
    /// The right to settle the job. Given once.
    pub(crate) fn take_settlement(&self) -> bool {
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::TokenForEverybody) {
            return true;
        }
        !self.settlement.swap(true, Ordering::SeqCst)
    }

    /// Delivers the outcome: wakes whoever waits and answers the jobs that depend on this one.
    ///
    /// Called once, by whoever took the settlement token.
    pub(crate) fn settle(&self, outcome: Outcome) -> Vec<Arc<JobCore>> {
        let subscriptions = {
            let mut settled = self.settled.lock();
            settled.closing = true;
            std::mem::take(&mut settled.subscriptions)
        };
        // Before anybody can see the outcome: what is submitted next is not theirs to hear.
        discard_each(subscriptions);
        let (waiters, dependents) = {
            let mut settled = self.settled.lock();
            settled.outcome = Some(outcome);
            (
                std::mem::take(&mut settled.waiters),
                std::mem::take(&mut settled.dependents),
            )
        };
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::SettleWakesNobody) {
            return dependents.into_values().collect();
        }
        for waiter in waiters {
            waiter.notify();
        }
        self.forget_at_dependencies();
        dependents.into_values().collect()
    }

    /// A job that has settled before its dependencies waits for them no more.
    fn forget_at_dependencies(&self) {
        for dependency in self.dependencies().iter() {
            dependency.forget_dependent(self);
        }
    }

    fn forget_dependent(&self, dependent: &JobCore) {
        let forgotten = self.settled.lock().dependents.remove(&dependent.number);
        // Outside of the lock: what goes with a job is a user's.
        drop(forgotten);
    }

    /// Lets go of what a settled job needs no more: the results of its dependencies, and the
    /// captures of its callbacks, which may well be the job itself. They are the user's and drop as
    /// they like, so this comes after the settlement, and never on a thread that others wait for.
    pub(crate) fn let_go(&self) {
        let dependencies = std::mem::take(&mut *self.dependencies.lock());
        drop(dependencies);
        if !self.is_cancelled() {
            // Else whoever signalled runs them, if he has not yet.
            self.on_cancel.close();
        }
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.settled.lock().outcome.clone()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled.lock().outcome.is_some()
    }

    /// Has `cell` notified at the settlement; false when that has been.
    pub(crate) fn notify_when_settled(&self, cell: &Arc<WaitCell>) -> bool {
        let mut settled = self.settled.lock();
        if settled.outcome.is_some() {
            return false;
        }
        settled.waiters.push(Arc::clone(cell));
        true
    }

    /// Keeps a subscription until the settlement; drops it at once when that has been.
    pub(crate) fn keep_until_settled(&self, subscription: Subscription) {
        let mut settled = self.settled.lock();
        if !settled.closing {
            settled.subscriptions.push(subscription);
            return;
        }
        drop(settled);
        drop(subscription);
    }

    pub(crate) fn forget_waiter(&self, cell: &Arc<WaitCell>) {
        let mut settled = self.settled.lock();
        if let Some(at) = settled
            .waiters
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, cell))
        {
            settled.waiters.swap_remove(at);
        }
    }

    /// Has `dependent` answered by [`settle`](Self::settle); false when that has been.
    pub(crate) fn add_dependent(&self, dependent: &Arc<JobCore>) -> bool {
        {
            let mut settled = self.settled.lock();
            if settled.outcome.is_some() {
                return false;
            }
            let dependent = Arc::clone(dependent);
            settled.dependents.insert(dependent.number, dependent);
        }
        // It may have been cancelled meanwhile, and found nothing here to be taken off.
        if dependent.is_settled() {
            self.forget_dependent(dependent);
        }
        true
    }

    /// The jobs that wait for this one to settle.
    pub(crate) fn dependents(&self) -> Vec<Arc<JobCore>> {
        self.settled.lock().dependents.values().cloned().collect()
    }

    /// One dependency less to wait for; true for the last.
    pub(crate) fn dependency_settled(&self) -> bool {
        self.pending_dependencies.fetch_sub(1, Ordering::SeqCst) == 1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use crate::{JobDispatcher, JobRequirements, ManualClock, Workflow, job_fn};

    #[test]
    fn a_dependent_that_is_cancelled_is_forgotten_by_what_it_depended_on() {
        let dispatcher = JobDispatcher::builder()
            .clock(Arc::new(ManualClock::new()))
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        let workflow = Workflow::new("user", "test").unwrap();
        let (end, ending) = mpsc::channel::<()>();
        let long = job_fn(JobRequirements::none, move |_, _| {
            ending.recv().unwrap();
            Ok(())
        });
        let long = dispatcher.submit(&workflow, long).unwrap();
        let dependent = || {
            dispatcher
                .submit_with(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
                .after(&long)
                .submit()
                .unwrap()
        };
        let kept = dependent();
        for _ in 0..100 {
            let gone = dependent();
            let job = Arc::downgrade(gone.job());
            assert!(gone.cancel("not needed"));
            drop(gone);
            assert_eq!(long.job().dependents().len(), 1);
            assert!(job.upgrade().is_none());
        }
        end.send(()).unwrap();
        kept.get().unwrap();
        assert_eq!(long.job().dependents().len(), 0);
        dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}
