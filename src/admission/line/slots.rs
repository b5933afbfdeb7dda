//! The accounts that waiters ask of, and what walks know of each.
//!
//! # Invariants
//!
//! 1. Every account of a group has one slot, which is gone when no group has the account.
//! 2. A slot counts the members of all its groups that its account has not held yet.
//! 3. Of those, nobody asks for more than `most` names, by the count of amounts.
//! 4. `unannounced` and `tight` name the slots that they say, and no others.
//! 5. What a walk knows of an account is forgotten with the walk, and what fits there with the
//!    next debit. Only the room of `most` outlasts both: it shrinks with each debit, and is gone when
//!    the revision changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use smallvec::SmallVec;

use super::Gone;
use super::foresight::View;
use super::groups::GroupId;
use crate::admission::account::revisions;
use crate::admission::demand::{Demand, Filed};
use crate::admission::ids::IdMap;
use crate::admission::question::{announces_revisions, revision};
use crate::unwind::contain;

pub(super) type SlotId = usize;

#[derive(Default)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    by_account: IdMap<SlotId>,
    /// Those whose accounts do not say when their revisions change.
    unannounced: BTreeSet<SlotId>,
    /// Those of whose `most` one has no room.
    tight: BTreeSet<SlotId>,
    /// How many revisions had been announced when those that announce them were last found settled.
    settled: Option<u64>,
}

/// An account that groups have in common.
pub(super) struct Slot {
    account: u64,
    /// How many groups have it.
    pub(super) groups: usize,
    /// The group that comes or goes, which may name it twice: two limits may answer one key.
    coming: Option<GroupId>,
    going: Option<GroupId>,
    /// Leads to the account.
    sample: Question,
    /// The revision under which every class on it has been asked.
    pub(super) asked_under: Option<u64>,
    announces: bool,
    pub(super) unheld: usize,
    /// One for each count of amounts.
    most: Vec<Most>,
    is_tight: bool,
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
struct Most {
    count: usize,
    units: u64,
    question: Question,
    /// So many times in a row the most is known to fit. Every debit of no more than that takes one off.
    room: usize,
    /// So much room is asked for at once: that spares the questions of as many walks.
    asked: usize,
    /// What is asked for: the most so many times, and how many.
    copies: Option<(usize, Arc<Demand>)>,
}

/// As much room as is ever asked for.
const MUCH_ROOM: usize = 32;

impl Most {
    fn new((count, units): (usize, u64), question: Question) -> Self {
        Self {
            count,
            units,
            question,
            room: 0,
            asked: MUCH_ROOM,
            copies: None,
        }
    }

    fn leave(self, gone: &mut Gone) {
        gone.push(self.question.demand);
        gone.extend(self.copies.map(|(_, copies)| copies));
    }

    /// Whether amounts are no more than the most.
    fn covers(&self, (count, units): (usize, u64)) -> bool {
        self.count == count && units <= self.units
    }

    /// Whether it is known to fit beside what the head reserves.
    #[inline]
    fn has_room(&self, reserved: Option<&Reserved>) -> bool {
        match reserved {
            None => self.room > 0,
            Some(reserved) => self.room > 1 && self.covers(reserved.asked),
        }
    }

    /// Whether it fits beside what the head reserves. The account is asked, and may panic.
    #[inline(never)]
    fn fits(&mut self, reserved: Option<&Reserved>, view: View<'_>, gone: &mut Gone) -> bool {
        self.ask_for_room(view.now, gone);
        if self.has_room(reserved) {
            return true;
        }
        let reserved = reserved.and_then(|it| view.head.entries().get(it.entry));
        let entry = self.question.entry();
        let fits = entry.map(|entry| entry.fits(reserved.map(|it| &**it), view.now));
        let fits = matches!(fits, Some(Ok(true)));
        if fits {
            // Beside what the head reserves, so alone as well.
            self.room = self.room.max(1);
        }
        fits
    }

    fn ask_for_room(&mut self, now: Instant, gone: &mut Gone) {
        let Some(entry) = self.question.entry().filter(|_| self.room == 0) else {
            return;
        };
        let asked = self.asked;
        if self
            .copies
            .as_ref()
            .is_none_or(|(times, _)| *times != asked)
        {
            let copies = Some((asked, Arc::new(entry.times(asked))));
            let other = std::mem::replace(&mut self.copies, copies);
            gone.extend(other.map(|(_, copies)| copies));
        }
        let copies = self.copies.as_ref();
        let copies = copies.and_then(|(_, copies)| copies.entries().first());
        if copies.is_some() && matches!(entry.fits(copies.map(|it| &**it), now), Ok(true)) {
            self.room = asked + 1;
            self.asked = MUCH_ROOM.min(asked * 2);
        } else {
            self.asked = (asked / 2).max(1);
        }
    }
}

/// What the head has set aside on an account.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    /// By which entry of its demand.
    pub(super) entry: usize,
    /// So many amounts of so many units.
    pub(super) asked: (usize, u64),
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
    pub(super) reserved: Option<Reserved>,
    /// So many amounts of so many units fit beside the head, until it is debited.
    ample: Vec<(usize, u64)>,
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
        let revision = match self.known_in(walk).revision {
            Some(revision) => revision,
            None => {
                let revision = self.sample.entry().and_then(|entry| revision(&**entry));
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

    /// Whether every class on it has been asked as the account now is. It is asked, and may panic.
    #[inline]
    fn is_as_asked(&self) -> bool {
        let revision = self.sample.entry().and_then(|entry| entry.revision());
        revision.is_some() && revision == self.asked_under
    }

    /// Whether nobody on it has to be held on it for the first time, by what is known.
    #[inline]
    fn is_calm(&self, walk: u64) -> bool {
        self.unheld == 0 || {
            let (head, reserved) = self.of_head(walk);
            head.is_none() && self.most.iter().all(|most| most.has_room(reserved))
        }
    }

    /// As much, by what the account says. It is asked, and may panic.
    fn has_calm(&mut self, walk: u64, view: View<'_>, gone: &mut Gone) -> bool {
        self.unheld == 0 || {
            let (head, reserved) = self.of_head(walk);
            let (is_lacking, reserved) = (head.is_some(), reserved.copied());
            let reserved = reserved.as_ref();
            let mut most = self.most.iter_mut();
            !is_lacking
                && most.all(|most| most.has_room(reserved) || most.fits(reserved, view, gone))
        }
    }

    /// What this walk knows of the head on it: until when it lacks it, and what it reserves.
    #[inline]
    fn of_head(&self, walk: u64) -> (Option<Option<Instant>>, Option<&Reserved>) {
        match self.known.walk == walk {
            true => (self.known.head, self.known.reserved.as_ref()),
            false => (None, None),
        }
    }

    #[inline]
    fn has_no_room(&self) -> bool {
        self.most.iter().any(|most| most.room == 0)
    }

    /// A member of a group was granted so much of it.
    #[inline]
    pub(super) fn debit(&mut self, asked: (usize, u64)) {
        for most in &mut self.most {
            most.room = if most.covers(asked) {
                most.room.saturating_sub(1)
            } else {
                0
            };
        }
    }

    /// Nothing is known any more of what fits.
    pub(super) fn forget_room(&mut self) {
        self.most.iter_mut().for_each(|most| most.room = 0);
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
                let less = std::mem::replace(known, Most::new((count, units), question));
                less.leave(gone);
            }
            None => self.most.push(Most::new((count, units), question)),
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
        self.most.drain(..).for_each(|most| most.leave(gone));
    }
}

impl Slots {
    /// The slot of the account that this entry asks, for a new group.
    pub(super) fn enter(&mut self, entry: &Filed, question: Question, group: GroupId) -> SlotId {
        let account = entry.account();
        if let Some(id) = self.by_account.get(&account)
            && let Some(slot) = self.slots.get_mut(*id)
        {
            slot.going = None;
            if slot.coming.replace(group) != Some(group) {
                slot.groups += 1;
            }
            return *id;
        }
        let announces = announces_revisions(&**entry);
        let asked_under = revision(&**entry);
        if asked_under.is_none() {
            self.settled = None;
        }
        let id = self.slots.insert(Slot {
            account,
            groups: 1,
            coming: Some(group),
            going: None,
            asked_under,
            announces,
            sample: question,
            unheld: 0,
            most: Vec::new(),
            is_tight: false,
            known: Known::default(),
        });
        self.by_account.insert(account, id);
        if !announces {
            self.unannounced.insert(id);
        }
        id
    }

    /// A group less. What is named no more goes to `gone`.
    pub(super) fn leave(&mut self, id: SlotId, group: GroupId, gone: &mut Gone) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.coming = None;
        if slot.going.replace(group) == Some(group) {
            return;
        }
        slot.groups -= 1;
        if slot.groups == 0
            && let Some(mut slot) = self.slots.try_remove(id)
        {
            self.by_account.remove(&slot.account);
            self.unannounced.remove(&id);
            self.tight.remove(&id);
            slot.forget_most(gone);
            gone.push(slot.sample.demand);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id)
    }

    /// Whether a group has this account.
    pub(super) fn has(&self, account: u64) -> bool {
        self.by_account.contains_key(&account)
    }

    /// The slot of an account, if a group has it.
    pub(super) fn of(&self, account: u64) -> Option<SlotId> {
        self.by_account.get(&account).copied()
    }

    #[inline]
    pub(super) fn get(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id)
    }

    /// Changes who is unheld on a slot, or what is known of its room.
    #[inline]
    pub(super) fn change(&mut self, id: SlotId, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.slots.get_mut(id) {
            change(slot);
            let is_tight = slot.has_no_room();
            if is_tight != slot.is_tight {
                slot.is_tight = is_tight;
                self.note_tight(id, is_tight);
            }
        }
    }

    #[inline(never)]
    fn note_tight(&mut self, id: SlotId, is_tight: bool) {
        if is_tight {
            self.tight.insert(id);
        } else {
            self.tight.remove(&id);
        }
    }

    /// Whether every class on every account has been asked as the account now is.
    pub(super) fn are_settled(&mut self) -> bool {
        let announced = revisions();
        if self.settled != Some(announced) {
            let mut slots = self.slots.iter().map(|(_, slot)| slot);
            if !asked_as_they_are(slots.by_ref().filter(|slot| slot.announces)) {
                return false;
            }
            self.settled = Some(announced);
        }
        let unannounced = self.unannounced.iter();
        self.unannounced.is_empty()
            || asked_as_they_are(unannounced.filter_map(|id| self.slots.get(*id)))
    }

    /// Whether it is known that nobody has to be held for the first time on any account, of which
    /// the head asks these.
    #[inline]
    pub(super) fn are_calm(&self, mut of_head: impl Iterator<Item = SlotId>, walk: u64) -> bool {
        self.tight.is_empty()
            && of_head.all(|id| self.slots.get(id).is_some_and(|slot| slot.is_calm(walk)))
    }

    /// The slots of which that is not known.
    #[inline(never)]
    pub(super) fn doubtful(
        &self,
        of_head: impl Iterator<Item = SlotId>,
        walk: u64,
    ) -> SmallVec<[SlotId; 4]> {
        let restless = of_head.filter(|id| {
            let slot = self.slots.get(*id);
            slot.is_some_and(|slot| !slot.is_tight && !slot.is_calm(walk))
        });
        restless.chain(self.tight.iter().copied()).collect()
    }

    /// Whether nobody on a slot has to be held on it for the first time; the account is asked. Of
    /// one that panics it is not known.
    #[inline(never)]
    pub(super) fn is_calm(
        &mut self,
        id: SlotId,
        walk: u64,
        view: View<'_>,
        gone: &mut Gone,
    ) -> bool {
        let mut is_calm = false;
        self.change(id, |slot| {
            let asked = contain("limiter", || slot.has_calm(walk, view, gone));
            is_calm = asked.unwrap_or(false);
        });
        is_calm
    }

    /// This walk has asked every class.
    pub(super) fn note_asked(&mut self, walk: u64) {
        for (id, slot) in &mut self.slots {
            if slot.known.walk == walk
                && let Some(revision) = slot.known.revision
                && slot.asked_under != revision
            {
                slot.asked_under = revision;
                slot.forget_room();
                slot.is_tight = slot.has_no_room();
                if slot.is_tight {
                    self.tight.insert(id);
                }
                self.settled = None;
            }
        }
    }

    /// Whether the slots are these, with so many groups and unheld members.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self, by_account: &IdMap<(BTreeSet<GroupId>, usize)>) {
        assert_eq!(self.slots.len(), by_account.len(), "invariant 1");
        assert_eq!(self.by_account.len(), by_account.len(), "invariant 1");
        for (id, slot) in &self.slots {
            assert_eq!(self.by_account.get(&slot.account), Some(&id), "invariant 1");
            let counted = by_account.get(&slot.account);
            let counted = counted.map(|(groups, unheld)| (groups.len(), *unheld));
            assert_eq!(counted, Some((slot.groups, slot.unheld)), "invariant 2");
            assert_eq!(slot.unheld == 0, slot.most.is_empty(), "invariant 3");
            assert_eq!(slot.has_no_room(), self.tight.contains(&id), "invariant 4");
            assert_eq!(slot.is_tight, self.tight.contains(&id), "invariant 4");
            let asked_in_every_walk = self.unannounced.contains(&id);
            assert_eq!(slot.announces, !asked_in_every_walk, "invariant 4");
        }
    }
}

/// Whether every class on each of these has been asked as its account now is. None of a panic.
fn asked_as_they_are<'a>(mut slots: impl Iterator<Item = &'a Slot>) -> bool {
    contain("limiter", || slots.all(Slot::is_as_asked)).unwrap_or(false)
}
