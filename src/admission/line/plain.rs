//! The walk that asks everyone: what the walk of the runtime is compared with.

use std::time::Instant;

use super::{Line, earlier};
use crate::admission::outbox::Outbox;
use crate::admission::question::{Defect, Look, look};

impl Line {
    /// Walks the whole line once, waiter by waiter.
    pub(super) fn plain_pass(
        &mut self,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Option<Instant>, Defect> {
        self.unwalked = false;
        self.growth.take();
        self.memory.look(out);
        let mut next = None;
        let mut place = self.waiting.places.first().map(|(seq, _)| seq);
        while let Some(seq) = place {
            let is_in_line = self.waiting.is_in_memory_line(seq);
            if !self.memory.passes(is_in_line, now) {
                self.hold_on_memory(seq, now, out);
                next = earlier(next, self.memory.earliest(now));
                break;
            }
            place = self.waiting.places.behind(seq);
            let Some((head, first)) = self.waiting.places.first() else {
                break;
            };
            let ahead = (head != seq).then(|| first.demand.clone());
            let Some(demand) = self.waiting.places.get_mut(seq).map(|it| it.demand.clone()) else {
                break;
            };
            match look(&demand, ahead.as_deref(), now)? {
                Look::Granted => self.grant(seq, now, out),
                Look::Refused {
                    entry,
                    error,
                    reason,
                } => self.refuse(seq, (entry, error, reason), now, out),
                Look::Short(shortfall) => {
                    if let Some(waiter) = self.waiting.places.get_mut(seq) {
                        let first = self.accounts.hold(waiter, shortfall.indices(), now, out);
                        for entry in first {
                            self.waiting.note_held(seq, entry);
                        }
                    }
                    next = earlier(next, shortfall.instant(now));
                    self.let_go_of(seq);
                }
            }
        }
        self.next_look = next;
        Ok(next)
    }
}
