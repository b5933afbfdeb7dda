//! What a bucket holds at least, beside its lock.
//!
//! # Invariants
//!
//! 1. The floor is never above the settled level in either dimension: it is set from that level,
//!    lowered with every debit and taken away before the revision changes, all under the lock of the
//!    state. A refill or a credit leaves it too low, never too high.

use super::Need;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Whole tokens and whole requests, in one word.
#[derive(Debug)]
pub(super) struct Floor(AtomicU64);

impl Floor {
    pub(super) fn new(tokens: u32, requests: u32) -> Self {
        Self(AtomicU64::new(pack(tokens, requests)))
    }

    /// Whether so much is there for certain. Asked without the lock: whoever debits meanwhile is
    /// asked to take in its turn, and that is what counts.
    #[inline]
    pub(super) fn covers(&self, need: Need) -> bool {
        let (tokens, requests) = unpack(self.0.load(Ordering::Acquire));
        need.tokens <= u64::from(tokens) && need.requests <= u64::from(requests)
    }

    /// Called under the lock of the state.
    pub(super) fn set(&self, tokens: u32, requests: u32) {
        self.0.store(pack(tokens, requests), Ordering::Release);
    }

    /// So much was debited. Called under the lock of the state.
    #[inline]
    pub(super) fn lower(&self, by: Need) {
        let less = |floor: u32, by: u64| {
            let by = u32::try_from(by).unwrap_or(u32::MAX);
            floor.saturating_sub(by)
        };
        let (tokens, requests) = unpack(self.0.load(Ordering::Acquire));
        self.set(less(tokens, by.tokens), less(requests, by.requests));
    }
}

#[inline]
fn pack(tokens: u32, requests: u32) -> u64 {
    u64::from(tokens) | u64::from(requests) << u32::BITS
}

#[inline]
fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> u32::BITS) as u32)
}
