//! The accounts that waiters ask of, and what walks know of each.
//!
//! # Invariants
//!
//! 1. Every account of a group has one slot, which is gone when no group has the account.
//! 2. A slot counts the members of all its groups that its account has not held yet.
//! 3. Of those, nobody asks for more than `most` names, by the count of amounts.
//! 4. What a walk knows of an account is forgotten with the walk, and what fits there with the
//!    next debit.

use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use smallvec::SmallVec;

use super::Gone;
use super::foresight::View;
use crate::admission::demand::{Demand, Filed};
use crate::admission::ids::IdMap;
use crate::admission::question::revision;
use crate::unwind::contain;

pub(super) type SlotId = usize;

#[derive(Default)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    by_account: IdMap<SlotId>,
}

/// An account that groups have in common.
pub(super) struct Slot {
    account: u64,
    /// How many groups have it.
    pub(super) groups: usize,
    /// Leads to the account.
    sample: Question,
    /// The revision under which every class on it has been asked.
    pub(super) asked_under: Option<u64>,
    pub(super) unheld: usize,
    /// One for each count of amounts.
    most: SmallVec<[Most; 1]>,
    pub(super) known: Known,
}

/// One entry of a demand.
#[derive(Clone)]
pub(super) struct Question {
    demand: Arc<Demand>,
    index: usize,
}

impl Question {
    pub(super) fn new(demand: &Arc<Demand>, index: usize) -> Self {
        Self {
            demand: Arc::clone(demand),
            index,
        }
    }

    #[inline]
    fn entry(&self) -> Option<&Filed> {
        self.demand.entries().get(self.index)
    }
}

/// At least the most that somebody whom the account has not held yet asks of it.
pub(super) struct Most {
    pub(super) count: usize,
    pub(super) units: u64,
    pub(super) question: Question,
}

/// What is known of an account in one walk.
#[derive(Default)]
pub(super) struct Known {
    /// Which walk.
    walk: u64,
    /// Its revision, once it was asked for it.
    revision: Option<Option<u64>>,
    /// That the head is short on it, and when the clock alone closes that.
    pub(super) head: Option<Option<Instant>>,
    /// Which entry of the head reserves something on it.
    pub(super) reserved: Option<usize>,
    /// So many amounts of so many units fit beside the head, until it is debited.
    ample: SmallVec<[(usize, u64); 2]>,
}

impl Known {
    #[inline]
    pub(super) fn is_ample(&self, count: usize, units: u64) -> bool {
        self.ample
            .iter()
            .any(|(known, most)| *known == count && units <= *most)
    }

    pub(super) fn note_ample(&mut self, count: usize, units: u64) {
        match self.ample.iter_mut().find(|(known, _)| *known == count) {
            Some((_, most)) => *most = units,
            None => self.ample.push((count, units)),
        }
    }

    #[inline]
    pub(super) fn forget_ample(&mut self) {
        if !self.ample.is_empty() {
            self.ample.clear();
        }
    }
}

impl Slot {
    /// What this walk knows.
    #[inline]
    pub(super) fn known_in(&mut self, walk: u64) -> &mut Known {
        let known = &mut self.known;
        if known.walk != walk {
            known.walk = walk;
            known.revision = None;
            known.head = None;
            known.reserved = None;
            known.forget_ample();
        }
        known
    }

    /// Whether every class on it has been asked as the account now is. An account that fails to say
    /// is not settled.
    pub(super) fn is_settled(&mut self, walk: u64) -> bool {
        contain("limiter", || self.is_settled_says_account(walk)).unwrap_or(false)
    }

    /// As much; the account is asked, and may panic.
    #[inline]
    fn is_settled_says_account(&mut self, walk: u64) -> bool {
        let asked = self.known_in(walk).revision;
        let revision = match asked {
            Some(revision) => revision,
            None => {
                let revision = self.sample.entry().and_then(|entry| entry.revision());
                self.known.revision = Some(revision);
                revision
            }
        };
        revision.is_some() && revision == self.asked_under
    }

    /// Whether the account is as it was when every class on it was asked.
    pub(super) fn was_asked_as_now(&self, entry: &Filed) -> bool {
        let revision = revision(&**entry);
        revision.is_some() && revision == self.asked_under
    }

    /// Whether the head lacks it, and only an event fills it.
    #[inline]
    pub(super) fn blocks_head(&self, walk: u64) -> bool {
        self.known.walk == walk && self.known.head == Some(None)
    }

    /// Whether nobody on it can be refused, or has to be held on it for the first time. The account
    /// is asked, and may panic.
    #[inline]
    fn is_calm(&mut self, walk: u64, view: View<'_>) -> bool {
        if !self.is_settled_says_account(walk) {
            return false;
        }
        let Self { known, most, .. } = &*self;
        if self.unheld == 0 {
            return true;
        }
        if known.head.is_some() {
            return false;
        }
        let reserved = known.reserved.and_then(|at| view.head.entries().get(at));
        let reserved = reserved.map(|entry| &**entry);
        most.iter().all(|most| {
            let entry = most.question.entry();
            matches!(
                entry.map(|entry| entry.fits(reserved, view.now)),
                Some(Ok(true))
            )
        })
    }

    /// Somebody whom the account has not held may ask for so much. What is named no more goes to
    /// `gone`.
    pub(super) fn note_most(
        &mut self,
        (count, units): (usize, u64),
        question: Question,
        gone: &mut Gone,
    ) {
        let known = self.most.iter_mut().find(|known| known.count == count);
        match known {
            Some(known) if known.units >= units => gone.push(question.demand),
            Some(known) => {
                known.units = units;
                gone.push(std::mem::replace(&mut known.question, question).demand);
            }
            None => self.most.push(Most {
                count,
                units,
                question,
            }),
        }
    }

    /// A member that the account had not held is held now, or gone.
    #[inline]
    pub(super) fn leave_unheld(&mut self, gone: &mut Gone) {
        self.unheld -= 1;
        if self.unheld == 0 {
            self.forget_most(gone);
        }
    }

    pub(super) fn forget_most(&mut self, gone: &mut Gone) {
        gone.extend(self.most.drain(..).map(|most| most.question.demand));
    }
}

impl Slots {
    /// The slot of the account that this entry asks, for one group more.
    pub(super) fn enter(&mut self, entry: &Filed, question: Question) -> SlotId {
        let account = entry.account();
        if let Some(id) = self.by_account.get(&account)
            && let Some(slot) = self.slots.get_mut(*id)
        {
            slot.groups += 1;
            return *id;
        }
        let id = self.slots.insert(Slot {
            account,
            groups: 1,
            asked_under: revision(&**entry),
            sample: question,
            unheld: 0,
            most: SmallVec::new(),
            known: Known::default(),
        });
        self.by_account.insert(account, id);
        id
    }

    /// A group less. What is named no more goes to `gone`.
    pub(super) fn leave(&mut self, id: SlotId, gone: &mut Gone) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.groups -= 1;
        if slot.groups == 0
            && let Some(mut slot) = self.slots.try_remove(id)
        {
            self.by_account.remove(&slot.account);
            slot.forget_most(gone);
            gone.push(slot.sample.demand);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id)
    }

    /// The slot of an account, if a group has it.
    pub(super) fn of(&mut self, account: u64) -> Option<&mut Slot> {
        let id = self.by_account.get(&account)?;
        self.slots.get_mut(*id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().map(|(_, slot)| slot)
    }

    /// The first slot by id on which somebody may be refused, or held for the first time.
    pub(super) fn first_not_calm(&mut self, walk: u64, view: View<'_>) -> Option<SlotId> {
        let mut at = None;
        // One that panics is not calm either.
        let _asked = contain("limiter", || {
            for (id, slot) in &mut self.slots {
                at = Some(id);
                if !slot.is_calm(walk, view) {
                    return;
                }
            }
            at = None;
        });
        at
    }

    /// This walk has asked every class.
    pub(super) fn note_asked(&mut self, walk: u64) {
        for (_, slot) in &mut self.slots {
            if slot.known.walk == walk
                && let Some(revision) = slot.known.revision
            {
                slot.asked_under = revision;
            }
        }
    }

    /// Whether the slots are these, with so many groups and unheld members.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self, by_account: &IdMap<(usize, usize)>) {
        assert_eq!(self.slots.len(), by_account.len(), "invariant 1");
        assert_eq!(self.by_account.len(), by_account.len(), "invariant 1");
        for (id, slot) in &self.slots {
            assert_eq!(self.by_account.get(&slot.account), Some(&id), "invariant 1");
            let counted = by_account.get(&slot.account);
            assert_eq!(counted, Some(&(slot.groups, slot.unheld)), "invariant 2");
            assert_eq!(slot.unheld == 0, slot.most.is_empty(), "invariant 3");
        }
    }
}
