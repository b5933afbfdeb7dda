//! One walk of the line.
//!
//! The walk answers what the plain pass would: every waiter in order, the head with nothing
//! reserved, the others with the head's amounts set aside (`plain.rs`, which the tests compare it
//! with). It does not ask everyone:
//!
//! - A class is asked through its first member. The others are asked only after an account of theirs
//!   was debited, since until then they would hear the same.
//! - A group is passed over when the accounts promise (see
//!   [`RateLimiter::revision`](crate::admission::RateLimiter::revision)) that nobody in it can be
//!   granted or refused. The walk then visits only those members that an account would hold for
//!   the first time.
//!
//! # Invariants
//!
//! 1. Places are visited in ascending order, each at most once.
//! 2. Whoever is passed over would have been found short by entries that hold it already, and
//!    would have named no earlier instant than the walk does.
//! 3. An answer of a class counts until an account of its group is debited.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Instant;

use super::foresight::{Foresight, View};
use super::groups::{ClassId, GroupId};
use super::seqs::Seq;
use super::{Line, Verdict, earlier};
use crate::admission::demand::Demand;
use crate::admission::ids::IdMap;
use crate::admission::outbox::Outbox;
use crate::admission::question::{Defect, Look, ShortEntries, Shortfall, look, shortness};
use crate::error::JobError;
use crate::events::RejectReason;

/// Walks the whole line once. Answers the instant of the next look that the clock alone calls for.
pub(super) fn walk(
    line: &mut Line,
    now: Instant,
    out: &mut Outbox,
) -> Result<Option<Instant>, Defect> {
    line.waiting.begin_walk();
    let mut walk = Walk {
        line,
        now,
        out,
        next: None,
        at: 0,
        turns: BinaryHeap::new(),
        answers: IdMap::default(),
        groups: BTreeMap::new(),
        debits: 0,
    };
    if let Some(head) = walk.heads()? {
        walk.at = head.seq;
        walk.followers(&head)?;
    }
    Ok(walk.next)
}

/// The waiter in front of all others, found short.
struct Head {
    seq: Seq,
    demand: Arc<Demand>,
}

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
    /// The revisions of its accounts that the walk began with, if they are not those of the last.
    revisions: Option<Vec<Option<u64>>>,
}

/// How a group stood before it was looked at anew.
#[derive(Default)]
struct Was {
    open: bool,
    asked: Vec<ClassId>,
}

struct Walk<'a> {
    line: &'a mut Line,
    now: Instant,
    out: &'a mut Outbox,
    next: Option<Instant>,
    /// The place that was visited last.
    at: Seq,
    turns: BinaryHeap<Reverse<(Seq, Turn)>>,
    answers: IdMap<Answer>,
    groups: BTreeMap<GroupId, InWalk>,
    debits: u64,
}

impl Walk<'_> {
    /// Grants and refuses from the front, until a head stays. None when nobody is left to ask.
    fn heads(&mut self) -> Result<Option<Head>, Defect> {
        while let Some((seq, waiter)) = self.line.waiting.head() {
            let demand = Arc::clone(&waiter.ask.demand);
            if !self.memory_passes(seq) {
                return Ok(None);
            }
            match look(&demand, None, self.now)? {
                Look::Granted => self.grant(seq),
                Look::Refused {
                    entry,
                    error,
                    reason,
                } => self.refuse(seq, entry, error, reason),
                Look::Short(shortfall) => {
                    self.hold(seq, shortfall.indices());
                    self.name(shortfall.instant(self.now));
                    self.note_short(&demand, &shortfall);
                    return Ok(Some(Head { seq, demand }));
                }
            }
        }
        Ok(None)
    }

    fn followers(&mut self, head: &Head) -> Result<(), Defect> {
        let groups = self.line.waiting.group_ids();
        self.look_ahead(head, groups);
        while let Some(Reverse((seq, turn))) = self.turns.pop() {
            let class = match turn {
                Turn::Member(class) => Some(class),
                Turn::Front(group) => self.front(group, seq),
            };
            if seq <= self.at {
                continue;
            }
            if let Some(class) = class
                && !self.visit(head, class, seq)?
            {
                return Ok(());
            }
        }
        self.note_revisions();
        Ok(())
    }

    /// The class whose first member is at `seq`, if its group is still open. The turn goes on to
    /// the group's next.
    fn front(&mut self, id: GroupId, seq: Seq) -> Option<ClassId> {
        if !self.is_open(id) {
            return None;
        }
        let group = self.line.waiting.group(id)?;
        let class = group.fronts.get(seq);
        if let Some(next) = group.fronts.after(seq) {
            self.turns.push(Reverse((next, Turn::Front(id))));
        }
        class
    }

    /// One waiter's turn. Answers false when memory lets nobody else pass.
    fn visit(&mut self, head: &Head, id: ClassId, seq: Seq) -> Result<bool, Defect> {
        self.at = seq;
        let Some(class) = self.line.waiting.class(id) else {
            return Ok(true);
        };
        let group = class.group;
        let demand = Arc::clone(&class.demand);
        let touched = self.groups.get(&group).map_or(0, |it| it.debits);
        if let Some(answer) = self.answers.get(&id)
            && answer.debits >= touched
        {
            let short = answer.short.clone();
            self.hold(seq, short.iter().copied());
            self.turn_of_unheld(id, &short);
            return Ok(true);
        }
        match look(&demand, Some(&head.demand), self.now)? {
            Look::Granted => {
                self.grant(seq);
                if !self.memory_passes(seq + 1) {
                    return Ok(false);
                }
                self.debited(head, &demand);
                if self.is_open(group) {
                    self.turn_of_next(id);
                }
            }
            Look::Refused {
                entry,
                error,
                reason,
            } => {
                self.refuse(seq, entry, error, reason);
                self.turn_of_next(id);
            }
            Look::Short(shortfall) => {
                self.hold(seq, shortfall.indices());
                self.name(shortfall.instant(self.now));
                if shortfall.declined {
                    // Accounts were debited and credited.
                    self.debited(head, &demand);
                    self.turn_of_next(id);
                } else {
                    let short: Vec<_> = shortfall.indices().collect();
                    self.turn_of_unheld(id, &short);
                    let debits = self.debits;
                    self.answers.insert(id, Answer { debits, short });
                    self.groups.entry(group).or_default().asked.push(id);
                }
            }
        }
        Ok(true)
    }

    /// Looks anew at these groups, and gives turns to whoever in them has to be visited from here
    /// on.
    fn look_ahead(&mut self, head: &Head, groups: impl IntoIterator<Item = GroupId>) {
        let view = View {
            head: &head.demand,
            now: self.now,
        };
        let mut bounded = Vec::new();
        for id in groups {
            if self.line.waiting.group(id).is_none() {
                continue;
            }
            let was = self.groups.get_mut(&id).map(|in_walk| Was {
                open: std::mem::take(&mut in_walk.open),
                asked: std::mem::take(&mut in_walk.asked),
            });
            let was = was.unwrap_or_default();
            match self.line.waiting.foresee(id, view) {
                Foresight::Open { revised } => {
                    // Counts only if everyone is asked from here on.
                    if self.debits == 0 {
                        self.groups.entry(id).or_default().revisions = revised;
                    }
                    self.open(id, was);
                }
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
            if self.next.is_some_and(|next| next <= bound) {
                continue;
            }
            // Only debits move instants, and only in an open group can there be one.
            if self.may_be_debited(id) || !self.name_for_group(head, id, last) {
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
        let waiting = &self.line.waiting;
        match (waiting.group(one), waiting.group(other)) {
            (Some(one), Some(other)) => one.touches(other),
            _ => false,
        }
    }

    /// Names the earliest instant of a closed group, if the class that asks for the least on the
    /// entry that holds them longest is held no longer by anything else. Everyone else in the group
    /// is held by that entry as long at least.
    fn name_for_group(&mut self, head: &Head, id: GroupId, last: usize) -> bool {
        let Some(class) = self.line.waiting.smallest(id, last) else {
            return false;
        };
        if class.members.after(self.at).is_none() {
            return false;
        }
        let mut entries = ShortEntries::new();
        if shortness(&class.demand, Some(&head.demand), self.now, &mut entries).is_err() {
            return false;
        }
        let Some((_, by_last)) = entries.iter().find(|(index, _)| *index == last).copied() else {
            return false;
        };
        let shortfall = Shortfall {
            entries,
            declined: false,
        };
        let instant = shortfall.instant(self.now);
        if instant != by_last.map(|instant| instant.max(self.now)) {
            return false;
        }
        self.name(instant);
        true
    }

    /// An account of this demand was debited: what was answered on it counts no more.
    fn debited(&mut self, head: &Head, demand: &Demand) {
        self.debits += 1;
        self.line.waiting.note_debit(demand);
        let shared: Vec<_> = self
            .line
            .waiting
            .groups()
            .filter(|(_, group)| group.shares(demand))
            .map(|(id, _)| id)
            .collect();
        for id in &shared {
            self.groups.entry(*id).or_default().debits = self.debits;
        }
        self.look_ahead(head, shared);
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
        let Some(group) = self.line.waiting.group(id) else {
            return;
        };
        for class in group.fronts.up_to(self.at) {
            let next = self.line.waiting.class(class);
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
        let class = self.line.waiting.class(id);
        if let Some(next) = class.and_then(|class| class.members.after(self.at)) {
            self.turns.push(Reverse((next, Turn::Member(id))));
        }
    }

    /// The next member of a class that one of these entries has not held yet.
    fn turn_of_unheld(&mut self, id: ClassId, entries: &[usize]) {
        let Some(class) = self.line.waiting.class(id) else {
            return;
        };
        let next = entries
            .iter()
            .filter_map(|entry| class.unheld.get(*entry)?.after(self.at))
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

    /// A walk that came to the end has asked every class of the groups whose accounts had changed
    /// by themselves.
    fn note_revisions(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        for (id, in_walk) in std::mem::take(&mut self.groups) {
            if let Some(revisions) = in_walk.revisions
                && let Some(group) = self.line.waiting.group_mut(id)
            {
                for (entry, revision) in group.entries.iter_mut().zip(revisions) {
                    entry.revision = revision;
                }
            }
        }
    }

    /// Whether memory lets whoever is at `from` pass; else it and everyone behind it are held on
    /// memory. Within one walk the answer changes only from yes to no, at a grant.
    fn memory_passes(&mut self, from: Seq) -> bool {
        let Line {
            memory, waiting, ..
        } = &mut *self.line;
        if memory.passes(self.now) {
            return true;
        }
        for seq in waiting.hold_on_memory_from(from) {
            if let Some(waiter) = waiting.waiter_mut(seq) {
                memory.hold(waiter, self.now, self.out);
            }
        }
        if waiting.is_anyone_from(from) {
            let instant = memory.earliest(self.now);
            self.name(instant);
        }
        false
    }

    fn grant(&mut self, seq: Seq) {
        if let Some(waiter) = self.line.waiting.remove(seq) {
            let waits = self.line.granted(&waiter, self.now, self.out);
            super::deliver(*waiter, Verdict::Granted(waits), self.out);
        }
    }

    fn refuse(&mut self, seq: Seq, entry: usize, error: JobError, reason: RejectReason) {
        if let Some(waiter) = self.line.waiting.remove(seq) {
            self.line
                .rejected(&waiter, Some(entry), reason, self.now, self.out);
            super::deliver(*waiter, Verdict::Refused(error), self.out);
        }
    }

    fn hold(&mut self, seq: Seq, entries: impl Iterator<Item = usize>) {
        let Line {
            accounts, waiting, ..
        } = &mut *self.line;
        let Some(waiter) = waiting.waiter_mut(seq) else {
            return;
        };
        for entry in accounts.hold(waiter, entries, self.now, self.out) {
            waiting.note_held(seq, entry);
        }
    }

    /// What the head lacks. Nothing is known of an account that said "fits" and then declined.
    fn note_short(&mut self, demand: &Demand, shortfall: &Shortfall) {
        if shortfall.declined {
            return;
        }
        for (index, until) in &shortfall.entries {
            if let Some(entry) = demand.entries().get(*index) {
                self.line.waiting.note_head_short(&**entry, *until);
            }
        }
    }

    /// The clock alone may change an answer at this instant.
    fn name(&mut self, instant: Option<Instant>) {
        self.next = earlier(self.next, instant);
    }
}
