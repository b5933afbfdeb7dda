//! The line of waiting demands, and who may be granted.
//!
//! A step here is a function of the line, what happened and `now`: no thread, no clock and no lock
//! of its own. The monitor locks, steps, unlocks and performs what the step put in its [`Outbox`].
//!
//! # Invariants
//!
//! 1. A waiter holds nothing: whatever an attempt took before it failed is given back in the same
//!    step.
//! 2. The head is asked with nothing reserved; everyone behind it with the head's amounts set
//!    aside. So the head is never overtaken on an account that it needs.
//! 3. A waiter leaves the line granted, refused or withdrawn, once.
//! 4. The count of waiters that an account holds is the number of those that it has refused and
//!    that still wait.
//!
//! How the waiters are arranged is in `places.rs` and `waiting.rs`, what is known of their accounts in
//! `slots.rs`, how they are walked in `walk.rs` and `followers.rs`.

#[cfg(test)]
mod equivalence;
mod followers;
mod foresight;
mod fronts;
mod groups;
mod keyed;
mod places;
#[cfg(test)]
mod plain;
mod seqs;
mod slots;
mod unheld;
mod waiting;
mod walk;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::accounts::Accounts;
use super::demand::Demand;
use super::memory_front::{MemoryFront, MemorySettings};
use super::outbox::{Behind, Outbox};
use super::question::{Defect, Look, give_back, look};
use crate::clock::WaitCell;
use crate::error::JobError;
use crate::events::{LimiterChange, RejectReason};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
#[cfg(nucleo_model)]
use crate::sync::fault::{self, Fault};
use keyed::Births;
use seqs::Seq;
use waiting::Waiting;

/// Demands to be dropped where no lock is held. A step has few of them.
pub(super) type Gone = SmallVec<[Arc<Demand>; 4]>;

/// Whether an account grew by its own doing, told from any thread.
#[derive(Clone, Default)]
pub(super) struct Growth(Arc<AtomicBool>);

impl Growth {
    /// Called before the evaluator is woken.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    #[inline]
    fn is_pending(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// What was told until now is about to be walked.
    #[inline]
    fn take(&self) {
        // A look costs less than a write, and it is seldom pending.
        if self.is_pending() {
            self.0.store(false, Ordering::SeqCst);
        }
    }
}

/// Who asks, and what for.
pub(super) struct Ask {
    pub(super) demand: Arc<Demand>,
    /// The job; looked at only when somebody listens.
    pub(super) behind: Option<Arc<Behind>>,
    /// Where the job's thread sleeps.
    pub(super) cell: Arc<WaitCell>,
}

/// What became of a demand that has left the line.
#[derive(Debug)]
pub(super) enum Verdict {
    Granted(Waits),
    Refused(JobError),
}

/// How long a demand waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    pub(super) wall: Duration,
    /// By entry, from its first refusal to the grant. These overlap.
    pub(super) by_entry: SmallVec<[(usize, Duration); 2]>,
    /// As much for memory, which no entry names.
    pub(super) by_memory: Option<(Arc<str>, Duration)>,
}

/// Where the verdict on a parked demand is left for its thread.
#[derive(Debug)]
pub(super) struct Ticket {
    seq: Seq,
    /// Where the thread sleeps.
    cell: Arc<WaitCell>,
    verdict: Mutex<Option<Verdict>>,
}

impl Ticket {
    fn new(seq: Seq, cell: Arc<WaitCell>) -> Self {
        Self {
            seq,
            cell,
            verdict: Mutex::default(),
        }
    }

    /// The place in the line, counted from 1.
    pub(super) fn place(&self) -> u64 {
        self.seq.born()
    }

    pub(super) fn has_verdict(&self) -> bool {
        self.verdict.lock().is_some()
    }

    pub(super) fn take(&self) -> Option<Verdict> {
        self.verdict.lock().take()
    }

    /// Leaves the verdict, then wakes the thread.
    pub(super) fn deliver(&self, verdict: Verdict) {
        *self.verdict.lock() = Some(verdict);
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::GrantWakesNobody) {
            return;
        }
        self.cell.notify();
    }
}

/// What an arrival met.
pub(super) enum Arrival {
    Granted,
    Refused(JobError),
    Parked(Arc<Ticket>),
}

pub(super) struct Waiter {
    pub(super) demand: Arc<Demand>,
    pub(super) behind: Option<Arc<Behind>>,
    pub(super) asked: Instant,
    /// The entries that refused it so far, by index, and since when.
    pub(super) held: SmallVec<[(usize, Instant); 2]>,
    /// Since when it has been held on memory, though memory may have let go of it.
    pub(super) memory_since: Option<Instant>,
}

impl Waiter {
    fn new(demand: Arc<Demand>, behind: Option<Arc<Behind>>, now: Instant) -> Self {
        Self {
            demand,
            behind,
            asked: now,
            held: SmallVec::new(),
            memory_since: None,
        }
    }

    /// Whether the account of this entry has refused it so far.
    pub(super) fn is_held_by(&self, entry: usize) -> bool {
        self.held.iter().any(|(held, _)| *held == entry)
    }
}

#[derive(Default)]
pub(super) struct Line {
    waiting: Waiting,
    births: Births,
    pub(super) accounts: Accounts,
    pub(super) memory: MemoryFront,
    /// Something changed since the line was last walked.
    unwalked: bool,
    /// Whether an account grew since then by its own doing.
    pub(super) growth: Growth,
    /// When the evaluator means to look again.
    next_look: Option<Instant>,
}

impl Line {
    pub(super) fn new(memory: Option<MemorySettings>) -> Self {
        let mut line = Self {
            memory: memory.map_or_else(MemoryFront::default, MemoryFront::new),
            ..Self::default()
        };
        if let Some(key) = line.memory.key() {
            line.accounts.reserve(key);
        }
        line
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.places.len()
    }

    /// A demand arrives. It is looked at once, behind the head if there is one, unless changes are
    /// still to be walked: then those before it come first.
    pub(super) fn arrive(
        &mut self,
        ask: Ask,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Arrival, Defect> {
        let born = self.births.next();
        let Ask {
            demand,
            behind,
            cell,
        } = ask;
        let mut waiter = Waiter::new(demand, behind, now);
        self.memory.look(out);
        let due = self.next_look.is_some_and(|instant| instant <= now);
        let has_changed = self.unwalked || due || self.growth.is_pending();
        if !self.waiting.places.is_empty() && has_changed {
            if self.waiting.has_memory_line() {
                self.memory.hold(&mut waiter, now, out);
            }
            return Ok(self.park((born, cell), waiter, false, out, true));
        }
        if !self.memory.is_open() {
            self.memory.hold(&mut waiter, now, out);
            // What was read just now may let the first of memory's line go, or sooner than known.
            let sooner = match (self.memory.earliest(now), self.next_look) {
                (Some(instant), Some(known)) => instant < known,
                _ => true,
            };
            let evaluate = sooner || self.memory.passes(true, now);
            return Ok(self.park((born, cell), waiter, false, out, evaluate));
        }
        let ahead = self.waiting.places.first();
        let ahead = ahead.map(|(_, head)| &*head.demand);
        match look(&waiter.demand, ahead, now)? {
            Look::Granted => {
                let (memory, accounts) = (&mut self.memory, &mut self.accounts);
                granted(memory, accounts, (&waiter, false), now, out);
                if !self.waiting.places.is_empty() {
                    self.waiting.note_passed(&waiter.demand);
                }
                Ok(Arrival::Granted)
            }
            Look::Refused {
                entry,
                error,
                reason,
            } => {
                let (memory, accounts) = (&mut self.memory, &mut self.accounts);
                let waiter = (&waiter, false);
                rejected(memory, accounts, waiter, Some(entry), reason, now, out);
                Ok(Arrival::Refused(error))
            }
            Look::Short(shortfall) => {
                self.accounts
                    .hold(&mut waiter, shortfall.indices(), now, out);
                // Only an instant needs the evaluator: an event will wake it by itself.
                let evaluate = shortfall.instant(now).is_some();
                Ok(self.park((born, cell), waiter, true, out, evaluate))
            }
        }
    }

    #[inline(never)]
    fn park(
        &mut self,
        (born, cell): (NonZeroU64, Arc<WaitCell>),
        waiter: Waiter,
        was_asked: bool,
        out: &mut Outbox,
        evaluate: bool,
    ) -> Arrival {
        let ticket = self.waiting.push((born, cell), waiter, was_asked);
        if evaluate {
            self.unwalked = true;
            out.evaluate();
        }
        Arrival::Parked(ticket)
    }

    /// Walks the whole line once. Answers the instant of the next look that the clock alone calls
    /// for.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Option<Instant>, Defect> {
        self.unwalked = false;
        self.growth.take();
        self.memory.look(out);
        self.next_look = walk::walk(self, now, out)?;
        Ok(self.next_look)
    }

    /// Takes a waiter out whose job was cancelled. Answers false when its verdict was there first.
    pub(super) fn withdraw(
        &mut self,
        ticket: &Arc<Ticket>,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        if self
            .take_out(ticket.seq, None, RejectReason::Cancelled, now, out)
            .is_none()
        {
            return false;
        }
        self.unwalked = true;
        out.evaluate();
        true
    }

    /// Refuses everyone, for the same reason.
    pub(super) fn refuse_all(
        &mut self,
        error: &JobError,
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        while let Some((seq, _)) = self.waiting.places.first() {
            let Some(ticket) = self.take_out(seq, None, reason, now, out) else {
                break;
            };
            out.deliver(ticket, Verdict::Refused(error.clone()));
        }
    }

    /// Everyone from here on is held on memory.
    #[cold]
    #[inline(never)]
    fn hold_on_memory(&mut self, from: Seq, now: Instant, out: &mut Outbox) {
        let began = self.waiting.extend_memory_line(from);
        let mut place = Some(from);
        while let Some(seq) = place.filter(|seq| began.is_none_or(|began| *seq < began)) {
            if let Some(waiter) = self.waiting.places.get_mut(seq) {
                self.memory.hold(waiter, now, out);
            }
            place = self.waiting.places.behind(seq);
        }
    }

    /// A waiter that memory has let pass waits for its accounts alone.
    #[inline]
    fn let_go_of(&mut self, seq: Seq) {
        if self.waiting.is_in_memory_line(seq) {
            self.waiting.leave_memory_line(seq);
            self.memory.let_go();
        }
    }

    /// Grants a waiter whose accounts were debited.
    fn grant(&mut self, seq: Seq, now: Instant, out: &mut Outbox) {
        let Some(waiter) = self.waiting.places.get(seq) else {
            return;
        };
        let waiter = (waiter, self.waiting.is_in_memory_line(seq));
        let waits = granted(&mut self.memory, &mut self.accounts, waiter, now, out);
        if let Some(ticket) = self.waiting.remove(seq, true) {
            out.deliver(ticket, Verdict::Granted(waits));
        }
    }

    /// Refuses a waiter with the error of an account of its own.
    fn refuse(
        &mut self,
        seq: Seq,
        (entry, error, reason): (usize, JobError, RejectReason),
        now: Instant,
        out: &mut Outbox,
    ) {
        if let Some(ticket) = self.take_out(seq, Some(entry), reason, now, out) {
            out.deliver(ticket, Verdict::Refused(error));
        }
    }

    /// Takes a waiter out that is not granted, and tells everyone who held it.
    fn take_out(
        &mut self,
        seq: Seq,
        refusing: Option<usize>,
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) -> Option<Arc<Ticket>> {
        let waiter = self.waiting.places.get(seq)?;
        let waiter = (waiter, self.waiting.is_in_memory_line(seq));
        let (memory, accounts) = (&mut self.memory, &mut self.accounts);
        rejected(memory, accounts, waiter, refusing, reason, now, out);
        self.waiting.remove(seq, false)
    }

    /// Whether a parked demand was granted; none while it waits.
    #[cfg(test)]
    fn verdict_of(&self, ticket: &Ticket) -> Option<bool> {
        ticket
            .take()
            .map(|verdict| matches!(verdict, Verdict::Granted(_)))
    }

    /// Lets go of the accounts that no waiter asks for.
    pub(super) fn forget_idle(&mut self, owner: u64) {
        let slots = &self.waiting.slots;
        self.accounts
            .forget_idle(owner, self.memory.key(), |account| slots.has(account));
    }

    /// What the line has no more use for, to be dropped where no lock is held.
    pub(super) fn take_gone(&mut self) -> Gone {
        self.waiting.take_gone()
    }

    /// The work of a grant with entries is over, whatever of it still has to come back.
    pub(super) fn finish(&mut self, now: Instant, out: &mut Outbox) {
        self.memory.look(out);
        self.memory.completed(now);
    }

    /// Credits the chosen entries of a settled grant.
    pub(super) fn give_back(
        &mut self,
        demand: &Demand,
        chosen: impl Iterator<Item = usize>,
        metered_too: bool,
        behind: Option<&Arc<Behind>>,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Defect> {
        let (given, end) = give_back(demand, chosen, metered_too, now);
        if behind.is_some() || self.accounts.has_let_go {
            for entry in given
                .iter()
                .filter_map(|index| demand.entries().get(*index))
            {
                let (change, none) = (LimiterChange::Released, Duration::ZERO);
                self.accounts.tell(entry, behind, change, None, none, out);
                // Whoever an account serves now that was let go of hears of it.
                if !self.accounts.has(entry.account()) {
                    entry.key().capacity_grew();
                }
            }
        }
        end?;
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::ReleaseCallsNobody) {
            return Ok(());
        }
        if !self.waiting.places.is_empty() {
            self.unwalked = true;
            out.evaluate();
        }
        Ok(())
    }

    /// Whether the numbered invariants hold that can be read off the state.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        // A long line is checked by its sums in the properties, not at every unlock.
        if self.waiting.places.len() > 64 {
            return;
        }
        self.waiting.check_invariants();
        let waiters = || self.waiting.places.iter().map(|(_, waiter)| waiter);
        if let Some(told) = self.memory.held() {
            let places = self.waiting.places.iter();
            let held = places.filter(|(seq, _)| self.waiting.is_in_memory_line(*seq));
            assert_eq!(held.count(), told, "the count of memory's line");
        }
        for (key, told) in self.accounts.held_counts() {
            let held = waiters().filter(|waiter| {
                let mut entries = waiter.demand.entries().iter().enumerate();
                entries.any(|(index, entry)| entry.key() == key && waiter.is_held_by(index))
            });
            assert_eq!(held.count(), told, "invariant 4 on {key:?}");
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Stamps memory's release and tells everyone who held the waiter.
#[inline(never)]
fn granted(
    memory: &mut MemoryFront,
    accounts: &mut Accounts,
    (waiter, is_in_memory_line): (&Waiter, bool),
    now: Instant,
    out: &mut Outbox,
) -> Waits {
    let mut waits = Waits {
        by_memory: memory.granted(waiter, is_in_memory_line, now, out),
        ..Waits::default()
    };
    accounts.tell_granted(waiter, now, &mut waits, out);
    waits
}

fn rejected(
    memory: &mut MemoryFront,
    accounts: &mut Accounts,
    (waiter, is_in_memory_line): (&Waiter, bool),
    refusing: Option<usize>,
    reason: RejectReason,
    now: Instant,
    out: &mut Outbox,
) {
    memory.rejected(waiter, is_in_memory_line, reason, now, out);
    accounts.tell_rejected(waiter, refusing, reason, now, out);
}
