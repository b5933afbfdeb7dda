//! What one job needs, all of it, on every account at once (`DEM`).
//!
//! # Invariants
//!
//! 1. Entries stand in the order in which their first amount was added.
//! 2. Amounts that debit one account are one entry, so the account sees the whole ask. Those of another
//!    type are another entry, and admission refuses a demand that has both.
//! 3. A demand can be dropped anywhere: a destructor of a user's amount or limiter that panics is
//!    contained, and everything else of the demand is dropped all the same.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use super::account::{AccountKey, AccountStatus, RateLimiter, Replenishment};
use crate::clock::Stamp;
use crate::error::JobError;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::unwind::discard;

/// Everything that a job must hold at once. Granted whole, or not at all.
#[derive(Default)]
pub struct Demand {
    entries: SmallVec<[Filed; 3]>,
}

impl Demand {
    /// A demand for nothing, which is always granted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an amount on the account that `limiter` debits for it.
    pub fn add<L: RateLimiter>(&mut self, limiter: &Arc<L>, amount: L::Amount) {
        let key = limiter.account_for(&amount);
        let existing = self
            .entries
            .iter_mut()
            .find(|filed| filed.account == key.id())
            .and_then(|filed| {
                filed
                    .entry
                    .amounts_mut()
                    .downcast_mut::<Amounts<L::Amount>>()
            });
        match existing {
            Some(amounts) => amounts.push(amount),
            None => self.entries.push(Filed {
                account: key.id(),
                entry: Box::new(EntryOn {
                    limiter: Arc::clone(limiter),
                    key,
                    amounts: smallvec![amount],
                    taken: AtomicU64::new(Stamp::never().word()),
                }),
            }),
        }
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many accounts are named.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Each account's name and how many units are asked of it, in entry order.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries
            .iter()
            .map(|entry| (entry.key().name(), entry.units()))
    }

    #[inline]
    pub(crate) fn entries(&self) -> &[Filed] {
        &self.entries
    }

    /// This demand's entry on the account of this id.
    #[inline]
    pub(super) fn entry_on(&self, account: u64) -> Option<&dyn Entry> {
        self.entries
            .iter()
            .find(|filed| filed.account == account)
            .map(|filed| &*filed.entry)
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        while let Some(entry) = self.entries.pop() {
            discard(entry);
        }
    }
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.amounts()).finish()
    }
}

/// An entry, and beside it the id of its account, which the line compares at every look.
pub(crate) struct Filed {
    account: u64,
    entry: Box<dyn Entry>,
}

impl Filed {
    /// The id of its account.
    #[inline]
    pub(crate) fn account(&self) -> u64 {
        self.account
    }
}

impl Deref for Filed {
    type Target = dyn Entry;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &*self.entry
    }
}

/// One account and all the amounts asked of it, with the type of the amount erased.
pub(crate) trait Entry: Send + Sync {
    fn key(&self) -> &AccountKey;
    fn amounts(&self) -> &dyn Any;
    fn amounts_mut(&mut self) -> &mut dyn Any;
    fn units(&self) -> u64;
    fn status(&self) -> AccountStatus;
    fn replenishment(&self) -> Replenishment;
    fn fits(&self, ahead: Option<&dyn Entry>, now: Instant) -> Result<bool, JobError>;
    fn try_take(&self, ahead: Option<&dyn Entry>, now: Instant) -> Result<bool, JobError>;
    fn earliest_fit(&self, ahead: Option<&dyn Entry>, now: Instant) -> Option<Instant>;
    fn give(&self, now: Instant);
    /// How many amounts are asked.
    fn count(&self) -> usize;
    /// A demand on the same account for all of this so many times over.
    fn times(&self, times: usize) -> Demand;
    /// How far the account may be foreseen; see [`RateLimiter::revision`].
    fn revision(&self) -> Option<u64>;
    fn announces_revisions(&self) -> bool;
    /// Whether another entry on the same account asks for the same amounts.
    fn asks_as(&self, other: &dyn Entry) -> bool;
    /// Hashes the amounts.
    fn feed(&self, hasher: &mut dyn Hasher);
}

/// Most jobs ask for one amount on an account: it lies with the entry.
type Amounts<A> = SmallVec<[A; 1]>;

struct EntryOn<L: RateLimiter> {
    limiter: Arc<L>,
    key: AccountKey,
    amounts: Amounts<L::Amount>,
    /// When the account was debited, as a [`Stamp`]. A demand is granted once.
    taken: AtomicU64,
}

impl<L: RateLimiter> Drop for EntryOn<L> {
    fn drop(&mut self) {
        // One by one: of two panics in one drop the second would be the end of the process.
        if std::mem::needs_drop::<L::Amount>() {
            while let Some(amount) = self.amounts.pop() {
                discard(amount);
            }
        }
    }
}

/// The amounts that the head has set aside, if it has any on this account. Another entry on the
/// same account has the same type of amount: a demand of another is not let in (`accounts.rs`).
fn reserved<A: 'static>(ahead: Option<&dyn Entry>) -> &[A] {
    ahead
        .and_then(|entry| entry.amounts().downcast_ref::<Amounts<A>>())
        .map_or(&[], SmallVec::as_slice)
}

impl<L: RateLimiter> Entry for EntryOn<L> {
    fn key(&self) -> &AccountKey {
        &self.key
    }

    fn amounts(&self) -> &dyn Any {
        &self.amounts
    }

    fn amounts_mut(&mut self) -> &mut dyn Any {
        &mut self.amounts
    }

    fn units(&self) -> u64 {
        self.amounts.iter().fold(0, |sum, amount| {
            sum.saturating_add(self.limiter.units(amount))
        })
    }

    fn status(&self) -> AccountStatus {
        self.limiter.describe(&self.key)
    }

    fn replenishment(&self) -> Replenishment {
        self.limiter.replenishment()
    }

    fn fits(&self, ahead: Option<&dyn Entry>, now: Instant) -> Result<bool, JobError> {
        self.limiter.fits(&self.amounts, reserved(ahead), now)
    }

    fn try_take(&self, ahead: Option<&dyn Entry>, now: Instant) -> Result<bool, JobError> {
        let took = self.limiter.try_take(&self.amounts, reserved(ahead), now)?;
        if took {
            self.taken.store(Stamp::of(now).word(), Ordering::Relaxed);
        }
        Ok(took)
    }

    fn earliest_fit(&self, ahead: Option<&dyn Entry>, now: Instant) -> Option<Instant> {
        self.limiter
            .earliest_fit(&self.amounts, reserved(ahead), now)
    }

    fn give(&self, now: Instant) {
        match Stamp::of_word(self.taken.load(Ordering::Relaxed)).instant() {
            Some(taken) => self.limiter.give_taken(&self.amounts, taken, now),
            None => self.limiter.give(&self.amounts, now),
        }
    }

    fn count(&self) -> usize {
        self.amounts.len()
    }

    fn times(&self, times: usize) -> Demand {
        let each = std::iter::repeat_n(&self.amounts, times);
        let filed = Filed {
            account: self.key.id(),
            entry: Box::new(Self {
                limiter: Arc::clone(&self.limiter),
                key: self.key.clone(),
                amounts: each.flatten().cloned().collect(),
                taken: AtomicU64::new(Stamp::never().word()),
            }),
        };
        Demand {
            entries: smallvec![filed],
        }
    }

    fn revision(&self) -> Option<u64> {
        self.limiter.revision()
    }

    fn announces_revisions(&self) -> bool {
        self.limiter.announces_revisions()
    }

    fn asks_as(&self, other: &dyn Entry) -> bool {
        other
            .amounts()
            .downcast_ref::<Amounts<L::Amount>>()
            .is_some_and(|amounts| *amounts == self.amounts)
    }

    fn feed(&self, mut hasher: &mut dyn Hasher) {
        self.amounts.hash(&mut hasher);
    }
}
