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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::Replenishment;
use super::accounts::Accounts;
use super::demand::{Demand, Entry};
use super::memory_front::{MemoryFront, MemorySettings};
use super::outbox::Outbox;
use crate::clock::WaitCell;
use crate::error::{ErrorKind, JobError};
use crate::events::{LimiterChange, RejectReason};
use crate::job::JobSnapshot;
use crate::sync::Mutex;
#[cfg(nucleo_model)]
use crate::sync::fault::{self, Fault};
use crate::unwind::{contain, contain_result};

/// Who asks, and what for.
pub(super) struct Ask {
    pub(super) demand: Arc<Demand>,
    /// The job as it was when it asked; taken only when somebody listens.
    pub(super) snapshot: Option<JobSnapshot>,
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
    /// By account, from its first refusal to the grant. These overlap.
    pub(super) by_account: Vec<(Arc<str>, Duration)>,
}

/// Where the verdict on a parked demand is left for its thread.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    verdict: Mutex<Option<Verdict>>,
}

impl Ticket {
    pub(super) fn take(&self) -> Option<Verdict> {
        self.verdict.lock().take()
    }
}

/// What an arrival met.
pub(super) enum Arrival {
    Granted,
    Refused(JobError),
    Parked(Arc<Ticket>),
}

/// A defect inside a step: nothing that the line says can be trusted any more.
#[derive(Debug)]
pub(super) struct Defect(pub(super) JobError);

pub(super) struct Waiter {
    pub(super) ask: Ask,
    ticket: Arc<Ticket>,
    pub(super) asked: Instant,
    /// The entries that refused it so far, by index, and since when.
    pub(super) held: Vec<(usize, Instant)>,
    /// Since when it is held on memory.
    pub(super) memory_since: Option<Instant>,
}

/// What one look at a demand found.
enum Look {
    Granted,
    Short {
        entries: Vec<usize>,
        /// When the clock alone closes every shortfall; none when one needs an event.
        instant: Option<Instant>,
    },
    Refused {
        entry: usize,
        error: JobError,
        reason: RejectReason,
    },
}

#[derive(Default)]
pub(super) struct Line {
    waiters: VecDeque<Waiter>,
    pub(super) accounts: Accounts,
    pub(super) memory: MemoryFront,
    /// Something changed since the line was last walked.
    unwalked: bool,
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
        self.waiters.len()
    }

    /// A demand arrives. It is looked at once, behind the head if there is one, unless changes are
    /// still to be walked: then those before it come first.
    pub(super) fn arrive(
        &mut self,
        ask: Ask,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Arrival, Defect> {
        let mut waiter = Waiter {
            ask,
            ticket: Arc::default(),
            asked: now,
            held: Vec::new(),
            memory_since: None,
        };
        self.memory.look(out);
        let due = self.next_look.is_some_and(|instant| instant <= now);
        if !self.waiters.is_empty() && (self.unwalked || due) {
            return Ok(self.park(waiter, out, true));
        }
        if !self.memory.passes_arrival() {
            self.memory.hold(&mut waiter, now, out);
            // What was read just now may let the first of memory's line go, or sooner than known.
            let sooner = match (self.memory.earliest(now), self.next_look) {
                (Some(instant), Some(known)) => instant < known,
                _ => true,
            };
            let evaluate = sooner || self.memory.passes(now);
            return Ok(self.park(waiter, out, evaluate));
        }
        let ahead = self.waiters.front().map(|head| &*head.ask.demand);
        match look(&waiter.ask.demand, ahead, now)? {
            Look::Granted => {
                self.granted(&waiter, now, out);
                Ok(Arrival::Granted)
            }
            Look::Refused {
                entry,
                error,
                reason,
            } => {
                self.rejected(&waiter, Some(entry), reason, now, out);
                Ok(Arrival::Refused(error))
            }
            Look::Short { entries, instant } => {
                self.accounts.hold(&mut waiter, &entries, now, out);
                // Only an instant needs the evaluator: an event will wake it by itself.
                Ok(self.park(waiter, out, instant.is_some()))
            }
        }
    }

    /// Stamps memory's release and tells everyone who held the waiter.
    fn granted(&mut self, waiter: &Waiter, now: Instant, out: &mut Outbox) -> Waits {
        let memory = self.memory.granted(waiter, now, out);
        let mut waits = self.accounts.tell_granted(waiter, now, out);
        waits.by_account.extend(memory);
        waits
    }

    fn rejected(
        &mut self,
        waiter: &Waiter,
        refusing: Option<usize>,
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        self.memory.rejected(waiter, reason, now, out);
        self.accounts
            .tell_rejected(waiter, refusing, reason, now, out);
    }

    fn park(&mut self, waiter: Waiter, out: &mut Outbox, evaluate: bool) -> Arrival {
        let ticket = Arc::clone(&waiter.ticket);
        self.waiters.push_back(waiter);
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
        self.memory.look(out);
        let mut next: Option<Instant> = None;
        let mut index = 0;
        while let Some(waiter) = self.waiters.get_mut(index) {
            // Before any account, which is not asked while memory refuses.
            if !self.memory.passes(now) {
                self.memory.hold(waiter, now, out);
                next = earlier(next, self.memory.earliest(now));
                index += 1;
                continue;
            }
            let Some(waiter) = self.waiters.get(index) else {
                break;
            };
            let ahead = (index > 0)
                .then(|| self.waiters.front())
                .flatten()
                .map(|head| &*head.ask.demand);
            match look(&waiter.ask.demand, ahead, now)? {
                Look::Granted => {
                    if let Some(waiter) = self.waiters.remove(index) {
                        let waits = self.granted(&waiter, now, out);
                        deliver(waiter, Verdict::Granted(waits), out);
                    }
                    // The head left: whoever is head now is asked anew, with nothing reserved.
                    continue;
                }
                Look::Refused {
                    entry,
                    error,
                    reason,
                } => {
                    if let Some(waiter) = self.waiters.remove(index) {
                        self.rejected(&waiter, Some(entry), reason, now, out);
                        deliver(waiter, Verdict::Refused(error), out);
                    }
                    if index == 0 {
                        continue;
                    }
                }
                Look::Short { entries, instant } => {
                    if let Some(waiter) = self.waiters.get_mut(index) {
                        self.accounts.hold(waiter, &entries, now, out);
                    }
                    next = earlier(next, instant);
                    index += 1;
                }
            }
        }
        self.next_look = next;
        Ok(next)
    }

    /// Takes a waiter out whose job was cancelled. Answers false when its verdict was there first.
    pub(super) fn withdraw(
        &mut self,
        ticket: &Arc<Ticket>,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let position = self
            .waiters
            .iter()
            .position(|waiter| Arc::ptr_eq(&waiter.ticket, ticket));
        let Some(waiter) = position.and_then(|index| self.waiters.remove(index)) else {
            return false;
        };
        self.rejected(&waiter, None, RejectReason::Cancelled, now, out);
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
        while let Some(waiter) = self.waiters.pop_front() {
            self.rejected(&waiter, None, reason, now, out);
            deliver(waiter, Verdict::Refused(error.clone()), out);
        }
    }

    /// Lets go of the accounts that hold nobody.
    pub(super) fn forget_idle(&mut self, owner: u64) {
        self.accounts.forget_idle(owner, self.memory.key());
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
        snapshot: Option<&JobSnapshot>,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Defect> {
        for index in chosen {
            let Some(entry) = demand.entries().get(index) else {
                continue;
            };
            if metered_too || entry.replenishment() == Replenishment::Release {
                give(&**entry, now)?;
                self.accounts.tell(
                    &**entry,
                    snapshot,
                    LimiterChange::Released,
                    None,
                    Duration::ZERO,
                    out,
                );
            }
        }
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::ReleaseCallsNobody) {
            return Ok(());
        }
        if !self.waiters.is_empty() {
            self.unwalked = true;
            out.evaluate();
        }
        Ok(())
    }

    /// Whether the numbered invariants hold that can be read off the state.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        // A long line is checked by its sums in the properties, not at every unlock.
        if self.waiters.len() > 64 {
            return;
        }
        if let Some(told) = self.memory.held() {
            let held = self.waiters.iter().filter(|it| it.memory_since.is_some());
            assert_eq!(held.count(), told, "the count of memory's line");
        }
        for (key, told) in self.accounts.held_counts() {
            let held = self
                .waiters
                .iter()
                .filter(|waiter| {
                    waiter.held.iter().any(|(index, _)| {
                        waiter
                            .ask
                            .demand
                            .entries()
                            .get(*index)
                            .is_some_and(|entry| entry.key() == key)
                    })
                })
                .count();
            assert_eq!(held, told, "invariant 4 on {key:?}");
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn deliver(waiter: Waiter, verdict: Verdict, out: &mut Outbox) {
    *waiter.ticket.verdict.lock() = Some(verdict);
    #[cfg(nucleo_model)]
    if fault::is_planted(Fault::GrantWakesNobody) {
        return;
    }
    out.wake(waiter.ask.cell);
}

/// Asks every account of a demand, and takes all of it if all of it fits.
///
/// Every entry is asked even after one was short, and an error wins over shortness, the first in
/// entry order: whether a demand is refused must not depend on who else is short.
fn look(demand: &Demand, ahead: Option<&Demand>, now: Instant) -> Result<Look, Defect> {
    let mut short = Vec::new();
    let mut refusal = None;
    for (index, entry) in demand.entries().iter().enumerate() {
        let reserved = ahead.and_then(|head| head.entry_on(entry.key()));
        match ask(&**entry, |entry| entry.fits(reserved, now)) {
            Ok(true) => {}
            Ok(false) => short.push(index),
            Err((error, reason)) => {
                refusal.get_or_insert(Look::Refused {
                    entry: index,
                    error,
                    reason,
                });
            }
        }
    }
    if let Some(refusal) = refusal {
        return Ok(refusal);
    }
    if !short.is_empty() {
        return Ok(shortfall(demand, ahead, short, now));
    }
    for (index, entry) in demand.entries().iter().enumerate() {
        let reserved = ahead.and_then(|head| head.entry_on(entry.key()));
        let declined = match ask(&**entry, |entry| entry.try_take(reserved, now)) {
            Ok(true) => continue,
            Ok(false) => None,
            Err(refused) => Some(refused),
        };
        // What this attempt took goes back before anybody else is asked.
        for taken in demand.entries().iter().take(index) {
            #[cfg(nucleo_model)]
            if fault::is_planted(Fault::SkippedRollback) {
                break;
            }
            give(&**taken, now)?;
        }
        return Ok(match declined {
            Some((error, reason)) => Look::Refused {
                entry: index,
                error,
                reason,
            },
            None => shortfall(demand, ahead, vec![index], now),
        });
    }
    Ok(Look::Granted)
}

fn shortfall(demand: &Demand, ahead: Option<&Demand>, short: Vec<usize>, now: Instant) -> Look {
    // With several metered shortfalls it is the latest that decides; one that only an event can
    // close leaves no instant at all.
    let instant = short
        .iter()
        .map(|index| {
            let entry = demand.entries().get(*index)?;
            let reserved = ahead.and_then(|head| head.entry_on(entry.key()));
            contain("limiter", || entry.earliest_fit(reserved, now)).unwrap_or(None)
        })
        .try_fold(now, |latest, instant| {
            instant.map(|instant| latest.max(instant))
        });
    Look::Short {
        entries: short,
        instant,
    }
}

/// One question to an account: its answer, or the refusal that its waiter gets.
fn ask(
    entry: &dyn Entry,
    question: impl FnOnce(&dyn Entry) -> Result<bool, JobError>,
) -> Result<bool, (JobError, RejectReason)> {
    contain_result("limiter", || question(entry)).map_err(|error| match error.kind() {
        // A defect or a panic of the account.
        ErrorKind::System { .. } => (
            JobError::uncorrectable(format!(
                "the account '{}' failed while it was asked",
                entry.key().name()
            ))
            .with_source(error),
            RejectReason::Aborted,
        ),
        _ => (error, RejectReason::CircuitBlocked),
    })
}

/// An account that cannot take back what it gave out is a defect of the whole.
fn give(entry: &dyn Entry, now: Instant) -> Result<(), Defect> {
    contain("limiter", || entry.give(now)).map_err(|error| {
        Defect(
            JobError::system(
                "admission",
                format!(
                    "the account '{}' failed to take back an amount",
                    entry.key().name()
                ),
            )
            .with_source(error),
        )
    })
}
