//! Time, and waiting for it.
//!
//! Nothing in the crate reads the system's time but through a [`Clock`], and nothing waits for an
//! instant but through [`Clock::wait_until`]. Under a [`ManualClock`] a test therefore owns every
//! timeout, delay and refill.
//!
//! # Invariants
//!
//! 1. A [`WaitCell`] loses no notification: a waiter reads the epoch *before* it looks at its
//!    predicate, and sleeps only while the epoch is still the one that it read. A notification
//!    between look and sleep has moved the epoch, so the sleep returns at once.
//! 2. A wait never says why it ended. "Expired" is decided by the caller, who compares
//!    [`Clock::now`] with its deadline.
//! 3. The cell's lock is a leaf: nothing is called and no other lock is taken while it is held.

mod stamp;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub(crate) use stamp::{Latest, Stamp};

use crate::sync::{Condvar, Mutex};

/// Where one thread sleeps, and how others wake it.
///
/// The cell counts its notifications. To wait for a condition that lives elsewhere, read
/// [`epoch`](Self::epoch), look at the condition, and if it does not hold call
/// [`Clock::wait_until`] with the epoch that was read; then look again. Whoever makes the
/// condition true calls [`notify`](Self::notify) afterwards.
#[derive(Default)]
pub struct WaitCell {
    state: Mutex<CellState>,
    epoch_moved: Condvar,
    parked: Condvar,
}

#[derive(Default)]
struct CellState {
    epoch: u64,
    /// The waiter that sleeps now: the epoch it has seen and the instant it sleeps towards.
    sleeper: Option<(u64, Option<Instant>)>,
    /// How many wait for the owner's next sleep.
    watchers: usize,
    /// Nobody is to sleep here: the owner's thread has not been started, or has ended.
    vacant: bool,
}

impl WaitCell {
    /// A cell that nobody waits on.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// How often this cell has been notified. Read it before looking at the condition.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Moves the epoch and wakes whoever sleeps here. Takes no lock but the cell's own, so it may
    /// be called under any other.
    pub fn notify(&self) {
        self.state.lock().epoch += 1;
        // All: besides the owner a test may wait for the owner's next sleep.
        self.epoch_moved.notify_all();
    }

    /// Sleeps until the epoch is no longer `seen`, or the system's clock has reached `deadline`.
    fn sleep(&self, seen: u64, asked: Option<Instant>, system_deadline: Option<Instant>) {
        let mut state = self.state.lock();
        while state.epoch == seen {
            state.sleeper = Some((seen, asked));
            if state.watchers > 0 {
                self.parked.notify_all();
            }
            match system_deadline {
                None => self.epoch_moved.wait(&mut state),
                Some(deadline) => {
                    if self
                        .epoch_moved
                        .wait_until(&mut state, deadline)
                        .timed_out()
                    {
                        break;
                    }
                }
            }
        }
        state.sleeper = None;
    }

    /// Whether the owner sleeps with nothing left to handle: it has seen the newest epoch, and
    /// its instant lies after `now`. So it does where there is no owner.
    pub(crate) fn is_quiet(&self, now: Instant) -> bool {
        self.state.lock().is_quiet(now)
    }

    /// Blocks until [`is_quiet`](Self::is_quiet) holds. For tests, which have no other way to say
    /// "and nothing more happened".
    pub(crate) fn wait_quiet(&self, clock: &dyn Clock) {
        let mut state = self.state.lock();
        state.watchers += 1;
        while !state.is_quiet(clock.now()) {
            self.parked.wait(&mut state);
        }
        state.watchers -= 1;
    }

    /// Says that no thread owns this cell, so that nobody waits for one to sleep here.
    pub(crate) fn vacate(&self) {
        self.state.lock().vacant = true;
        self.parked.notify_all();
    }

    /// Says that a thread owns this cell until what this answers is dropped. Called before the thread is
    /// started, which takes it along.
    pub(crate) fn occupy(self: &Arc<Self>) -> Occupied {
        self.state.lock().vacant = false;
        Occupied(Arc::clone(self))
    }
}

/// That a thread owns a cell.
#[must_use = "the cell is vacant once this is dropped"]
pub(crate) struct Occupied(Arc<WaitCell>);

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.vacate();
    }
}

impl CellState {
    fn is_quiet(&self, now: Instant) -> bool {
        self.vacant
            || self.sleeper.is_some_and(|(seen, deadline)| {
                seen == self.epoch && deadline.is_none_or(|deadline| deadline > now)
            })
    }
}

impl fmt::Debug for WaitCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitCell")
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

/// A source of time that also knows how to wait for an instant.
///
/// [`now`](Self::now) never goes back and is what every duration, deadline and refill is computed
/// from. [`wall`](Self::wall) is the calendar; it may jump, and is only ever shown or compared
/// with calendar instants.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant. Monotonic.
    fn now(&self) -> Instant;

    /// The present calendar time.
    fn wall(&self) -> SystemTime;

    /// Sleeps until `cell` has been notified since `seen` was read, or `deadline` has come.
    ///
    /// May return early. Callers loop, and decide by [`now`](Self::now) whether time is up.
    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>);
}

/// The system's own time.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>) {
        cell.sleep(seen, deadline, deadline);
    }
}

/// Time that moves only when a test says so.
///
/// [`advance`](Self::advance) moves both the monotonic and the calendar time and wakes every
/// sleeper whose instant has come. A clone shares the time.
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualTime>,
}

struct ManualTime {
    base: Instant,
    state: Mutex<ManualState>,
}

struct ManualState {
    elapsed: Duration,
    wall: SystemTime,
    sleepers: Vec<(Instant, Arc<WaitCell>)>,
}

impl ManualClock {
    /// A clock that stands still at the present instant, its calendar at the Unix epoch plus
    /// 1 700 000 000 seconds so that dates in tests are the same on every run.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(ManualTime {
                base: Instant::now(),
                state: Mutex::new(ManualState {
                    elapsed: Duration::ZERO,
                    wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
                    sleepers: Vec::new(),
                }),
            }),
        }
    }

    /// Moves time forward by `step` and wakes every sleeper whose instant has come.
    ///
    /// # Panics
    /// When that is past the end of time, of either; neither has moved then.
    pub fn advance(&self, step: Duration) {
        let due: Vec<_> = {
            let mut state = self.shared.state.lock();
            let elapsed = state.elapsed.checked_add(step);
            let now = elapsed.and_then(|elapsed| self.shared.base.checked_add(elapsed));
            let (Some(elapsed), Some(now), Some(wall)) =
                (elapsed, now, state.wall.checked_add(step))
            else {
                drop(state);
                panic!("a clock cannot be advanced by {step:?}: that is past the end of time");
            };
            state.elapsed = elapsed;
            state.wall = wall;
            state
                .sleepers
                .iter()
                .filter(|(deadline, _)| *deadline <= now)
                .map(|(_, cell)| Arc::clone(cell))
                .collect()
        };
        for cell in due {
            cell.notify();
        }
    }

    /// Sets the calendar alone, forward or back, as an administrator or a time server may.
    pub fn set_wall(&self, wall: SystemTime) {
        self.shared.state.lock().wall = wall;
    }

    /// How far the clock has been moved since it was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.state.lock().elapsed
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("elapsed", &self.elapsed())
            .finish_non_exhaustive()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.shared.base + self.shared.state.lock().elapsed
    }

    fn wall(&self) -> SystemTime {
        self.shared.state.lock().wall
    }

    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            return cell.sleep(seen, None, None);
        };
        {
            // Registered under the same lock that `advance` reads the list under: an advance
            // either comes first and is seen here, or finds this sleeper.
            let mut state = self.shared.state.lock();
            if self.shared.base + state.elapsed >= deadline {
                return;
            }
            state.sleepers.push((deadline, Arc::clone(cell)));
        }
        cell.sleep(seen, Some(deadline), None);
        let mut state = self.shared.state.lock();
        if let Some(at) = state
            .sleepers
            .iter()
            .position(|(instant, other)| *instant == deadline && Arc::ptr_eq(other, cell))
        {
            state.sleepers.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_notification_between_look_and_sleep_is_not_lost() {
        let cell = WaitCell::new();
        let seen = cell.epoch();
        cell.notify();
        SystemClock.wait_until(&cell, seen, None);
        assert_eq!(cell.epoch(), seen + 1);
    }

    #[test]
    fn whoever_waits_for_a_cell_to_be_quiet_hears_of_its_owners_end() {
        let clock = ManualClock::new();
        let cell = WaitCell::new();
        cell.vacate();
        cell.wait_quiet(&clock);
        let here = cell.occupy();
        assert!(!cell.is_quiet(clock.now()));
        let watchers: Vec<_> = (0..2)
            .map(|_| {
                let (clock, cell) = (clock.clone(), Arc::clone(&cell));
                thread::spawn(move || cell.wait_quiet(&clock))
            })
            .collect();
        while cell.state.lock().watchers < 2 {
            thread::yield_now();
        }
        drop(here);
        watchers.into_iter().for_each(|it| it.join().unwrap());
    }

    #[test]
    fn advance_wakes_only_what_is_due() {
        let clock = ManualClock::new();
        let cell = WaitCell::new();
        let deadline = clock.now() + Duration::from_secs(10);
        let waiter = {
            let (clock, cell) = (clock.clone(), Arc::clone(&cell));
            thread::spawn(move || {
                while clock.now() < deadline {
                    let seen = cell.epoch();
                    if clock.now() >= deadline {
                        break;
                    }
                    clock.wait_until(&cell, seen, Some(deadline));
                }
                clock.elapsed()
            })
        };
        cell.wait_quiet(&clock);
        clock.advance(Duration::from_secs(9));
        cell.wait_quiet(&clock);
        assert!(!waiter.is_finished());
        clock.advance(Duration::from_secs(1));
        assert_eq!(waiter.join().unwrap(), Duration::from_secs(10));
        assert!(clock.shared.state.lock().sleepers.is_empty());
    }

    #[test]
    fn a_step_past_the_end_of_time_moves_nothing() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let before = (clock.now(), clock.wall(), clock.elapsed());
        let far = clock.clone();
        thread::spawn(move || far.advance(Duration::MAX))
            .join()
            .unwrap_err();
        assert_eq!((clock.now(), clock.wall(), clock.elapsed()), before);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.elapsed(), Duration::from_secs(2));
    }

    #[test]
    fn the_calendar_jumps_without_moving_the_monotonic_time() {
        let clock = ManualClock::new();
        let (now, wall) = (clock.now(), clock.wall());
        clock.set_wall(wall - Duration::from_secs(3_600));
        assert_eq!(clock.now(), now);
        assert!(clock.wall() < wall);
    }
}
