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
    if let Some(head) = walk.heads()?
        && !walk.line.waiting.is_calm(head, now)
        && let Some(waiter) = walk.line.waiting.places.get(head)
    {
        let demand = Arc::clone(&waiter.demand);
        Followers::of(head, &demand, &mut walk).visit_all()?;
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
                    self.line.waiting.note_head(seq, &shortfall);
                    return Ok(Some(seq));
                }
            }
        }
        Ok(None)
    }

    /// Whether memory lets whoever is at `from` pass; else it and everyone behind it are held on
    /// memory. Within one walk the answer changes only from yes to no, at a grant.
    #[inline]
    pub(super) fn memory_passes(&mut self, from: Seq) -> bool {
        let passes = self.line.memory.passes(self.now);
        if !passes {
            self.hold_on_memory(from);
        }
        passes
    }

    #[cold]
    #[inline(never)]
    fn hold_on_memory(&mut self, from: Seq) {
        let Line {
            memory, waiting, ..
        } = &mut *self.line;
        for seq in waiting.hold_on_memory_from(from) {
            if let Some(waiter) = waiting.places.get_mut(seq) {
                memory.hold(waiter, self.now, self.out);
            }
        }
        if waiting.places.last().is_some_and(|last| last >= from) {
            let instant = memory.earliest(self.now);
            self.name(instant);
        }
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
