//! Those behind the head, in one walk: who is asked.
//!
//! - A class is asked through its first member. The others are asked only after an account of theirs
//!   was debited, since until then they would hear the same.
//! - A group is passed over when the accounts promise (see
//!   [`RateLimiter::revision`](crate::admission::RateLimiter::revision)) that nobody in it can be
//!   granted or refused. The walk then visits only those members that an account would hold for
//!   the first time, and a class that was never asked.
//! - That is worth its looks while there are fewer of these than waiters. A walk in which many are
//!   granted from many groups that share an account would look at all groups for each of them: it
//!   asks everyone from there on.
//!
//! # Invariants
//!
//! 1. Whoever is passed over would have been found short by entries that hold it already, and
//!    would have named no earlier instant than the walk does.
//! 2. An answer of a class counts until an account of its group is debited.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::foresight::{Foresight, View};
use super::groups::{ClassId, GroupId};
use super::seqs::Seq;
use super::waiting::Waiting;
use super::walk::Walk;
use crate::admission::demand::Demand;
use crate::admission::ids::IdMap;
use crate::admission::question::{Defect, Look, Shortfall, look, shortness};

/// So many looks are no matter in any walk.
const MANY_LOOKS: usize = 256;

/// Whose turn it is at a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// The class whose first member is there; then that of the group's next first member.
    Front(GroupId),
    Member(ClassId),
}

/// What a class was answered.
struct Answer {
    debits: u64,
    short: Vec<usize>,
}

/// A group in this walk. One that is not noted is closed, with nothing to be asked again.
#[derive(Default)]
struct InWalk {
    /// Somebody in it may be granted or refused, as far as the line can foresee.
    open: bool,
    /// How many debits the walk had made when one last touched the group.
    debits: u64,
    /// The classes that have been answered since.
    asked: Vec<ClassId>,
}

/// How a group stood before it was looked at anew.
#[derive(Default)]
struct Was {
    open: bool,
    asked: Vec<ClassId>,
}

/// The visits of one walk to those behind its head.
pub(super) struct Followers<'w, 'a> {
    walk: &'w mut Walk<'a>,
    view: View<'w>,
    /// The place that was visited last.
    at: Seq,
    /// The next place.
    behind: Option<Seq>,
    turns: BinaryHeap<Reverse<(Seq, Turn)>>,
    /// By the birth of the class.
    answers: IdMap<Answer>,
    groups: BTreeMap<GroupId, InWalk>,
    debits: u64,
    /// How many groups were looked at, one as often as it was.
    looks: usize,
}

impl<'w, 'a> Followers<'w, 'a> {
    /// Those behind the head, which is at `at` and has this demand.
    pub(super) fn of(at: Seq, head: &'w Demand, walk: &'w mut Walk<'a>) -> Self {
        Self {
            view: View {
                head,
                now: walk.now,
            },
            behind: walk.line.waiting.places.behind(at),
            walk,
            at,
            turns: BinaryHeap::new(),
            answers: IdMap::default(),
            groups: BTreeMap::new(),
            debits: 0,
            looks: 0,
        }
    }

    /// Visits everyone who has to be.
    pub(super) fn visit_all(mut self) -> Result<(), Defect> {
        let groups: Vec<_> = self.waiting().groups().map(|(id, _)| id).collect();
        self.look_ahead(groups);
        for class in self.waiting().unasked().to_vec() {
            self.turn_of_next(class);
        }
        while let Some(Reverse((seq, turn))) = self.turns.pop() {
            let class = match turn {
                Turn::Member(class) => Some(class),
                Turn::Front(group) => self.front(group, seq),
            };
            if seq <= self.at {
                continue;
            }
            if let Some(class) = class {
                self.visit(class, seq)?;
            }
            if self.looks > self.enough_looks() {
                return self.ask_everyone();
            }
        }
        self.walk.line.waiting.note_asked();
        Ok(())
    }

    /// How many groups may be looked at before it is cheaper to ask everyone.
    fn enough_looks(&self) -> usize {
        let waiting = self.waiting();
        // The lines of these tests are short: every third walk asks everyone as soon as it may.
        if cfg!(test) && waiting.walks.is_multiple_of(3) {
            return 0;
        }
        4 * waiting.places.len() + MANY_LOOKS
    }

    /// Asks everyone behind the place that was visited last, one by one.
    fn ask_everyone(self) -> Result<(), Defect> {
        self.walk.ask_everyone(self.behind, self.view.head)
    }

    fn waiting(&self) -> &Waiting {
        &self.walk.line.waiting
    }

    /// The class whose first member is at `seq`, if its group is still open. The turn goes on to
    /// the group's next.
    fn front(&mut self, id: GroupId, seq: Seq) -> Option<ClassId> {
        if !self.is_open(id) {
            return None;
        }
        let group = self.waiting().group(id)?;
        let class = group.fronts.get(seq);
        if let Some(next) = group.fronts.after(seq) {
            self.turns.push(Reverse((next, Turn::Front(id))));
        }
        class
    }

    /// One waiter's turn.
    fn visit(&mut self, id: ClassId, seq: Seq) -> Result<(), Defect> {
        self.at = seq;
        self.behind = self.waiting().places.behind(seq);
        let Some(class) = self.waiting().class(id) else {
            return Ok(());
        };
        let group = class.group;
        let demand = Arc::clone(&class.demand);
        let touched = self.groups.get(&group).map_or(0, |it| it.debits);
        if let Some(answer) = self.answers.get(&id.born())
            && answer.debits >= touched
        {
            let short = answer.short.clone();
            self.walk.hold(seq, short.iter().copied());
            self.turn_of_unheld(id, &short);
            return Ok(());
        }
        match look(&demand, Some(self.view.head), self.walk.now)? {
            Look::Granted => {
                self.walk.grant(seq);
                self.debited(&demand);
                if self.is_open(group) {
                    self.turn_of_next(id);
                }
            }
            Look::Refused {
                entry,
                error,
                reason,
            } => {
                self.walk.refuse(seq, (entry, error, reason));
                self.turn_of_next(id);
            }
            Look::Short(shortfall) => {
                self.walk.hold(seq, shortfall.indices());
                self.walk.name(shortfall.instant(self.walk.now));
                if shortfall.declined {
                    // Accounts were debited and credited.
                    self.debited(&demand);
                    self.turn_of_next(id);
                } else {
                    let short: Vec<_> = shortfall.indices().collect();
                    self.turn_of_unheld(id, &short);
                    let debits = self.debits;
                    self.answers.insert(id.born(), Answer { debits, short });
                    self.groups.entry(group).or_default().asked.push(id);
                }
            }
        }
        Ok(())
    }

    /// Looks anew at these groups, and gives turns to whoever in them has to be visited from here
    /// on.
    fn look_ahead(&mut self, groups: impl IntoIterator<Item = GroupId>) {
        let mut bounded = Vec::new();
        for id in groups {
            if self.waiting().group(id).is_none() {
                continue;
            }
            self.looks += 1;
            let was = self.groups.get_mut(&id).map(|in_walk| Was {
                open: std::mem::take(&mut in_walk.open),
                asked: std::mem::take(&mut in_walk.asked),
            });
            let was = was.unwrap_or_default();
            match self.walk.line.waiting.foresee(id, self.view) {
                Foresight::Open => self.open(id, was),
                Foresight::Closed {
                    unheld,
                    bound,
                    last,
                } => {
                    self.turn_of_first_held(unheld);
                    if let Some(bound) = bound {
                        bounded.push((id, bound, last, was));
                    }
                }
            }
        }
        for (id, bound, last, was) in bounded {
            if self.walk.next.is_some_and(|next| next <= bound) {
                continue;
            }
            // Only debits move instants, and only in an open group can there be one.
            if self.may_be_debited(id) || !self.name_for_group(id, last) {
                self.open(id, was);
            }
        }
    }

    fn may_be_debited(&self, id: GroupId) -> bool {
        self.groups
            .iter()
            .any(|(other, in_walk)| in_walk.open && self.touch(id, *other))
    }

    fn touch(&self, one: GroupId, other: GroupId) -> bool {
        let waiting = self.waiting();
        match (waiting.group(one), waiting.group(other)) {
            (Some(one), Some(other)) => one.touches(other),
            _ => false,
        }
    }

    /// Names the earliest instant of a closed group, if the class that asks for the least on the
    /// entry that holds them longest is held no longer by anything else. Everyone else in the group
    /// is held by that entry as long at least.
    fn name_for_group(&mut self, id: GroupId, last: usize) -> bool {
        let Some(class) = self.walk.line.waiting.smallest(id, last) else {
            return false;
        };
        if class.members.after(self.at).is_none() {
            return false;
        }
        let Ok(entries) = shortness(&class.demand, Some(self.view.head), self.view.now) else {
            return false;
        };
        let Some((_, by_last)) = entries.iter().find(|(index, _)| *index == last).copied() else {
            return false;
        };
        let shortfall = Shortfall {
            entries,
            declined: false,
        };
        let instant = shortfall.instant(self.walk.now);
        if instant != by_last.map(|instant| instant.max(self.walk.now)) {
            return false;
        }
        self.walk.name(instant);
        true
    }

    /// An account of this demand was debited: what was answered on it counts no more.
    fn debited(&mut self, demand: &Demand) {
        self.debits += 1;
        self.looks += self.waiting().groups.len();
        self.walk.line.waiting.note_debit(demand);
        let shared: Vec<_> = self
            .waiting()
            .groups()
            .filter(|(_, group)| group.shares(demand))
            .map(|(id, _)| id)
            .collect();
        for id in &shared {
            self.groups.entry(*id).or_default().debits = self.debits;
        }
        self.look_ahead(shared);
    }

    /// Everyone in the group behind the place that was visited last has a turn.
    fn open(&mut self, id: GroupId, was: Was) {
        self.groups.entry(id).or_default().open = true;
        if was.open {
            // Whoever has not been asked has a turn already.
            for class in was.asked {
                self.turn_of_next(class);
            }
            return;
        }
        let waiting = &self.walk.line.waiting;
        let Some(group) = waiting.group(id) else {
            return;
        };
        for class in group.fronts.up_to(self.at) {
            let next = waiting.class(class);
            if let Some(next) = next.and_then(|class| class.members.after(self.at)) {
                self.turns.push(Reverse((next, Turn::Member(class))));
            }
        }
        if let Some(next) = group.fronts.after(self.at) {
            self.turns.push(Reverse((next, Turn::Front(id))));
        }
    }

    fn is_open(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| group.open)
    }

    fn turn_of_next(&mut self, id: ClassId) {
        let class = self.waiting().class(id);
        if let Some(next) = class.and_then(|class| class.members.after(self.at)) {
            self.turns.push(Reverse((next, Turn::Member(id))));
        }
    }

    /// The next member of a class that one of these entries has not held yet.
    fn turn_of_unheld(&mut self, id: ClassId, entries: &[usize]) {
        let Some(class) = self.waiting().class(id) else {
            return;
        };
        let next = entries
            .iter()
            .filter_map(|entry| class.unheld_after(*entry, self.at))
            .min();
        if let Some(next) = next {
            self.turns.push(Reverse((next, Turn::Member(id))));
        }
    }

    fn turn_of_first_held(&mut self, unheld: Vec<(usize, ClassId)>) {
        for (entry, class) in unheld {
            self.turn_of_unheld(class, &[entry]);
        }
    }
}
