//! One walk of the line.
//!
//! The walk answers what the plain pass would: every waiter in order, the head with nothing
//! reserved, the others with the head's amounts set aside (`plain.rs`, which the tests compare it
//! with). It does not ask everyone: `followers.rs` says whom.
//!
//! # Invariants
//!
//! 1. Places are visited in ascending order, each at most once.

use std::sync::Arc;
use std::time::Instant;

use super::followers::Followers;
use super::seqs::Seq;
use super::{Line, earlier};
use crate::admission::demand::Demand;
use crate::admission::outbox::Outbox;
use crate::admission::question::{Defect, Look, look};
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
    };
    if let Some(head) = walk.heads()? {
        walk.followers(head)?;
    }
    Ok(walk.next)
}

pub(super) struct Walk<'a> {
    pub(super) line: &'a mut Line,
    pub(super) now: Instant,
    pub(super) out: &'a mut Outbox,
    pub(super) next: Option<Instant>,
}

impl Walk<'_> {
    /// Grants and refuses from the front, until a head stays, found short. None when nobody is left
    /// to ask.
    fn heads(&mut self) -> Result<Option<Seq>, Defect> {
        while let Some(seq) = self.line.waiting.places.first_seq() {
            if !self.memory_passes(seq) {
                return Ok(None);
            }
            let Some(head) = self.line.waiting.places.get(seq) else {
                break;
            };
            match look(&head.demand, None, self.now)? {
                Look::Granted => self.grant(seq),
                Look::Refused {
                    entry,
                    error,
                    reason,
                } => self.refuse(seq, (entry, error, reason)),
                Look::Short(shortfall) => {
                    self.hold(seq, shortfall.indices());
                    self.name(shortfall.instant(self.now));
                    self.line.let_go_of(seq);
                    self.line.waiting.note_head(seq, &shortfall);
                    return Ok(Some(seq));
                }
            }
        }
        Ok(None)
    }

    /// Those behind a head that stays.
    fn followers(&mut self, head: Seq) -> Result<(), Defect> {
        let is_open = self.line.memory.is_open();
        if is_open && self.line.waiting.is_calm(head, self.now) {
            return Ok(());
        }
        let Some(waiter) = self.line.waiting.places.get(head) else {
            return Ok(());
        };
        let demand = Arc::clone(&waiter.demand);
        if is_open {
            Followers::of(head, &demand, self).visit_all()
        } else {
            // Each meets memory in its turn.
            let behind = self.line.waiting.places.behind(head);
            self.ask_everyone(behind, &demand)
        }
    }

    /// Asks everyone from a place on, one by one, beside what the head has set aside.
    pub(super) fn ask_everyone(
        &mut self,
        mut place: Option<Seq>,
        head: &Demand,
    ) -> Result<(), Defect> {
        while let Some(seq) = place {
            if !self.memory_passes(seq) {
                return Ok(());
            }
            place = self.line.waiting.places.behind(seq);
            let Some(waiter) = self.line.waiting.places.get(seq) else {
                continue;
            };
            match look(&waiter.demand, Some(head), self.now)? {
                Look::Granted => self.grant(seq),
                Look::Refused {
                    entry,
                    error,
                    reason,
                } => self.refuse(seq, (entry, error, reason)),
                Look::Short(shortfall) => {
                    self.hold(seq, shortfall.indices());
                    self.name(shortfall.instant(self.now));
                    self.line.let_go_of(seq);
                }
            }
        }
        self.line.waiting.note_asked();
        Ok(())
    }

    /// Whether memory lets the waiter at `from` pass; else it and everyone behind it are held on
    /// memory.
    #[inline]
    fn memory_passes(&mut self, from: Seq) -> bool {
        !self.line.memory.is_gated() || self.gated_memory_passes(from)
    }

    #[inline(never)]
    fn gated_memory_passes(&mut self, from: Seq) -> bool {
        let is_in_line = self.line.waiting.is_in_memory_line(from);
        let passes = self.line.memory.passes(is_in_line, self.now);
        if !passes {
            self.line.hold_on_memory(from, self.now, self.out);
            let instant = self.line.memory.earliest(self.now);
            self.name(instant);
        }
        passes
    }

    pub(super) fn grant(&mut self, seq: Seq) {
        self.line.grant(seq, self.now, self.out);
    }

    pub(super) fn refuse(&mut self, seq: Seq, refusal: (usize, JobError, RejectReason)) {
        self.line.refuse(seq, refusal, self.now, self.out);
    }

    pub(super) fn hold(&mut self, seq: Seq, entries: impl Iterator<Item = usize> + Clone) {
        let Line {
            accounts, waiting, ..
        } = &mut *self.line;
        let Some(waiter) = waiting.places.get_mut(seq) else {
            return;
        };
        if entries.clone().all(|entry| waiter.is_held_by(entry)) {
            return;
        }
        for entry in accounts.hold(waiter, entries, self.now, self.out) {
            waiting.note_held(seq, entry);
        }
    }

    /// The clock alone may change an answer at this instant.
    pub(super) fn name(&mut self, instant: Option<Instant>) {
        self.next = earlier(self.next, instant);
    }
}
