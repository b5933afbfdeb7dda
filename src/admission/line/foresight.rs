//! What a walk can tell of a group without asking every class in it.
//!
//! # Invariants
//!
//! 1. Of an account that promises nothing, nothing is foreseen.

use std::sync::Arc;
use std::time::Instant;

use super::groups::{Class, ClassId, GroupId, OfGroup, Parts, is_unheld};
use super::keyed::Keyed;
use super::seqs::Seq;
use super::slots::{Known, Reserved, Slot, SlotId};
use super::waiting::Waiting;
use crate::admission::demand::{Demand, Filed};
use crate::admission::question::{Shortfall, earliest, fits, reserved_on};

/// How the line foresees a group.
pub(super) enum Foresight {
    /// Somebody may be granted or refused.
    Open,
    /// Everyone in it is short on some entry.
    Closed {
        /// The classes with members that an entry would hold for the first time.
        unheld: Vec<(usize, ClassId)>,
        /// The earliest instant at which the clock alone could let somebody go; none is never.
        bound: Option<Instant>,
        /// The entry whose shortfall says so.
        last: usize,
    },
}

/// From where a walk looks.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// The demand of the head.
    pub(super) head: &'a Demand,
    pub(super) now: Instant,
}

impl View<'_> {
    pub(super) fn fits(&self, entry: &Filed) -> Option<bool> {
        let reserved = reserved_on(Some(self.head), entry.account());
        fits(&**entry, reserved, self.now)
    }

    fn earliest(&self, entry: &Filed) -> Option<Instant> {
        let reserved = reserved_on(Some(self.head), entry.account());
        earliest(&**entry, reserved, self.now)
    }
}

/// The entries of a group on which everyone is short.
#[derive(Default)]
struct Short {
    /// A bit for each.
    entries: u64,
    /// The one that holds everyone longest, and until when; none is for ever.
    longest: Option<(usize, Option<Instant>)>,
}

impl Short {
    fn add(&mut self, entry: usize, until: Option<Instant>) {
        self.entries |= 1 << entry;
        let is_longer = match (self.longest, until) {
            (None, _) | (Some((_, Some(_))), None) => true,
            (Some((_, None)), _) => false,
            (Some((_, Some(known))), Some(until)) => until > known,
        };
        if is_longer {
            self.longest = Some((entry, until));
        }
    }

    fn has(&self, entry: usize) -> bool {
        self.entries >> entry & 1 == 1
    }
}

impl Waiting {
    /// What the head reserves, and what it lacks. Nothing is known of an account that said "fits" and
    /// then declined.
    pub(super) fn note_head(&mut self, head: Seq, shortfall: &Shortfall) {
        let class = self.places.class_of(head);
        let Some(class) = class.and_then(|id| self.classes.get(id)) else {
            return;
        };
        let Some(group) = self.groups.get(class.group) else {
            return;
        };
        let entries = group.entries.iter().zip(&class.entries);
        for (entry, (of_group, of_class)) in entries.enumerate() {
            if let Some(slot) = self.slots.get_mut(of_group.slot) {
                slot.known_in(self.walks).reserved = Some(Reserved {
                    entry,
                    asked: (of_group.count, of_class.units),
                });
            }
        }
        let lacking = shortfall.entries.iter().filter(|_| !shortfall.declined);
        for (index, until) in lacking {
            let of_group = group.entries.get(*index);
            if let Some(slot) = of_group.and_then(|it| self.slots.get_mut(it.slot)) {
                slot.known.head = Some(*until);
            }
        }
    }

    /// The accounts of a demand that did not wait were debited.
    pub(super) fn note_passed(&mut self, demand: &Demand) {
        for entry in demand.entries() {
            if let Some(id) = self.slots.of(entry.account()) {
                self.slots.change(id, Slot::forget_room);
            }
        }
    }

    /// The accounts of this demand were debited.
    pub(super) fn note_debit(&mut self, demand: &Demand) {
        for entry in demand.entries() {
            let id = self.slots.of(entry.account());
            if let Some(slot) = id.and_then(|id| self.slots.get_mut(id)) {
                slot.known.forget_ample();
            }
        }
    }

    /// Whether it is plain without a look at the groups that nobody behind the head can be granted
    /// or refused, is to be held for the first time, or names an instant: everyone lacks an account
    /// that the head lacks too, and that only an event fills.
    pub(super) fn is_calm(&mut self, head: Seq, now: Instant) -> bool {
        let class = self.places.class_of(head);
        let class = class.and_then(|id| self.classes.get(id));
        let Some(class) = class.filter(|_| self.unasked.is_empty()) else {
            return false;
        };
        let Some(group) = self.groups.get(class.group) else {
            return false;
        };
        let (walk, groups) = (self.walks, self.groups.len());
        let of_head = group.entries.iter().map(|entry| entry.slot);
        let everyone_is_short = of_head.clone().any(|id| {
            let slot = self.slots.get(id);
            slot.is_some_and(|slot| slot.groups == groups && slot.blocks_head(walk))
        });
        if !everyone_is_short || !self.slots.are_settled() {
            return false;
        }
        if self.slots.are_calm(of_head.clone(), walk) {
            return true;
        }
        let doubtful = self.slots.doubtful(of_head, walk);
        let demand = Arc::clone(&class.demand);
        let view = View { head: &demand, now };
        doubtful
            .into_iter()
            .all(|id| self.waits_alone(head, id) || self.calm_down(id, view))
    }

    /// Whether the head is all who is unheld on a slot: nobody behind it is.
    fn waits_alone(&self, head: Seq, id: SlotId) -> bool {
        let class = self.places.class_of(head);
        let group = class.and_then(|id| self.groups.get(self.classes.get(id)?.group));
        let (Some(group), Some(waiter)) = (group, self.places.get(head)) else {
            return false;
        };
        let entries = group.entries.iter().enumerate();
        let unheld =
            entries.filter(|(index, entry)| entry.slot == id && !waiter.is_held_by(*index));
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| slot.unheld == unheld.count())
    }

    /// Whether nobody on a slot has to be held on it for the first time, now that it is asked.
    fn calm_down(&mut self, id: SlotId, view: View<'_>) -> bool {
        let walk = self.walks;
        self.slots.is_calm(id, walk, view, &mut self.gone) || {
            // Whoever asked for the most may be gone, or held by now.
            self.find_most(id);
            self.slots.is_calm(id, walk, view, &mut self.gone)
        }
    }

    /// What can be told of a group in this walk.
    pub(super) fn foresee(&mut self, id: GroupId, view: View<'_>) -> Foresight {
        let Some(Parts {
            classes,
            group,
            slots,
            walk,
        }) = self.parts(id)
        else {
            return Foresight::Open;
        };
        // Entries are bits of a word below. Nobody has as many.
        if group.entries.len() > u64::BITS as usize {
            return Foresight::Open;
        }
        let mut short = Short::default();
        // Somebody may have to be held for the first time.
        let mut unheld_matter = false;
        for (index, of_group) in group.entries.iter().enumerate() {
            let Some(slot) = slots.get_mut(of_group.slot) else {
                return Foresight::Open;
            };
            // A cap or a throttle was changed: everyone has to be asked.
            if !slot.is_settled(walk) {
                return Foresight::Open;
            }
            let known = &slot.known;
            // What the head lacks alone is lacking beside it.
            if let Some(until) = known.head {
                short.add(index, until);
                unheld_matter |= of_group.unheld > 0;
            } else if of_group.unheld > 0 {
                let most = of_group
                    .largest_unheld
                    .peek()
                    .map_or(0, |(units, _)| *units);
                unheld_matter |= !known.is_ample(of_group.count, most);
            }
        }
        if let Some((last, bound)) = short.longest
            && !unheld_matter
        {
            return Foresight::Closed {
                unheld: Vec::new(),
                bound: bound.map(|instant| instant.max(view.now)),
                last,
            };
        }
        if short.longest.is_none() {
            for (index, of_group) in group.entries.iter_mut().enumerate() {
                let smallest = of_group.smallest(classes);
                let Some(entry) = smallest.and_then(|class| class.demand.entries().get(index))
                else {
                    return Foresight::Open;
                };
                // What is short for the least is short for more.
                match view.fits(entry) {
                    Some(true) => {}
                    Some(false) => short.add(index, view.earliest(entry)),
                    None => return Foresight::Open,
                }
            }
        }
        let Some((last, bound)) = short.longest else {
            return Foresight::Open;
        };
        let mut unheld = Vec::new();
        for (index, of_group) in group.entries.iter_mut().enumerate() {
            if of_group.unheld == 0 {
                continue;
            }
            if short.has(index) {
                of_group.collect_unheld(index, classes, &mut unheld);
                continue;
            }
            let slot = slots.get_mut(of_group.slot);
            let asked = slot.and_then(|slot| {
                of_group.collect_short(index, classes, &mut slot.known, view, &mut unheld)
            });
            if asked.is_none() {
                return Foresight::Open;
            }
        }
        Foresight::Closed {
            unheld,
            bound: bound.map(|instant| instant.max(view.now)),
            last,
        }
    }
}

impl OfGroup {
    /// Every class with a member that this entry has not held yet.
    fn collect_unheld(
        &self,
        entry: usize,
        classes: &Keyed<Class>,
        found: &mut Vec<(usize, ClassId)>,
    ) {
        let named = self.largest_unheld.iter().map(|(_, id)| *id);
        let waiting = named.filter(|id| is_unheld(classes, *id, entry));
        found.extend(waiting.map(|id| (entry, id)));
    }

    /// The classes with a member that this entry has not held yet, and that are short on it: from
    /// the largest downwards, until one fits. What fits for the most fits for less. None when the
    /// account refuses.
    fn collect_short(
        &mut self,
        entry: usize,
        classes: &Keyed<Class>,
        known: &mut Known,
        view: View<'_>,
        found: &mut Vec<(usize, ClassId)>,
    ) -> Option<()> {
        let (count, heap) = (self.count, &mut self.largest_unheld);
        let mut taken = Vec::new();
        let mut asked = Some(());
        while let Some((units, id)) = heap.peek().copied() {
            if known.is_ample(count, units) {
                break;
            }
            if !is_unheld(classes, id, entry) {
                heap.pop();
                continue;
            }
            let question = classes
                .get(id)
                .and_then(|it| it.demand.entries().get(entry));
            match question.and_then(|entry| view.fits(entry)) {
                Some(true) => {
                    known.note_ample(count, units);
                    break;
                }
                Some(false) => {
                    heap.pop();
                    taken.push((units, id));
                    found.push((entry, id));
                }
                None => {
                    asked = None;
                    break;
                }
            }
        }
        if !taken.is_empty() {
            heap.extend(taken);
        }
        asked
    }
}
