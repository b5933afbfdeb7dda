//! What a job was granted, and how it goes back.
//!
//! # Invariants
//!
//! 1. Each entry of a grant is settled once, whoever comes first: the job's own close, a forced
//!    close, or the drop.
//! 2. From the instant at which the accounts were debited there is an owner: a grant that is lost
//!    on the way (a panic, a cancel) releases what it holds when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::account::AccountKey;
use super::demand::Demand;
use super::line::Waits;
use super::monitor::Admission;
use super::outbox::Behind;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Everything that one demand was granted. Its drop releases what is still held; it does not wait.
#[must_use = "a grant that is dropped is released"]
pub struct Grant {
    admission: Admission,
    demand: Arc<Demand>,
    behind: Option<Arc<Behind>>,
    /// None for a grant at once.
    waits: Option<Box<Waits>>,
    open: Mutex<Vec<usize>>,
    /// Whether the work that this was granted for counts as running. A part that was split off
    /// does not: the work is over when the grant itself is settled.
    running: AtomicBool,
}

/// Which accounts a settlement credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// The work is over: what was held for its duration comes back.
    Release,
    /// The work never happened: everything comes back, metered amounts too.
    Rollback,
}

impl Grant {
    pub(super) fn new(
        admission: Admission,
        demand: Arc<Demand>,
        behind: Option<Arc<Behind>>,
        waits: Option<Box<Waits>>,
    ) -> Self {
        let open = (0..demand.len()).collect();
        let running = AtomicBool::new(!demand.is_empty());
        Self {
            admission,
            demand,
            behind,
            waits,
            open: Mutex::new(open),
            running,
        }
    }

    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.demand.is_empty()
    }

    /// The wall time from asking to the grant.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.waits
            .as_ref()
            .map_or(Duration::ZERO, |waits| waits.wall)
    }

    /// By account that refused the demand, how long from its first refusal to the grant. These
    /// overlap, so they do not add up to [`wait`](Self::wait).
    pub fn waits(&self) -> impl Iterator<Item = (&str, Duration)> {
        let by_entry = self.waits.iter().flat_map(|waits| &waits.by_entry);
        let entries = by_entry.filter_map(|(index, wait)| {
            let entry = self.demand.entries().get(*index)?;
            Some((entry.key().name(), *wait))
        });
        let memory = self.waits.iter().filter_map(|it| it.by_memory.as_ref());
        entries.chain(memory.map(|(account, wait)| (&**account, *wait)))
    }

    /// Gives back what was held for the duration of the work. A second settlement of either kind
    /// does nothing.
    pub fn release(&self) {
        self.settle(Settlement::Release);
    }

    /// Gives back everything, metered amounts included, because the work never happened. A second
    /// settlement of either kind does nothing.
    pub fn rollback(&self) {
        self.settle(Settlement::Rollback);
    }

    /// Splits off the entries on these accounts, to be released on their own when the returned
    /// grant is; `None` when none of them is still open here.
    pub(crate) fn split_off(&self, accounts: &[AccountKey]) -> Option<Grant> {
        let mut open = self.open.lock();
        let (kept, split): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *open).into_iter().partition(|index| {
                self.demand
                    .entries()
                    .get(*index)
                    .is_none_or(|entry| !accounts.contains(entry.key()))
            });
        *open = kept;
        (!split.is_empty()).then(|| Grant {
            admission: self.admission.clone(),
            demand: Arc::clone(&self.demand),
            behind: self.behind.clone(),
            waits: None,
            open: Mutex::new(split),
            running: AtomicBool::new(false),
        })
    }

    /// The names of the accounts whose entries have not been settled.
    pub(crate) fn open_accounts(&self) -> Vec<String> {
        let open = self.open.lock().clone();
        open.iter()
            .filter_map(|index| self.demand.entries().get(*index))
            .map(|entry| entry.key().name().to_owned())
            .collect()
    }

    /// Takes back entries that were split off.
    pub(crate) fn adopt(&self, split: Grant) {
        let entries = std::mem::take(&mut *split.open.lock());
        self.open.lock().extend(entries);
    }

    fn settle(&self, settlement: Settlement) {
        let open = std::mem::take(&mut *self.open.lock());
        let finished = self.running.swap(false, Ordering::SeqCst);
        if finished || !open.is_empty() {
            self.admission.give_back(
                &self.demand,
                &open,
                settlement,
                finished,
                self.behind.as_ref(),
            );
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("demand", &self.demand)
            .field("wait", &self.wait())
            .finish_non_exhaustive()
    }
}
