//! How a job settles: once, its handle last (`ST-4`).

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
    dependents: Vec<Arc<JobCore>>,
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
            return dependents;
        }
        for waiter in waiters {
            waiter.notify();
        }
        dependents
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
        let mut settled = self.settled.lock();
        if settled.outcome.is_some() {
            return false;
        }
        settled.dependents.push(Arc::clone(dependent));
        true
    }

    /// The jobs that wait for this one to settle.
    pub(crate) fn dependents(&self) -> Vec<Arc<JobCore>> {
        self.settled.lock().dependents.clone()
    }

    /// One dependency less to wait for; true for the last.
    pub(crate) fn dependency_settled(&self) -> bool {
        self.pending_dependencies.fetch_sub(1, Ordering::SeqCst) == 1
    }
}
