//! Classes of waiters with the same demand, and groups of classes on the same accounts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Gone;
use super::fronts::Fronts;
use super::keyed::{Key, Keyed};
use super::seqs::{Seq, Seqs};
use super::slots::{SlotId, Slots};
use super::unheld::Unheld;
use crate::admission::demand::Demand;

/// Tells classes apart; never used again.
pub(super) type ClassId = Key;
/// Where a group is; used again when it is gone.
pub(super) type GroupId = usize;

/// Waiters with the same demand.
pub(super) struct Class {
    pub(super) group: GroupId,
    pub(super) demand: Arc<Demand>,
    pub(super) members: Seqs,
    pub(super) entries: SmallVec<[OfClass; 2]>,
}

/// One entry of the demand of a class.
pub(super) struct OfClass {
    /// How many units it asks for.
    pub(super) units: u64,
    pub(super) unheld: Unheld,
}

/// Classes on the same accounts.
pub(super) struct Group {
    pub(super) fronts: Fronts,
    pub(super) entries: Vec<OfGroup>,
}

/// One entry of all the demands of a group.
pub(super) struct OfGroup {
    pub(super) account: u64,
    /// What is known of the account.
    pub(super) slot: SlotId,
    /// How many amounts are asked of it.
    pub(super) count: usize,
    /// How many members it has not held yet.
    pub(super) unheld: usize,
    /// The classes by the units that they ask of it.
    pub(super) smallest: BinaryHeap<Reverse<(u64, ClassId)>>,
    /// Those with members that it has not held yet.
    pub(super) largest_unheld: BinaryHeap<(u64, ClassId)>,
}

impl Class {
    /// Whether a member has not been held by this entry yet.
    pub(super) fn has_unheld(&self, entry: usize) -> bool {
        let entry = self.entries.get(entry);
        entry.is_some_and(|entry| !entry.unheld.is_empty(&self.members))
    }

    /// The first member behind `seq` that this entry has not held yet.
    pub(super) fn unheld_after(&self, entry: usize, seq: Seq) -> Option<Seq> {
        self.entries.get(entry)?.unheld.after(seq, &self.members)
    }
}

impl OfGroup {
    /// The class that asks for the fewest units.
    pub(super) fn smallest<'a>(&mut self, classes: &'a Keyed<Class>) -> Option<&'a Class> {
        while let Some(Reverse((_, id))) = self.smallest.peek() {
            if let Some(class) = classes.get(*id) {
                return Some(class);
            }
            self.smallest.pop();
        }
        None
    }

    /// The class that asks for the most units of those with a member that this entry has not held.
    pub(super) fn largest_unheld<'a>(
        &mut self,
        entry: usize,
        classes: &'a Keyed<Class>,
    ) -> Option<(u64, &'a Class)> {
        while let Some((units, id)) = self.largest_unheld.peek() {
            if is_unheld(classes, *id, entry) {
                return Some((*units, classes.get(*id)?));
            }
            self.largest_unheld.pop();
        }
        None
    }

    /// A member that the entry had not held is held now, or gone.
    #[inline]
    pub(super) fn leave_unheld(&mut self, slots: &mut Slots, gone: &mut Gone) {
        self.unheld -= 1;
        slots.change(self.slot, |slot| slot.leave_unheld(gone));
    }
}

impl Group {
    /// Whether a demand draws on an account of this group.
    pub(super) fn shares(&self, demand: &Demand) -> bool {
        self.entries.iter().any(|entry| {
            let mut theirs = demand.entries().iter();
            theirs.any(|it| it.account() == entry.account)
        })
    }

    /// Whether both groups draw on an account.
    pub(super) fn touches(&self, other: &Group) -> bool {
        self.entries
            .iter()
            .any(|entry| other.entries.iter().any(|it| it.slot == entry.slot))
    }
}

/// One group, and what is needed to look at it.
pub(super) struct Parts<'a> {
    pub(super) classes: &'a Keyed<Class>,
    pub(super) group: &'a mut Group,
    pub(super) slots: &'a mut Slots,
    /// Which walk it is.
    pub(super) walk: u64,
}

/// Whether a member of this class has not been held by this entry yet.
pub(super) fn is_unheld(classes: &Keyed<Class>, id: ClassId, entry: usize) -> bool {
    classes.get(id).is_some_and(|class| class.has_unheld(entry))
}
