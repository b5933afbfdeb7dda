//! The accounts that the line has met: whose they are, how many waiters each holds, and what is
//! told about them.
//!
//! # Invariants
//!
//! 1. `names` leads from the name of every account that was met to its id, and nowhere else.
//! 2. Every demand that is let in asks an account for amounts of one type, that of the first. So there is
//!    one entry on an account in a demand, and what the head has set aside on it is read by everyone.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::account::{AccountKey, Wake};
use super::demand::{Demand, Filed};
use super::ids::IdMap;
use super::line::{Waiter, Waits};
use super::outbox::{Behind, Note, Outbox};
use crate::error::JobError;
use crate::events::{LimiterChange, RejectReason};
use crate::unwind::contain;

/// The register of accounts, by id.
#[derive(Default)]
pub(super) struct Accounts {
    met: IdMap<Registered>,
    names: HashMap<Arc<str>, u64>,
    /// With so many met, those that are gone are looked for again.
    look_again_at: usize,
    /// Whether an account was let go of while demands on it may still be out.
    pub(super) has_let_go: bool,
}

struct Registered {
    key: AccountKey,
    /// Of what is asked of it; none when no demand can name it.
    amount: Option<TypeId>,
    held: usize,
}

impl Registered {
    /// Whether the account and every demand on it have been dropped.
    fn is_gone(&self) -> bool {
        self.held == 0 && self.key.is_the_last()
    }
}

impl Accounts {
    /// Makes every account of a demand the line's own, before its first question; or none of those
    /// that it brings, when one cannot be.
    pub(super) fn claim(
        &mut self,
        owner: u64,
        wake: &Wake,
        demand: &Demand,
    ) -> Result<(), JobError> {
        let mut entries = demand.entries().iter();
        if entries.all(|entry| self.has_for(entry)) {
            return Ok(());
        }
        self.claim_new(owner, wake, demand)
    }

    #[inline(never)]
    fn claim_new(&mut self, owner: u64, wake: &Wake, demand: &Demand) -> Result<(), JobError> {
        let mut claimed = Vec::new();
        for entry in demand.entries() {
            if self.has_for(entry) {
                continue;
            }
            if let Err(error) = self.claim_one(owner, wake, entry) {
                for id in claimed {
                    if let Some(account) = self.remove(id) {
                        account.key.clear(owner);
                    }
                }
                return Err(error);
            }
            claimed.push(entry.account());
        }
        Ok(())
    }

    fn claim_one(&mut self, owner: u64, wake: &Wake, entry: &Filed) -> Result<(), JobError> {
        let key = entry.key();
        if self.has(entry.account()) {
            return Err(JobError::system(
                "admission",
                format!(
                    "two limits answer the account '{}' (#{}) for amounts of different types: give each \
                     a key of its own",
                    key.name(),
                    key.id()
                ),
            ));
        }
        if let Some(other) = self.namesake(key) {
            return Err(JobError::system(
                "admission",
                format!(
                    "two accounts are named '{}' (#{} and #{}): give each limit a name of its own",
                    key.name(),
                    other.key.id(),
                    key.id()
                ),
            ));
        }
        key.install(owner, wake).map_err(|first| {
            JobError::system(
                "admission",
                format!(
                    "the account '{}' belongs to admission #{first} and cannot serve #{owner} as well",
                    key.name()
                ),
            )
        })?;
        self.forget_gone();
        self.insert(key, Some(entry.amounts().type_id()));
        Ok(())
    }

    fn insert(&mut self, key: &AccountKey, amount: Option<TypeId>) {
        self.names.insert(key.name_shared(), key.id());
        let registered = Registered {
            key: key.clone(),
            amount,
            held: 0,
        };
        self.met.insert(key.id(), registered);
    }

    fn remove(&mut self, account: u64) -> Option<Registered> {
        let account = self.met.remove(&account)?;
        self.names.remove(account.key.name());
        Some(account)
    }

    /// Keeps those that `stays` says.
    fn retain(&mut self, mut stays: impl FnMut(u64, &Registered) -> bool) {
        self.met.retain(|id, account| stays(*id, account));
        self.names.retain(|_, id| self.met.contains_key(id));
    }

    /// Whether an account is the line's own.
    #[inline]
    pub(super) fn has(&self, account: u64) -> bool {
        self.met.contains_key(&account)
    }

    /// Whether the account of an entry is the line's own, for what the entry asks of it.
    #[inline]
    fn has_for(&self, entry: &Filed) -> bool {
        let met = self.met.get(&entry.account());
        met.is_some_and(|account| account.amount == Some(entry.amounts().type_id()))
    }

    /// The account that has this name already, unless nobody has that account any more.
    fn namesake(&mut self, key: &AccountKey) -> Option<&Registered> {
        let id = *self.names.get(key.name())?;
        if self.met.get(&id).is_some_and(Registered::is_gone) {
            self.remove(id);
        }
        self.met.get(&id)
    }

    /// Forgets the accounts that nobody has any more. Looked for each time their number has
    /// doubled, so that a program that makes limits as it goes pays for each of them once.
    fn forget_gone(&mut self) {
        const FEW: usize = 64;
        if self.met.len() >= self.look_again_at.max(FEW) {
            self.retain(|_, account| !account.is_gone());
            self.look_again_at = self.met.len() * 2;
        }
    }

    /// Keeps a name from accounts: the line has an account of its own that no demand names.
    pub(super) fn reserve(&mut self, key: &AccountKey) {
        self.insert(key, None);
    }

    /// Lets go of every account that no waiter asks for, but for the reserved one. One that is named
    /// again is claimed again.
    pub(super) fn forget_idle(
        &mut self,
        owner: u64,
        reserved: Option<&AccountKey>,
        is_asked_for: impl Fn(u64) -> bool,
    ) {
        let mut has_let_go = self.has_let_go;
        self.retain(|id, account| {
            let stays = is_asked_for(id) || reserved == Some(&account.key);
            if !stays {
                account.key.clear(owner);
                has_let_go = true;
            }
            stays
        });
        self.has_let_go = has_let_go;
    }

    /// Lets go of every account.
    pub(super) fn release_all(&mut self, owner: u64) {
        self.has_let_go = true;
        self.names.clear();
        for (_, account) in self.met.drain() {
            account.key.clear(owner);
        }
    }

    /// Notes which accounts refused a waiter, each once however often it is refused again. Answers
    /// the entries that had not before.
    pub(super) fn hold(
        &mut self,
        waiter: &mut Waiter,
        entries: impl Iterator<Item = usize>,
        now: Instant,
        out: &mut Outbox,
    ) -> SmallVec<[usize; 2]> {
        let mut first = SmallVec::new();
        for index in entries {
            if waiter.is_held_by(index) {
                continue;
            }
            waiter.held.push((index, now));
            first.push(index);
            if let Some(entry) = waiter.demand.entries().get(index) {
                self.count_held(entry.account(), 1);
                self.tell(
                    entry,
                    waiter.behind.as_ref(),
                    LimiterChange::Held,
                    None,
                    Duration::ZERO,
                    out,
                );
            }
        }
        first
    }

    /// Tells everyone who held the waiter, and notes how long each did.
    pub(super) fn tell_granted(
        &mut self,
        waiter: &Waiter,
        now: Instant,
        waits: &mut Waits,
        out: &mut Outbox,
    ) {
        waits.wall = now.saturating_duration_since(waiter.asked);
        for (index, since) in &waiter.held {
            // Most are held from the instant at which they asked.
            let wait = if *since == waiter.asked {
                waits.wall
            } else {
                now.saturating_duration_since(*since)
            };
            if let Some(entry) = waiter.demand.entries().get(*index) {
                self.count_held(entry.account(), -1);
            }
            waits.by_entry.push((*index, wait));
        }
        if waits.by_entry.len() > 1 {
            waits.by_entry.sort_unstable_by_key(|(index, _)| *index);
        }
        if let Some(behind) = &waiter.behind {
            self.tell_who_granted(&waiter.demand, waits, behind, out);
        }
    }

    fn tell_who_granted(
        &self,
        demand: &Demand,
        waits: &Waits,
        behind: &Arc<Behind>,
        out: &mut Outbox,
    ) {
        for (index, entry) in demand.entries().iter().enumerate() {
            let held = waits.by_entry.iter().find(|(held, _)| *held == index);
            let (change, wait) = match held {
                None => (LimiterChange::GrantedImmediate, Duration::ZERO),
                Some((_, wait)) => (LimiterChange::GrantedFromHold, *wait),
            };
            self.tell_of(entry, behind, (change, None), wait, out);
        }
    }

    /// Every account that held the waiter hears the reason, and the one that refused it.
    pub(super) fn tell_rejected(
        &mut self,
        waiter: &Waiter,
        refusing: Option<usize>,
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        for (index, entry) in waiter.demand.entries().iter().enumerate() {
            let since = waiter.held.iter().find(|(held, _)| *held == index);
            let wait = match since {
                Some((_, since)) => {
                    self.count_held(entry.account(), -1);
                    now.saturating_duration_since(*since)
                }
                None if refusing == Some(index) => Duration::ZERO,
                None => continue,
            };
            self.tell(
                entry,
                waiter.behind.as_ref(),
                LimiterChange::Rejected,
                Some(reason),
                wait,
                out,
            );
        }
    }

    #[inline]
    fn count_held(&mut self, account: u64, change: isize) {
        if let Some(account) = self.met.get_mut(&account) {
            account.held = account.held.saturating_add_signed(change);
        }
    }

    /// Best effort: an account that cannot describe itself has no event, and admission goes on.
    #[inline]
    pub(super) fn tell(
        &self,
        entry: &Filed,
        behind: Option<&Arc<Behind>>,
        change: LimiterChange,
        reason: Option<RejectReason>,
        wait: Duration,
        out: &mut Outbox,
    ) {
        if let Some(behind) = behind {
            self.tell_of(entry, behind, (change, reason), wait, out);
        }
    }

    #[inline(never)]
    fn tell_of(
        &self,
        entry: &Filed,
        behind: &Arc<Behind>,
        (change, reason): (LimiterChange, Option<RejectReason>),
        wait: Duration,
        out: &mut Outbox,
    ) {
        let Ok((status, amount)) = contain("limiter", || (entry.status(), entry.units())) else {
            return;
        };
        out.note(Note {
            account: entry.key().name_shared(),
            waiters: self
                .met
                .get(&entry.account())
                .map_or(0, |account| account.held),
            status,
            amount,
            change,
            reason,
            wait,
            behind: Arc::clone(behind),
        });
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn held_counts(&self) -> impl Iterator<Item = (&AccountKey, usize)> {
        self.met
            .values()
            .map(|account| (&account.key, account.held))
    }
}
