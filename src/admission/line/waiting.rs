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
//! 4. `smallest`, `largest_unheld`, `unasked` and `classes_by_shape` name at least what they must: a
//!    class that is gone, or has nobody unheld left, may still be named and is dropped when it comes
//!    up.
//! 5. A group counts, for each entry, the members that the entry has not held yet; a slot counts
//!    those of all groups.
//! 6. A class that is not among the `unasked` has been asked under the revisions that its slots
//!    name.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;

use super::fronts::Fronts;
use super::groups::{Class, ClassId, Group, GroupId, OfClass, OfGroup, Parts, is_unheld};
use super::keyed::{Births, Keyed};
use super::places::Places;
use super::seqs::{Seq, Seqs};
use super::slots::{Question, SlotId, Slots};
use super::unheld::Unheld;
use super::{Gone, Ticket, Waiter};
use crate::admission::demand::Demand;
use crate::admission::ids::IdMap;
use crate::admission::question::units;
use crate::clock::WaitCell;
use crate::unwind::contain;

/// So many names of what is gone are no matter.
const FEW: usize = 64;

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) places: Places,
    pub(super) classes: Keyed<Class>,
    births: Births,
    pub(super) groups: Slab<Group>,
    pub(super) slots: Slots,
    classes_by_shape: IdMap<SmallVec<[ClassId; 1]>>,
    groups_by_accounts: HashMap<Vec<(u64, usize)>, GroupId>,
    pub(super) unasked: Vec<ClassId>,
    /// Where memory's line begins.
    memory_from: Option<Seq>,
    /// How many walks there were.
    pub(super) walks: u64,
    /// Demands that the arrangement has no more use for. Their amounts and accounts are a user's
    /// own: they are dropped where no lock is held.
    pub(super) gone: Gone,
}

impl Waiting {
    pub(super) fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id)
    }

    pub(super) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter()
    }

    /// Puts a waiter at the end of the line, asked about already or not.
    pub(super) fn push(
        &mut self,
        (born, cell): (NonZeroU64, Arc<WaitCell>),
        waiter: Waiter,
        was_asked: bool,
    ) -> Arc<Ticket> {
        let id = self.class_for(&waiter.demand, was_asked);
        let is_held_on_memory = waiter.memory_since.is_some();
        let (seq, ticket) = self.places.push((born, cell), waiter, id);
        if is_held_on_memory {
            self.memory_from.get_or_insert(seq);
        }
        if let Some(class) = self.classes.get_mut(id)
            && let Some(group) = self.groups.get_mut(class.group)
            && let Some(waiter) = self.places.get(seq)
        {
            if class.members.is_empty() {
                group.fronts.insert(seq, id);
            }
            let entries = class.entries.iter_mut().zip(&mut group.entries);
            for (index, (of_class, of_group)) in entries.enumerate() {
                let is_held = waiter.is_held_by(index);
                let is_first = !is_held && of_class.unheld.is_empty(&class.members);
                of_class.unheld.join(seq, is_held, &class.members);
                if is_held {
                    continue;
                }
                of_group.unheld += 1;
                self.slots.change(of_group.slot, |slot| {
                    slot.unheld += 1;
                    if is_first {
                        let question = Question::new(&class.demand, index);
                        let asked = (of_group.count, of_class.units);
                        slot.note_most(asked, question, &mut self.gone);
                    }
                });
                if is_first {
                    of_group.largest_unheld.push((of_class.units, id));
                }
            }
            class.members.push(seq);
        }
        ticket
    }

    /// Takes a waiter out of the line, granted or not.
    pub(super) fn remove(&mut self, seq: Seq, is_granted: bool) -> Option<Arc<Ticket>> {
        if self.memory_from == Some(seq) {
            self.memory_from = self.places.behind(seq);
        }
        let (ticket, id) = self.places.remove(seq)?;
        if let Some(class) = self.classes.get_mut(id)
            && let Some(group) = self.groups.get_mut(class.group)
        {
            for (of_class, of_group) in class.entries.iter_mut().zip(&mut group.entries) {
                self.slots.change(of_group.slot, |slot| {
                    if is_granted {
                        slot.debit((of_group.count, of_class.units));
                    }
                    if of_group.unheld > 0 && of_class.unheld.leave(seq) {
                        of_group.unheld -= 1;
                        slot.leave_unheld(&mut self.gone);
                    }
                });
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
        Some(ticket)
    }

    /// The entry's account has held this waiter.
    pub(super) fn note_held(&mut self, seq: Seq, entry: usize) {
        let class = self.places.class_of(seq);
        if let Some(class) = class.and_then(|id| self.classes.get_mut(id))
            && let Some(of_class) = class.entries.get_mut(entry)
            && of_class.unheld.hold(seq, &class.members)
            && let Some(group) = self.groups.get_mut(class.group)
            && let Some(of_group) = group.entries.get_mut(entry)
        {
            of_group.leave_unheld(&mut self.slots, &mut self.gone);
        }
    }

    pub(super) fn has_memory_line(&self) -> bool {
        self.memory_from.is_some()
    }

    #[inline]
    pub(super) fn is_in_memory_line(&self, seq: Seq) -> bool {
        self.memory_from.is_some_and(|from| seq >= from)
    }

    /// Memory's line begins at `from`, or before it. Answers where it began.
    pub(super) fn extend_memory_line(&mut self, from: Seq) -> Option<Seq> {
        let began = self.memory_from;
        self.memory_from = Some(began.map_or(from, |began| began.min(from)));
        began
    }

    /// The first of memory's line leaves it, and waits on.
    pub(super) fn leave_memory_line(&mut self, first: Seq) {
        self.memory_from = self.places.behind(first);
    }

    /// The class of the group that asks for the fewest units on this entry.
    pub(super) fn smallest(&mut self, group: GroupId, entry: usize) -> Option<&Class> {
        let group = self.groups.get_mut(group)?;
        group.entries.get_mut(entry)?.smallest(&self.classes)
    }

    /// The class of this demand, made when it is the first of its kind.
    #[inline(never)]
    fn class_for(&mut self, demand: &Arc<Demand>, was_asked: bool) -> ClassId {
        // The amounts are of a user's type, and so are their `Hash` and `Eq`. A demand for which
        // they fail is a class of its own.
        let shape = contain("limiter", || shape_of(demand)).ok();
        let known = shape.and_then(|shape| {
            self.classes_by_shape.get(&shape)?.iter().find(|id| {
                self.classes
                    .get(**id)
                    .is_some_and(|class| is_same(&class.demand, demand))
            })
        });
        match known {
            Some(id) => *id,
            None => self.new_class(demand, shape, was_asked),
        }
    }

    #[inline(never)]
    fn new_class(&mut self, demand: &Arc<Demand>, shape: Option<u64>, was_asked: bool) -> ClassId {
        let (group, is_new) = self.group_for(demand);
        let vacant = self.classes.vacant(self.births.next());
        let id = vacant.key();
        let entries = demand.entries().iter().map(|entry| OfClass {
            units: units(&**entry),
            unheld: Unheld::default(),
        });
        let class = Class {
            group,
            demand: Arc::clone(demand),
            members: Seqs::default(),
            entries: entries.collect(),
        };
        // What the account of a new group was when it was asked cannot be known any more.
        let mut is_asked = was_asked && !is_new;
        if let Some(group) = self.groups.get_mut(group) {
            let entries = group.entries.iter_mut().zip(&class.entries);
            for ((of_group, of_class), entry) in entries.zip(demand.entries()) {
                of_group.smallest.push(Reverse((of_class.units, id)));
                let slot = self.slots.get_mut(of_group.slot);
                is_asked = is_asked && slot.is_some_and(|slot| slot.was_asked_as_now(entry));
            }
        }
        vacant.insert(class);
        if !is_asked {
            self.unasked.push(id);
        }
        if let Some(shape) = shape {
            let alike = self.classes_by_shape.entry(shape).or_default();
            alike.retain(|id| self.classes.contains(*id));
            alike.push(id);
        }
        self.sweep(group);
        id
    }

    /// The group of this demand, and whether it was made for it.
    fn group_for(&mut self, demand: &Arc<Demand>) -> (GroupId, bool) {
        let accounts: Vec<_> = demand
            .entries()
            .iter()
            .map(|entry| (entry.account(), entry.count()))
            .collect();
        if let Some(id) = self.groups_by_accounts.get(&accounts) {
            return (*id, false);
        }
        let vacant = self.groups.vacant_entry();
        let id = vacant.key();
        let entries = demand.entries().iter().enumerate();
        let entries = entries.map(|(index, entry)| OfGroup {
            account: entry.account(),
            slot: self.slots.enter(entry, Question::new(demand, index), id),
            count: entry.count(),
            unheld: 0,
            smallest: BinaryHeap::new(),
            largest_unheld: BinaryHeap::new(),
        });
        vacant.insert(Group {
            entries: entries.collect(),
            fronts: Fronts::default(),
        });
        self.groups_by_accounts.insert(accounts, id);
        (id, true)
    }

    fn drop_class(&mut self, id: ClassId) {
        let Some(class) = self.classes.remove(id) else {
            return;
        };
        self.gone.push(class.demand);
        let is_last = self
            .groups
            .get(class.group)
            .is_some_and(|group| group.fronts.is_empty());
        if is_last && let Some(group) = self.groups.try_remove(class.group) {
            let accounts = group.entries.iter().map(|it| (it.account, it.count));
            self.groups_by_accounts
                .remove(&accounts.collect::<Vec<_>>());
            for of_group in &group.entries {
                self.slots.leave(of_group.slot, class.group, &mut self.gone);
            }
        }
        if self.classes.is_empty() {
            self.classes_by_shape.clear();
            self.unasked.clear();
        }
    }

    /// A walk begins.
    pub(super) fn begin_walk(&mut self) {
        self.walks += 1;
    }

    /// Those who have to be asked though nothing has changed for them, because they never were.
    pub(super) fn unasked(&self) -> &[ClassId] {
        &self.unasked
    }

    /// This walk has asked everyone whom it had to.
    pub(super) fn note_asked(&mut self) {
        self.unasked.clear();
        self.slots.note_asked(self.walks);
    }

    pub(super) fn parts(&mut self, group: GroupId) -> Option<Parts<'_>> {
        Some(Parts {
            classes: &self.classes,
            group: self.groups.get_mut(group)?,
            slots: &mut self.slots,
            walk: self.walks,
        })
    }

    pub(super) fn take_gone(&mut self) -> Gone {
        std::mem::take(&mut self.gone)
    }

    /// Names anew the most that is asked of an account by those whom it has not held.
    #[cold]
    pub(super) fn find_most(&mut self, id: SlotId) {
        let (groups, classes, gone) = (&mut self.groups, &self.classes, &mut self.gone);
        self.slots.change(id, |slot| {
            slot.forget_most(gone);
            for (_, group) in groups {
                for (index, of_group) in group.entries.iter_mut().enumerate() {
                    if of_group.slot == id
                        && let Some((units, class)) = of_group.largest_unheld(index, classes)
                    {
                        let question = Question::new(&class.demand, index);
                        slot.note_most((of_group.count, units), question, gone);
                    }
                }
            }
        });
    }

    /// Drops the names of classes that are gone, when these are most of what is named: so what names
    /// classes stays as large as the line.
    fn sweep(&mut self, group: GroupId) {
        let Self {
            classes, groups, ..
        } = self;
        let most = 2 * classes.len() + FEW;
        if self.classes_by_shape.len() > most {
            self.classes_by_shape.retain(|_, alike| {
                alike.retain(|id| classes.contains(*id));
                !alike.is_empty()
            });
        }
        if self.unasked.len() > most {
            self.unasked.retain(|id| classes.contains(*id));
        }
        let Some(group) = groups.get_mut(group) else {
            return;
        };
        let most = 2 * group.fronts.len() + FEW;
        for (entry, of_group) in group.entries.iter_mut().enumerate() {
            if of_group.smallest.len() > most {
                let heap = &mut of_group.smallest;
                heap.retain(|Reverse((_, id))| classes.contains(*id));
            }
            if of_group.largest_unheld.len() > most {
                let mut named = BTreeSet::new();
                let heap = &mut of_group.largest_unheld;
                heap.retain(|(_, id)| is_unheld(classes, *id, entry) && named.insert(*id));
            }
        }
    }

    /// Whether the numbered invariants hold.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        self.places.check_invariants();
        for (seq, waiter) in self.places.iter() {
            let class = self.places.class_of(seq).and_then(|id| self.class(id));
            let class = class.expect("invariant 1");
            assert!(class.members.iter().any(|it| it == seq), "invariant 1");
            for (index, of_class) in class.entries.iter().enumerate() {
                assert_eq!(
                    waiter.is_held_by(index),
                    !of_class.unheld.iter(&class.members).any(|it| it == seq),
                    "invariant 2 on entry {index} of {seq:?}"
                );
            }
        }
        let classes = self.classes.iter();
        let members: usize = classes.map(|(_, class)| class.members.iter().count()).sum();
        assert_eq!(members, self.places.len(), "invariant 1");
        for (id, class) in self.classes.iter() {
            let front = class.members.first().expect("invariant 1");
            let group = self.group(class.group).expect("invariant 1");
            assert_eq!(group.fronts.get(front), Some(id), "invariant 3");
            for (index, of_group) in group.entries.iter().enumerate() {
                let named = of_group.largest_unheld.iter().any(|(_, it)| *it == id);
                assert!(named || !class.has_unheld(index), "invariant 4");
                let mut named = of_group.smallest.iter();
                assert!(named.any(|it| it.0.1 == id), "invariant 4");
            }
        }
        let mut by_account = IdMap::<(BTreeSet<GroupId>, usize)>::default();
        for (id, group) in self.groups() {
            for (index, entry) in group.entries.iter().enumerate() {
                let of_group = self.classes.iter().filter(|(_, class)| class.group == id);
                let unheld = of_group.map(|(_, class)| {
                    let unheld = class.entries[index].unheld.iter(&class.members);
                    unheld.count()
                });
                assert_eq!(unheld.sum::<usize>(), entry.unheld, "invariant 5");
                let (groups, unheld) = by_account.entry(entry.account).or_default();
                groups.insert(id);
                *unheld += entry.unheld;
            }
        }
        self.slots.check_invariants(&by_account);
        let fronts: usize = self.groups().map(|(_, group)| group.fronts.len()).sum();
        assert_eq!(fronts, self.classes.len(), "invariant 3");
    }
}

fn shape_of(demand: &Demand) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in demand.entries() {
        entry.account().hash(&mut hasher);
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
                .all(|(one, other)| one.account() == other.account() && one.asks_as(&**other))
        })
        .unwrap_or(false)
}
