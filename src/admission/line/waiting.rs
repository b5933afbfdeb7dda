//! Who waits, arranged so that a walk need not ask everyone.
//!
//! Waiters that ask for the same of the same accounts are one *class*: asked in the same state, they
//! are answered the same. Classes on the same accounts, with as many amounts on each, are one
//! *group*: what is taken or given touches a group whole.
//!
//! # Invariants
//!
//! 1. Every waiter is a member of one class, every class of one group, and neither is ever empty.
//! 2. A class names, for each of its entries, exactly the members that the entry's account has not
//!    held yet.
//! 3. `fronts` has the first member of every class of the group, and nothing else.
//! 4. `smallest` and `largest_unheld` name at least what they must: a class that is gone, or has
//!    nobody unheld left, may still be named and is dropped when it comes up.
//! 5. A group counts, for each entry, the members that the entry has not held yet.
//! 6. Every account of a group has a slot, which is free again when no group has it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::Waiter;
use super::foresight::Known;
use super::fronts::Fronts;
use super::groups::{Class, ClassId, Group, GroupId, OfGroup, Parts, Slot, is_unheld};
use super::seqs::{Seq, Seqs};
use crate::admission::demand::Demand;
use crate::admission::ids::IdMap;
use crate::admission::question::units;
use crate::unwind::contain;

struct Place {
    waiter: Box<Waiter>,
    class: ClassId,
}

#[derive(Default)]
pub(super) struct Waiting {
    places: IdMap<Place>,
    /// Every place that is taken, in order, among some that are free again; the first and the last
    /// are taken.
    order: VecDeque<Seq>,
    classes: IdMap<Class>,
    groups: Vec<Option<Group>>,
    free_groups: Vec<GroupId>,
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    slots_by_account: IdMap<usize>,
    classes_by_shape: IdMap<SmallVec<[ClassId; 1]>>,
    groups_by_accounts: HashMap<Vec<(u64, usize)>, GroupId>,
    /// Those that memory has not held yet, if there is a gate.
    unheld_on_memory: Option<Seqs>,
    next_id: u64,
    /// How many walks there were.
    walks: u64,
    /// Demands that the arrangement has no more use for. Their amounts and accounts are a user's
    /// own: they are dropped where no lock is held.
    gone: Vec<Arc<Demand>>,
}

impl Waiting {
    pub(super) fn new(has_memory_gate: bool) -> Self {
        Self {
            unheld_on_memory: has_memory_gate.then(Seqs::default),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The head of the line.
    pub(super) fn head(&self) -> Option<(Seq, &Waiter)> {
        let seq = self.order.front()?;
        Some((*seq, &self.places.get(seq)?.waiter))
    }

    pub(super) fn is_anyone_from(&self, seq: Seq) -> bool {
        self.order.back().is_some_and(|last| *last >= seq)
    }

    pub(super) fn waiter_mut(&mut self, seq: Seq) -> Option<&mut Waiter> {
        self.places.get_mut(&seq).map(|place| &mut *place.waiter)
    }

    pub(super) fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(&id)
    }

    pub(super) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)?.as_ref()
    }

    pub(super) fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id)?.as_mut()
    }

    /// The groups, with gaps.
    pub(super) fn group_ids(&self) -> std::ops::Range<GroupId> {
        0..self.groups.len()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        let groups = self.groups.iter().enumerate();
        groups.filter_map(|(id, group)| Some((id, group.as_ref()?)))
    }

    /// Puts a waiter at the end of the line.
    pub(super) fn push(&mut self, seq: Seq, waiter: Box<Waiter>) {
        let id = self.class_for(&waiter.ask.demand);
        let Self {
            classes, groups, ..
        } = self;
        if let Some(class) = classes.get_mut(&id)
            && let Some(Some(group)) = groups.get_mut(class.group)
        {
            if class.members.is_empty() {
                group.fronts.insert(seq, id);
            }
            class.members.push(seq);
            for (index, unheld) in class.unheld.iter_mut().enumerate() {
                if waiter.held.iter().any(|(held, _)| *held == index) {
                    continue;
                }
                let Some(of_group) = group.entries.get_mut(index) else {
                    continue;
                };
                of_group.unheld += 1;
                if unheld.is_empty()
                    && let Some(entry) = class.demand.entries().get(index)
                {
                    of_group.largest_unheld.push((units(&**entry), id));
                }
                unheld.push(seq);
            }
        }
        if waiter.memory_since.is_none()
            && let Some(unheld) = &mut self.unheld_on_memory
        {
            unheld.push(seq);
        }
        self.places.insert(seq, Place { waiter, class: id });
        self.order.push_back(seq);
    }

    /// Takes a waiter out of the line.
    pub(super) fn remove(&mut self, seq: Seq) -> Option<Box<Waiter>> {
        let Place { waiter, class: id } = self.places.remove(&seq)?;
        self.tidy_order();
        if let Some(unheld) = &mut self.unheld_on_memory {
            unheld.remove(seq);
        }
        if let Some(class) = self.classes.get_mut(&id)
            && let Some(Some(group)) = self.groups.get_mut(class.group)
        {
            for (unheld, entry) in class.unheld.iter_mut().zip(&mut group.entries) {
                entry.unheld -= usize::from(unheld.remove(seq));
            }
            let was_first = class.members.first() == Some(seq);
            class.members.remove(seq);
            let next = class.members.first();
            if was_first {
                group.fronts.advance(seq, next);
            }
            if next.is_none() {
                self.drop_class(id);
            }
        }
        Some(waiter)
    }

    /// Drops the places at both ends that are free again, and all of them when they are most: so the
    /// order stays as long as the line.
    fn tidy_order(&mut self) {
        const FEW: usize = 64;
        let places = &self.places;
        let is_free = |seq: Option<&Seq>| seq.is_some_and(|seq| !places.contains_key(seq));
        while is_free(self.order.front()) {
            self.order.pop_front();
        }
        while is_free(self.order.back()) {
            self.order.pop_back();
        }
        if self.order.len() > 2 * places.len() + FEW {
            self.order.retain(|seq| places.contains_key(seq));
        }
    }

    /// The entry's account has held this waiter.
    pub(super) fn note_held(&mut self, seq: Seq, entry: usize) {
        let class = self.places.get(&seq).map(|place| place.class);
        if let Some(class) = class.and_then(|id| self.classes.get_mut(&id))
            && let Some(unheld) = class.unheld.get_mut(entry)
            && unheld.remove(seq)
            && let Some(Some(group)) = self.groups.get_mut(class.group)
            && let Some(of_group) = group.entries.get_mut(entry)
        {
            of_group.unheld -= 1;
        }
    }

    /// Those from `seq` on that memory has not held yet; from now on it has.
    pub(super) fn hold_on_memory_from(&mut self, seq: Seq) -> impl Iterator<Item = Seq> + use<> {
        self.unheld_on_memory
            .as_mut()
            .map(|unheld| unheld.split_from(seq))
            .into_iter()
            .flatten()
    }

    /// The class of the group that asks for the fewest units on this entry.
    pub(super) fn smallest(&mut self, group: GroupId, entry: usize) -> Option<&Class> {
        let group = self.groups.get_mut(group)?.as_mut()?;
        group.entries.get_mut(entry)?.smallest(&self.classes)
    }

    /// The class of this demand, made when it is the first of its kind.
    #[inline(never)]
    fn class_for(&mut self, demand: &Arc<Demand>) -> ClassId {
        // The amounts are of a user's type, and so are their `Hash` and `Eq`. A demand for which
        // they fail is a class of its own.
        let shape = contain("limiter", || shape_of(demand)).ok();
        let known = shape.and_then(|shape| {
            self.classes_by_shape.get(&shape)?.iter().find(|id| {
                self.classes
                    .get(id)
                    .is_some_and(|class| is_same(&class.demand, demand))
            })
        });
        match known {
            Some(id) => *id,
            None => self.new_class(demand, shape),
        }
    }

    #[inline(never)]
    fn new_class(&mut self, demand: &Arc<Demand>, shape: Option<u64>) -> ClassId {
        let id = self.mint();
        let group = self.group_for(demand);
        if let Some(group) = self.group_mut(group) {
            for (of_group, entry) in group.entries.iter_mut().zip(demand.entries()) {
                of_group.smallest.push(Reverse((units(&**entry), id)));
            }
        }
        if let Some(shape) = shape {
            self.classes_by_shape.entry(shape).or_default().push(id);
        }
        self.classes.insert(
            id,
            Class {
                group,
                demand: Arc::clone(demand),
                members: Seqs::default(),
                unheld: demand.entries().iter().map(|_| Seqs::default()).collect(),
                shape,
            },
        );
        self.sweep(group);
        id
    }

    fn group_for(&mut self, demand: &Arc<Demand>) -> GroupId {
        let accounts: Vec<_> = demand
            .entries()
            .iter()
            .map(|entry| (entry.key().id(), entry.count()))
            .collect();
        if let Some(id) = self.groups_by_accounts.get(&accounts) {
            return *id;
        }
        let entries = accounts.iter().map(|(account, count)| OfGroup {
            account: *account,
            slot: self.slot_for(*account),
            count: *count,
            unheld: 0,
            revision: None,
            smallest: BinaryHeap::new(),
            largest_unheld: BinaryHeap::new(),
        });
        let group = Some(Group {
            entries: entries.collect(),
            sample: Arc::clone(demand),
            fronts: Fronts::default(),
        });
        let id = match self.free_groups.pop() {
            Some(id) => {
                if let Some(free) = self.groups.get_mut(id) {
                    *free = group;
                }
                id
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        };
        self.groups_by_accounts.insert(accounts, id);
        id
    }

    fn drop_class(&mut self, id: ClassId) {
        let Some(class) = self.classes.remove(&id) else {
            return;
        };
        if let Some(shape) = class.shape
            && let Some(same) = self.classes_by_shape.get_mut(&shape)
        {
            same.retain(|known| *known != id);
            if same.is_empty() {
                self.classes_by_shape.remove(&shape);
            }
        }
        self.gone.push(class.demand);
        let is_last = self
            .group(class.group)
            .is_some_and(|group| group.fronts.is_empty());
        if is_last && let Some(group) = self.groups.get_mut(class.group).and_then(Option::take) {
            self.free_groups.push(class.group);
            let accounts = group.entries.iter().map(|it| (it.account, it.count));
            self.groups_by_accounts
                .remove(&accounts.collect::<Vec<_>>());
            for entry in &group.entries {
                self.free_slot(entry.slot);
            }
            self.gone.push(group.sample);
        }
    }

    fn slot_for(&mut self, account: u64) -> usize {
        if let Some(index) = self.slots_by_account.get(&account)
            && let Some(slot) = self.slots.get_mut(*index)
        {
            slot.groups += 1;
            return *index;
        }
        let slot = Slot {
            id: account,
            groups: 1,
            known: Known::default(),
        };
        let index = match self.free_slots.pop() {
            Some(index) => {
                if let Some(free) = self.slots.get_mut(index) {
                    *free = slot;
                }
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.slots_by_account.insert(account, index);
        index
    }

    fn free_slot(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.groups -= 1;
        if slot.groups == 0 {
            self.slots_by_account.remove(&slot.id);
            self.free_slots.push(index);
        }
    }

    /// A walk begins.
    pub(super) fn begin_walk(&mut self) {
        self.walks += 1;
    }

    pub(super) fn walk(&self) -> u64 {
        self.walks
    }

    pub(super) fn parts(&mut self, group: GroupId) -> Option<Parts<'_>> {
        Some(Parts {
            classes: &self.classes,
            group: self.groups.get_mut(group)?.as_mut()?,
            slots: &mut self.slots,
            walk: self.walks,
        })
    }

    /// What walks know of an account that some group has.
    pub(super) fn known_of(&mut self, account: u64) -> Option<&mut Known> {
        let index = self.slots_by_account.get(&account)?;
        self.slots.get_mut(*index).map(|slot| &mut slot.known)
    }

    pub(super) fn take_gone(&mut self) -> Vec<Arc<Demand>> {
        std::mem::take(&mut self.gone)
    }

    /// Clears the heaps of a group of the classes that are gone, when these are most of what is in
    /// them: so the heaps stay as large as the line.
    fn sweep(&mut self, group: GroupId) {
        const FEW: usize = 64;
        let Self {
            classes, groups, ..
        } = self;
        let Some(Some(group)) = groups.get_mut(group) else {
            return;
        };
        let most = 2 * group.fronts.len() + FEW;
        for (entry, of_group) in group.entries.iter_mut().enumerate() {
            if of_group.smallest.len() > most {
                let heap = &mut of_group.smallest;
                heap.retain(|Reverse((_, id))| classes.contains_key(id));
            }
            if of_group.largest_unheld.len() > most {
                let mut named = BTreeSet::new();
                let heap = &mut of_group.largest_unheld;
                heap.retain(|(_, id)| is_unheld(classes, *id, entry) && named.insert(*id));
            }
        }
    }

    fn mint(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Whether the numbered invariants hold.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        for (seq, place) in &self.places {
            let class = &self.classes[&place.class];
            assert!(class.members.iter().any(|it| it == *seq), "invariant 1");
            for (index, unheld) in class.unheld.iter().enumerate() {
                let is_held = place.waiter.held.iter().any(|(held, _)| *held == index);
                assert_eq!(
                    is_held,
                    !unheld.iter().any(|it| it == *seq),
                    "invariant 2 on entry {index} of {seq}"
                );
            }
        }
        let taken = self.order.iter();
        let taken = taken.filter(|seq| self.places.contains_key(seq));
        assert!(self.order.iter().is_sorted() && taken.count() == self.places.len());
        let members: usize = self
            .classes
            .values()
            .map(|class| class.members.iter().count())
            .sum();
        assert_eq!(members, self.places.len(), "invariant 1");
        for (id, class) in &self.classes {
            let front = class.members.first().expect("invariant 1");
            let group = self.group(class.group).expect("invariant 1");
            assert_eq!(group.fronts.get(front), Some(*id), "invariant 3");
            for (index, unheld) in class.unheld.iter().enumerate() {
                let of_group = &group.entries[index];
                let named = of_group.largest_unheld.iter().any(|(_, it)| it == id);
                assert!(named || unheld.is_empty(), "invariant 4");
                let mut named = of_group.smallest.iter();
                assert!(named.any(|it| it.0.1 == *id), "invariant 4");
            }
        }
        for (id, group) in self.groups() {
            for (index, entry) in group.entries.iter().enumerate() {
                let of_group = self.classes.values().filter(|class| class.group == id);
                let unheld = of_group.map(|class| class.unheld[index].iter().count());
                assert_eq!(unheld.sum::<usize>(), entry.unheld, "invariant 5");
                assert_eq!(self.slots[entry.slot].id, entry.account, "invariant 6");
            }
        }
        assert_eq!(
            self.slots_by_account.len() + self.free_slots.len(),
            self.slots.len(),
            "invariant 6"
        );
        let fronts: usize = self.groups().map(|(_, group)| group.fronts.len()).sum();
        assert_eq!(fronts, self.classes.len(), "invariant 3");
    }

    #[cfg(test)]
    pub(super) fn first_from(&self, seq: Seq) -> Option<Seq> {
        let mut order = self.order.iter().filter(|it| self.places.contains_key(it));
        order.find(|it| **it >= seq).copied()
    }

    #[cfg(test)]
    pub(super) fn note_held_on_memory(&mut self, seq: Seq) {
        if let Some(unheld) = &mut self.unheld_on_memory {
            unheld.remove(seq);
        }
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.places.values().map(|place| &*place.waiter)
    }
}

fn shape_of(demand: &Demand) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in demand.entries() {
        entry.key().id().hash(&mut hasher);
        entry.feed(&mut hasher);
    }
    hasher.finish()
}

fn is_same(one: &Arc<Demand>, other: &Arc<Demand>) -> bool {
    let (one, other) = (one.entries(), other.entries());
    one.len() == other.len()
        && contain("limiter", || {
            one.iter()
                .zip(other)
                .all(|(one, other)| one.key() == other.key() && one.asks_as(&**other))
        })
        .unwrap_or(false)
}
