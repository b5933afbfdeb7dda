//! Classes of waiters with the same demand, and groups of classes on the same accounts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::foresight::Known;
use super::fronts::Fronts;
use super::seqs::Seqs;
use crate::admission::demand::Demand;
use crate::admission::ids::IdMap;

/// Tells classes apart; never used again.
pub(super) type ClassId = u64;
/// Where a group is; used again when it is gone.
pub(super) type GroupId = usize;

/// Waiters with the same demand.
pub(super) struct Class {
    pub(super) group: GroupId,
    pub(super) demand: Arc<Demand>,
    pub(super) members: Seqs,
    /// By entry: the members that it has not held yet.
    pub(super) unheld: SmallVec<[Seqs; 2]>,
    /// The hash that it is found by; none when its amounts cannot be hashed.
    pub(super) shape: Option<u64>,
}

/// Classes on the same accounts.
pub(super) struct Group {
    /// The demand of some class: its entries lead to the accounts.
    pub(super) sample: Arc<Demand>,
    pub(super) fronts: Fronts,
    pub(super) entries: Vec<OfGroup>,
}

/// One entry of all the demands of a group.
pub(super) struct OfGroup {
    pub(super) account: u64,
    /// Where the account is.
    pub(super) slot: usize,
    /// How many amounts are asked of it.
    pub(super) count: usize,
    /// How many members it has not held yet.
    pub(super) unheld: usize,
    /// The revision of its account under which every class has been asked.
    pub(super) revision: Option<u64>,
    /// The classes by the units that they ask of it.
    pub(super) smallest: BinaryHeap<Reverse<(u64, ClassId)>>,
    /// Those with members that it has not held yet.
    pub(super) largest_unheld: BinaryHeap<(u64, ClassId)>,
}

impl OfGroup {
    /// The class that asks for the fewest units.
    pub(super) fn smallest<'a>(&mut self, classes: &'a IdMap<Class>) -> Option<&'a Class> {
        while let Some(Reverse((_, id))) = self.smallest.peek() {
            if let Some(class) = classes.get(id) {
                return Some(class);
            }
            self.smallest.pop();
        }
        None
    }
}

impl Group {
    /// Whether a demand draws on an account of this group.
    pub(super) fn shares(&self, demand: &Demand) -> bool {
        self.entries.iter().any(|entry| {
            let mut theirs = demand.entries().iter();
            theirs.any(|it| it.key().id() == entry.account)
        })
    }

    /// Whether both groups draw on an account.
    pub(super) fn touches(&self, other: &Group) -> bool {
        self.entries
            .iter()
            .any(|entry| other.entries.iter().any(|it| it.account == entry.account))
    }
}

/// An account that groups have in common, with what a walk knows of it.
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) groups: usize,
    pub(super) known: Known,
}

/// One group, and what is needed to look at it.
pub(super) struct Parts<'a> {
    pub(super) classes: &'a IdMap<Class>,
    pub(super) group: &'a mut Group,
    pub(super) slots: &'a mut [Slot],
    /// Which walk it is.
    pub(super) walk: u64,
}

/// Whether a member of this class has not been held by this entry yet.
pub(super) fn is_unheld(classes: &IdMap<Class>, id: ClassId, entry: usize) -> bool {
    classes
        .get(&id)
        .and_then(|class| class.unheld.get(entry))
        .is_some_and(|unheld| !unheld.is_empty())
}
