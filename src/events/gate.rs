//! Waiting for many to answer.
//!
//! # Invariant
//!
//! Every [`Token`] answers exactly once, in its drop: by the consumer that got it, or, when the
//! consumer ends first, by whoever drops the queue that it lies in.

use std::sync::Arc;
use std::time::Instant;

use crate::clock::{Clock, WaitCell};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Counts the answers that are still out.
#[derive(Debug)]
pub(super) struct Gate {
    pending: AtomicUsize,
    counted: AtomicUsize,
    answered: Arc<WaitCell>,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: AtomicUsize::new(0),
            counted: AtomicUsize::new(0),
            answered: WaitCell::new(),
        })
    }

    /// One more answer to wait for.
    pub(super) fn token(self: &Arc<Self>) -> Token {
        self.pending.fetch_add(1, Ordering::Relaxed);
        Token(Arc::clone(self))
    }

    /// How many answers counted themselves in.
    pub(super) fn counted(&self) -> usize {
        self.counted.load(Ordering::Acquire)
    }

    /// Returns when every token has answered, or the clock has reached `deadline`.
    pub(super) fn wait(&self, clock: &dyn Clock, deadline: Option<Instant>) {
        loop {
            let seen = self.answered.epoch();
            if self.pending.load(Ordering::Acquire) == 0
                || deadline.is_some_and(|deadline| clock.now() >= deadline)
            {
                return;
            }
            clock.wait_until(&self.answered, seen, deadline);
        }
    }
}

/// One answer that is awaited.
#[derive(Debug)]
pub(super) struct Token(Arc<Gate>);

impl Token {
    /// Says yes, where the question was one of yes or no.
    pub(super) fn count(&self) {
        self.0.counted.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::Release) == 1 {
            self.0.answered.notify();
        }
    }
}
