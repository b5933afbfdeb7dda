//! What a walk can tell of a group without asking every class in it.
//!
//! # Invariants
//!
//! 1. Of an account that promises nothing, nothing is foreseen.
//! 2. What a walk knows of an account is forgotten with the walk, and what fits there with the
//!    next debit.

use std::time::Instant;

use super::groups::{Class, ClassId, GroupId, OfGroup, Parts, is_unheld};
use super::waiting::Waiting;
use crate::admission::demand::{Demand, Entry};
use crate::admission::ids::IdMap;
use crate::admission::question::{earliest, fits, reserved_on, revision};

/// How the line foresees a group.
pub(super) enum Foresight {
    /// Somebody may be granted or refused.
    Open {
        /// The revisions of its accounts, if one has changed by itself: everyone is to be asked.
        revised: Option<Vec<Option<u64>>>,
    },
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

const OPEN: Foresight = Foresight::Open { revised: None };

/// From where a walk looks.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// The demand of the head.
    pub(super) head: &'a Demand,
    pub(super) now: Instant,
}

impl View<'_> {
    fn fits(&self, entry: &dyn Entry) -> Option<bool> {
        fits(entry, reserved_on(Some(self.head), entry), self.now)
    }

    fn earliest(&self, entry: &dyn Entry) -> Option<Instant> {
        earliest(entry, reserved_on(Some(self.head), entry), self.now)
    }
}

/// What is known of an account in one walk.
#[derive(Default)]
pub(super) struct Known {
    /// Which walk.
    walk: u64,
    revision: Option<u64>,
    /// That the head is short on it, and when the clock alone closes that.
    head: Option<Option<Instant>>,
    /// So many amounts of so many units fit beside the head, until it is debited.
    ample: Vec<(usize, u64)>,
}

impl Known {
    /// Forgets what an earlier walk knew.
    fn begin(&mut self, walk: u64, entry: &dyn Entry) {
        self.walk = walk;
        self.revision = revision(entry);
        self.head = None;
        self.ample.clear();
    }

    fn is_ample(&self, count: usize, units: u64) -> bool {
        self.ample
            .iter()
            .any(|(known, most)| *known == count && units <= *most)
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
    /// The head is short on the account of this entry.
    pub(super) fn note_head_short(&mut self, entry: &dyn Entry, until: Option<Instant>) {
        let walk = self.walk();
        if let Some(known) = self.known_of(entry.key().id()) {
            if known.walk != walk {
                known.begin(walk, entry);
            }
            known.head = Some(until);
        }
    }

    /// The accounts of this demand were debited.
    pub(super) fn note_debit(&mut self, demand: &Demand) {
        for entry in demand.entries() {
            if let Some(known) = self.known_of(entry.key().id()) {
                known.ample.clear();
            }
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
            return OPEN;
        };
        // Entries are bits of a word below. Nobody has as many.
        if group.sample.entries().len() > u64::BITS as usize {
            return OPEN;
        }
        let mut revised = false;
        let mut short = Short::default();
        // Somebody may have to be held for the first time.
        let mut unheld_matter = false;
        for (index, of_group) in group.entries.iter().enumerate() {
            let Some(slot) = slots.get_mut(of_group.slot) else {
                return OPEN;
            };
            let known = &mut slot.known;
            if known.walk != walk
                && let Some(entry) = group.sample.entries().get(index)
            {
                known.begin(walk, &**entry);
            }
            if known.revision.is_none() {
                return OPEN;
            }
            revised |= of_group.revision != known.revision;
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
        if revised {
            let entries = group.entries.iter();
            let revisions = entries.map(|entry| slots.get(entry.slot)?.known.revision);
            return Foresight::Open {
                revised: Some(revisions.collect()),
            };
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
                    return OPEN;
                };
                // What is short for the least is short for more.
                match view.fits(&**entry) {
                    Some(true) => {}
                    Some(false) => short.add(index, view.earliest(&**entry)),
                    None => return OPEN,
                }
            }
        }
        let Some((last, bound)) = short.longest else {
            return OPEN;
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
                return OPEN;
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
        classes: &IdMap<Class>,
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
        classes: &IdMap<Class>,
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
                .get(&id)
                .and_then(|it| it.demand.entries().get(entry));
            match question.and_then(|entry| view.fits(&**entry)) {
                Some(true) => {
                    known.ample.retain(|(other, _)| *other != count);
                    known.ample.push((count, units));
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
