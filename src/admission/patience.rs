//! How often the evaluator looks again at once.
//!
//! An account that is short at an instant which it named itself, or names one that has passed, asks
//! for another look now (ADM-25). So does one that says from inside an answer that it grew. One that
//! keeps doing so is wrong, and costs a processor if it is obeyed for ever: after [`LOOKS`] such looks
//! that changed nothing the next ones are [`PAUSE`] apart. Events are heard as always.

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
    /// Whether what called for a look at once is to wait until then.
    pub(super) pauses: bool,
}

impl Patience {
    /// After a look at `now` that left so many waiting and asked for another at `next`, and at once too if
    /// an account `called` for it.
    pub(super) fn next_look(
        &mut self,
        now: Instant,
        next: Option<Instant>,
        called: bool,
        waiting: usize,
    ) -> NextLook {
        let at_once = called || next.is_some_and(|next| next <= now);
        let is_vain = at_once && waiting == self.waiting;
        self.waiting = waiting;
        self.vain = if is_vain {
            self.vain.saturating_add(1)
        } else {
            0
        };
        let pauses = self.vain >= LOOKS;
        let to_come = next.filter(|next| *next > now);
        NextLook {
            at: match (pauses, now.checked_add(PAUSE)) {
                (false, _) => next,
                (true, None) => to_come,
                (true, Some(end)) => Some(to_come.map_or(end, |next| next.min(end))),
            },
            has_run_out: self.vain == LOOKS,
            pauses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many looks in vain that have gone before: the instant, whether patience has just run out, and
    /// whether it pauses.
    fn after(
        patience: &mut Patience,
        now: Instant,
        next: Option<Instant>,
        called: bool,
    ) -> (Option<Instant>, bool, bool) {
        let look = patience.next_look(now, next, called, 1);
        (look.at, look.has_run_out, look.pauses)
    }

    #[test]
    fn looks_in_vain_come_at_once_for_a_while_and_then_with_a_pause() {
        let now = Instant::now();
        let (soon, late) = (now + PAUSE / 2, now + 2 * PAUSE);
        let paused = Some(now + PAUSE);
        // What they name, whether they call as well, and when they are looked at in the end.
        for (next, called, then) in [
            (Some(now), false, paused),
            (Some(now), true, paused),
            (None, true, paused),
            (Some(soon), true, Some(soon)),
            (Some(late), true, paused),
        ] {
            let mut patience = Patience::default();
            // The first sees somebody who was not there before.
            for _ in 0..LOOKS {
                let look = after(&mut patience, now, next, called);
                assert_eq!(look, (next, false, false));
            }
            let look = after(&mut patience, now, next, called);
            assert_eq!(look, (then, true, true));
            let look = after(&mut patience, now, next, called);
            assert_eq!(look, (then, false, true));
            // An instant to come restores it.
            let look = after(&mut patience, now, Some(late), false);
            assert_eq!(look, (Some(late), false, false));
            let look = after(&mut patience, now, next, called);
            assert_eq!(look, (next, false, false));
        }
    }

    #[test]
    fn a_grant_restores_patience() {
        let now = Instant::now();
        let mut patience = Patience::default();
        for waiting in (0..3 * LOOKS as usize).rev() {
            assert!(!patience.next_look(now, None, true, waiting).pauses);
        }
    }
}
