//! How often the evaluator looks again at once.
//!
//! An account that is short at an instant which it named itself, or names one that has passed, asks
//! for another look now (ADM-25). One that keeps doing so is wrong, and costs a processor if it
//! is obeyed for ever: after [`LOOKS`] such looks that changed nothing the next ones are [`PAUSE`]
//! apart. Events are heard as always.

use std::time::{Duration, Instant};

/// So many looks in a row may be called for at once.
const LOOKS: u32 = 64;
/// The time between two looks from there on.
const PAUSE: Duration = Duration::from_millis(1);

/// What the last looks of an evaluator came to.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// How many in a row changed nothing and called for another at once.
    vain: u32,
    /// How many waited after the last.
    waiting: usize,
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextLook {
    /// None when only an event calls for one.
    pub(super) at: Option<Instant>,
    /// Whether patience has just run out.
    pub(super) has_run_out: bool,
}

impl Patience {
    /// After a look at `now` that left so many waiting and asked for another at `next`.
    pub(super) fn next_look(
        &mut self,
        now: Instant,
        next: Option<Instant>,
        waiting: usize,
    ) -> NextLook {
        let is_vain = next.is_some_and(|next| next <= now) && waiting == self.waiting;
        self.waiting = waiting;
        self.vain = if is_vain {
            self.vain.saturating_add(1)
        } else {
            0
        };
        NextLook {
            at: match next {
                Some(_) if self.vain >= LOOKS => now.checked_add(PAUSE),
                next => next,
            },
            has_run_out: self.vain == LOOKS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_come_at_once_for_a_while_and_then_with_a_pause() {
        let now = Instant::now();
        let mut patience = Patience::default();
        let at_once = NextLook {
            at: Some(now),
            has_run_out: false,
        };
        // The first sees somebody who was not there before.
        for _ in 0..LOOKS {
            assert_eq!(patience.next_look(now, Some(now), 1), at_once);
        }
        let paused = Some(now + PAUSE);
        let run_out = patience.next_look(now, Some(now), 1);
        assert_eq!((run_out.at, run_out.has_run_out), (paused, true));
        let later = patience.next_look(now, Some(now), 1);
        assert_eq!((later.at, later.has_run_out), (paused, false));
        // A grant, and an instant to come, restore it.
        assert_eq!(patience.next_look(now, Some(now), 0), at_once);
        let to_come = Some(now + Duration::from_nanos(1));
        assert_eq!(patience.next_look(now, to_come, 0).at, to_come);
        assert_eq!(patience.next_look(now, None, 0).at, None);
    }
}
