//! The memory gate as a decision: who may start, by what memory reads (`MEM`).
//!
//! No job can say what it will hold, so memory is not budgeted. The gate holds a line and lets it
//! go at a pace: a curve of the level, times a penalty that grows with what recent starts have
//! added. It knows no source, no clock and no waiter; whoever owns it says what was read, when,
//! and who joins and leaves its line.
//!
//! # Invariants
//!
//! 1. An answer is a function of the state and `now`: within one look two questions differ only if
//!    something was taken between them.
//! 2. While nobody is held and the latch is not set, everyone goes.
//! 3. A completion is one bit. It is spent by the next release, whoever that is.
//! 4. Levels are compared as integers; floating point enters the length of a delay only.

mod status;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

pub use status::{MemoryStatus, MemoryZone};

/// At this many percent the latch sets (MEM-1).
const LATCH_PERCENT: u128 = 95;
/// Below this many it clears (MEM-1).
const RECOVERY_PERCENT: u128 = 90;
/// Where the curve begins to rise (MEM-4).
const CURVE_FROM: f64 = 0.80;
/// Where it ends (MEM-4).
const CURVE_TO: f64 = 0.95;
/// The shortest delay, in milliseconds (MEM-4).
const MIN_DELAY_MS: f64 = 50.0;
/// The delay at the end of the curve, in milliseconds (MEM-4).
const MAX_DELAY_MS: f64 = 30_000.0;
/// The longest that a release is put off (MEM-5), in milliseconds.
const MAX_WAIT_MS: f64 = 3_600_000.0;
/// The largest penalty: the longest wait over the shortest delay (MEM-5).
const MAX_PENALTY: f64 = MAX_WAIT_MS / MIN_DELAY_MS;
/// How soon a line is looked at again: memory that is freed tells nobody (MEM-7).
const RECHECK: Duration = Duration::from_secs(2);
/// How long nothing may run while the line stands still (MEM-9).
const STANDSTILL: Duration = Duration::from_secs(30);

/// What a [`MemorySource`](super::MemorySource) read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReading {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that there are. A reading of zero counts as a failed one.
    pub capacity: u64,
}

impl MemoryReading {
    /// A reading of both figures, in bytes.
    #[must_use]
    pub fn new(used: u64, capacity: u64) -> Self {
        Self { used, capacity }
    }

    /// The part in use, 1.0 for all of it.
    #[must_use]
    pub fn ratio(self) -> f64 {
        if self.capacity == 0 {
            return 0.0;
        }
        self.used as f64 / self.capacity as f64
    }

    fn is_at_least(self, percent: u128) -> bool {
        u128::from(self.used) * 100 >= u128::from(self.capacity) * percent
    }

    fn is_below(self, other: Self) -> bool {
        u128::from(self.used) * u128::from(other.capacity)
            < u128::from(other.used) * u128::from(self.capacity)
    }

    /// By how many percentage points this lies above `before`.
    fn points_over(self, before: Self) -> f64 {
        if self.capacity == before.capacity {
            // Exact for whole points, where the difference of two ratios is not.
            let grown = i128::from(self.used) - i128::from(before.used);
            return (grown * 100) as f64 / self.capacity as f64;
        }
        (self.ratio() - before.ratio()) * 100.0
    }
}

/// The delay at a level, before the penalty (MEM-4).
fn curve_ms(ratio: f64) -> f64 {
    let along = ((ratio - CURVE_FROM) / (CURVE_TO - CURVE_FROM)).clamp(0.0, 1.0);
    (MAX_DELAY_MS * along * along * along)
        .trunc()
        .max(MIN_DELAY_MS)
}

/// What a look changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatchTurn {
    Set,
    Cleared,
}

/// The gate's state; see the top of the file.
#[derive(Clone, Debug)]
pub(super) struct MemoryGate {
    progress: bool,
    stopped: bool,
    reading: Option<MemoryReading>,
    /// The last reading that was lower than the one before it, or the first.
    floor: Option<MemoryReading>,
    latched: bool,
    held: usize,
    /// Since when somebody has been held without a gap.
    held_since: Option<Instant>,
    in_flight: usize,
    /// When the last job in flight finished.
    idle_since: Option<Instant>,
    completion: bool,
    last_release: Option<Instant>,
    /// The floors at the last release and at the one before it.
    floors: [Option<MemoryReading>; 2],
    /// As the last release left it.
    penalty: f64,
}

impl MemoryGate {
    /// A gate that has read nothing and lets everyone go. `progress` is MEM-9's rule.
    pub(super) fn new(progress: bool) -> Self {
        Self {
            progress,
            stopped: false,
            reading: None,
            floor: None,
            latched: false,
            held: 0,
            held_since: None,
            in_flight: 0,
            idle_since: None,
            completion: false,
            last_release: None,
            floors: [None; 2],
            penalty: 1.0,
        }
    }

    /// One look: everything that is asked until the next one is answered from this reading.
    pub(super) fn look(&mut self, reading: MemoryReading) -> Option<LatchTurn> {
        match self.reading {
            Some(before) if !reading.is_below(before) => {}
            _ => self.floor = Some(reading),
        }
        self.reading = Some(reading);
        let latched = if self.latched {
            reading.is_at_least(RECOVERY_PERCENT)
        } else {
            reading.is_at_least(LATCH_PERCENT)
        };
        let turn = match (self.latched, latched) {
            (false, true) => Some(LatchTurn::Set),
            (true, false) => Some(LatchTurn::Cleared),
            _ => None,
        };
        self.latched = latched;
        turn
    }

    /// Whether an arrival goes past the line: there is none, and the latch is not set. Any other
    /// arrival joins (MEM-2).
    pub(super) fn is_open(&self) -> bool {
        self.stopped || (self.held == 0 && !self.latched)
    }

    /// Whether one of the line may go at `now`.
    pub(super) fn fits(&self, now: Instant) -> bool {
        self.flows(now) || self.standstill_ends().is_some_and(|end| end <= now)
    }

    /// As much for somebody who waits, and not in the line: the latch alone is in the way.
    pub(super) fn lets_pass(&self, now: Instant) -> bool {
        !self.latched || self.fits(now)
    }

    fn flows(&self, now: Instant) -> bool {
        self.is_open()
            || (!self.latched
                && (self.completion
                    || self.last_release.is_none_or(|release| {
                        now.saturating_duration_since(release) >= self.wait()
                    })))
    }

    /// A job with entries was granted: the release is stamped. Answers whether it went only
    /// because everything stood still (MEM-9).
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let forced = !self.flows(now);
        self.penalty = self.penalty_now();
        self.floors = [self.floor, self.floors[0]];
        self.last_release = Some(now);
        self.completion = false;
        self.in_flight += 1;
        forced
    }

    /// A job with entries finished.
    pub(super) fn completed(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            self.idle_since = Some(now);
        }
        // With nobody to let go and nothing in the way there is nothing to look at.
        if self.held > 0 || self.latched {
            self.completion = true;
        }
    }

    /// A waiter is held from now on.
    pub(super) fn join(&mut self, now: Instant) {
        if self.held == 0 {
            self.held_since = Some(now);
        }
        self.held += 1;
    }

    /// One of the line has left it: granted, refused, or let go to wait for something else.
    pub(super) fn leave(&mut self) {
        self.held = self.held.saturating_sub(1);
        if self.held == 0 {
            self.held_since = None;
            self.completion &= self.latched;
        }
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// When to look again on behalf of who is held: at the end of the delay, within two seconds
    /// whatever it is, and in the past if that is where it ended. `None` when nothing is pending.
    pub(super) fn earliest(&self, now: Instant) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let recheck = now + RECHECK;
        let soonest = self
            .standstill_ends()
            .map_or(recheck, |end| end.min(recheck));
        if self.latched {
            return Some(soonest);
        }
        if self.held == 0 {
            return None;
        }
        let due = self.last_release? + self.pacing();
        Some(due.min(soonest))
    }

    /// From now on everyone goes.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn status(&self) -> MemoryStatus {
        let reading = self.reading.unwrap_or(MemoryReading::new(0, 0));
        MemoryStatus {
            used: reading.used,
            capacity: reading.capacity,
            ratio: reading.ratio(),
            floor: self.floor.map_or(0.0, MemoryReading::ratio),
            zone: if self.latched {
                MemoryZone::Critical
            } else if self.held > 0 {
                MemoryZone::Draining
            } else {
                MemoryZone::Green
            },
            held: self.held,
            pacing: if self.held == 0 || self.last_release.is_none() {
                Duration::ZERO
            } else {
                self.pacing()
            },
            penalty: self.penalty_now(),
            fault: None,
        }
    }

    /// What is waited from the last release on; nothing once a job has finished since.
    fn pacing(&self) -> Duration {
        if self.completion {
            Duration::ZERO
        } else {
            self.wait()
        }
    }

    /// The delay with its penalty (MEM-5).
    fn wait(&self) -> Duration {
        let ratio = self.reading.map_or(0.0, MemoryReading::ratio);
        let millis = (curve_ms(ratio) * self.penalty_now())
            .round()
            .min(MAX_WAIT_MS);
        Duration::from_millis(millis as u64)
    }

    /// The penalty that a release now would leave.
    fn penalty_now(&self) -> f64 {
        match (self.floor, self.floors[1]) {
            (Some(floor), Some(before)) => {
                (self.penalty * floor.points_over(before).exp2()).clamp(1.0, MAX_PENALTY)
            }
            _ => self.penalty,
        }
    }

    /// When one goes all the same, because nothing runs whose end could free memory (MEM-9).
    fn standstill_ends(&self) -> Option<Instant> {
        let stands_still = self.latched || self.wait() > STANDSTILL;
        if !self.progress || self.stopped || self.in_flight > 0 || !stands_still {
            return None;
        }
        let since = self.held_since?;
        [self.idle_since, self.last_release]
            .into_iter()
            .flatten()
            .fold(since, Instant::max)
            .checked_add(STANDSTILL)
    }
}
