//! Instants as one word, for what has to be noted without a lock.
//!
//! # Invariants
//!
//! 1. A stamp names the instant that it was made of, on whichever side of the origin that is.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicI64, Ordering};

/// The first instant that was ever stamped. It may lie behind others: clocks of tests have times of
/// their own.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

thread_local! {
    /// What this thread stamped last. One step stamps several accounts with one instant.
    static LAST: Cell<Option<(Instant, Stamp)>> = const { Cell::new(None) };
}

/// Nanoseconds from the origin; negative before it. Reaches 292 years either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(i64);

impl Stamp {
    #[inline]
    pub(crate) fn of(instant: Instant) -> Self {
        match LAST.get() {
            Some((last, stamp)) if last == instant => stamp,
            _ => Self::compute(instant),
        }
    }

    #[inline(never)]
    fn compute(instant: Instant) -> Self {
        let origin = *ORIGIN.get_or_init(|| instant);
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let stamp = Self(match instant.checked_duration_since(origin) {
            Some(after) => nanos(after),
            None => -nanos(origin.saturating_duration_since(instant)),
        });
        LAST.set(Some((instant, stamp)));
        stamp
    }

    /// The instant again; none for a word that was never stamped.
    pub(crate) fn instant(self) -> Option<Instant> {
        let origin = *ORIGIN.get()?;
        let span = Duration::from_nanos(self.0.unsigned_abs());
        match self.0 {
            Self::NEVER => None,
            0.. => origin.checked_add(span),
            _ => origin.checked_sub(span),
        }
    }

    const NEVER: i64 = i64::MIN;

    /// The word of what never happened.
    pub(crate) fn never() -> Self {
        Self(Self::NEVER)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0.cast_unsigned()
    }

    pub(crate) fn of_word(word: u64) -> Self {
        Self(word.cast_signed())
    }
}

/// The latest instant that was ever noted, by any thread.
#[derive(Debug)]
pub(crate) struct Latest(AtomicI64);

impl Latest {
    pub(crate) fn new(instant: Instant) -> Self {
        Self(AtomicI64::new(Stamp::of(instant).0))
    }

    #[inline]
    pub(crate) fn note(&self, instant: Instant) {
        let Stamp(stamp) = Stamp::of(instant);
        // Most are the one that was noted last, and cost no more than a look.
        if stamp > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(stamp, Ordering::Relaxed);
        }
    }

    pub(crate) fn instant(&self) -> Option<Instant> {
        Stamp(self.0.load(Ordering::Relaxed)).instant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_instant_again() {
        let now = Instant::now();
        let day = Duration::from_secs(86_400);
        let before = now.checked_sub(day).unwrap_or(now);
        for instant in [now, now + Duration::from_nanos(1), now + 400 * day, before] {
            for _ in 0..2 {
                let stamp = Stamp::of(instant);
                assert_eq!(stamp.instant(), Some(instant));
                assert_eq!(Stamp::of_word(stamp.word()), stamp);
            }
        }
        assert_eq!(Stamp::never().instant(), None);
    }

    #[test]
    fn the_latest_instant_never_goes_back() {
        let now = Instant::now();
        let latest = Latest::new(now);
        for (millis, expected) in [(0, 0), (5, 5), (3, 5), (7, 7)] {
            latest.note(now + Duration::from_millis(millis));
            assert_eq!(
                latest.instant(),
                Some(now + Duration::from_millis(expected))
            );
        }
    }
}
