//! Alarms at instants, and the one thread that rings them (`TO-5`).
//!
//! It runs no user code and does no I/O: what an alarm means is handed to somebody else.
//!
//! # Invariants
//!
//! 1. Arming and disarming cost O(log n), and nothing of a disarmed alarm is left.
//! 2. The thread looks again at `looks_at` or sooner, which is no later than the earliest instant.
//!    Arming an earlier one wakes it. Disarming wakes nobody, so that a job whose alarm is never
//!    needed costs the thread nothing: it looks once at the instant of the first of many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::{Clock, WaitCell};
use crate::sync::Mutex;

/// Names an armed alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AlarmKey {
    at: Instant,
    sequence: u64,
}

pub(super) struct Timer<A> {
    state: Mutex<State<A>>,
    cell: Arc<WaitCell>,
}

struct State<A> {
    alarms: BTreeMap<AlarmKey, A>,
    armed: u64,
    stopped: bool,
    /// When the thread looks again by itself; none is never.
    looks_at: Option<Instant>,
}

impl<A> Timer<A> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                alarms: BTreeMap::new(),
                armed: 0,
                stopped: false,
                looks_at: None,
            }),
            cell: WaitCell::new(),
        }
    }

    pub(super) fn cell(&self) -> &Arc<WaitCell> {
        &self.cell
    }

    /// Has `alarm` ring at `at`. After the stop it is dropped.
    pub(super) fn arm(&self, at: Instant, alarm: A) -> AlarmKey {
        let (key, is_sooner, late) = {
            let mut state = self.state.lock();
            state.armed += 1;
            let key = AlarmKey {
                at,
                sequence: state.armed,
            };
            let late = if state.stopped {
                Some(alarm)
            } else {
                state.alarms.insert(key, alarm);
                None
            };
            let is_sooner = state.looks_at.is_none_or(|instant| at < instant);
            if is_sooner {
                // Whoever comes before the thread has looked need not wake it as well.
                state.looks_at = Some(at);
            }
            (key, is_sooner, late)
        };
        drop(late);
        if is_sooner {
            self.cell.notify();
        }
        key
    }

    /// Takes an alarm back; `None` when it has rung.
    pub(super) fn disarm(&self, key: AlarmKey) -> Option<A> {
        self.state.lock().alarms.remove(&key)
    }

    /// Takes back every alarm that `chosen` picks. Costs O(n).
    pub(super) fn take_back(&self, chosen: impl Fn(&A) -> bool) -> Vec<A> {
        let mut state = self.state.lock();
        let keys: Vec<_> = state
            .alarms
            .iter()
            .filter(|(_, alarm)| chosen(alarm))
            .map(|(key, _)| *key)
            .collect();
        keys.iter()
            .filter_map(|key| state.alarms.remove(key))
            .collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.state.lock().alarms.len()
    }

    /// Ends the thread and answers what was still armed.
    pub(super) fn stop(&self) -> Vec<A> {
        let left = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.alarms)
        };
        self.cell.notify();
        left.into_values().collect()
    }

    /// The timer's thread: hands over what is due, until it is stopped.
    pub(super) fn serve(&self, clock: &dyn Clock, mut ring: impl FnMut(A)) {
        loop {
            let seen = self.cell.epoch();
            let now = clock.now();
            let (due, next) = {
                let mut state = self.state.lock();
                if state.stopped {
                    return;
                }
                let mut due = Vec::new();
                while let Some(first) = state.alarms.first_entry() {
                    if first.key().at > now {
                        break;
                    }
                    due.push(first.remove());
                }
                let next = state.alarms.first_key_value().map(|(key, _)| key.at);
                state.looks_at = if due.is_empty() {
                    // An instant that it was woken for stays, though its alarm may be gone: the next
                    // alarms are later, and wake nobody.
                    let kept = state.looks_at.filter(|instant| *instant > now);
                    [next, kept].into_iter().flatten().min()
                } else {
                    // After ringing it looks again at once.
                    Some(now)
                };
                (due, state.looks_at)
            };
            if due.is_empty() {
                clock.wait_until(&self.cell, seen, next);
            } else {
                due.into_iter().for_each(&mut ring);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn alarms_that_are_taken_back_wake_the_thread_once() {
        let clock = ManualClock::new();
        let timer = Arc::new(Timer::new());
        let serving = {
            let (timer, clock) = (Arc::clone(&timer), clock.clone());
            thread::spawn(move || timer.serve(&clock, |()| {}))
        };
        let soon = clock.now() + Duration::from_secs(30);
        let first = timer.arm(soon, ());
        timer.disarm(first);
        timer.cell().wait_quiet(&clock);
        let woken = timer.cell().epoch();
        for later in 1..100 {
            let alarm = timer.arm(soon + Duration::from_millis(later), ());
            assert_eq!(timer.disarm(alarm), Some(()));
        }
        assert_eq!(timer.cell().epoch(), woken);
        timer.stop();
        serving.join().unwrap();
    }

    #[test]
    fn alarms_ring_in_order_of_their_instants_and_disarmed_ones_do_not() {
        let clock = ManualClock::new();
        let timer = Arc::new(Timer::new());
        let (rang, bell) = mpsc::channel();
        let serving = {
            let (timer, clock) = (Arc::clone(&timer), clock.clone());
            thread::spawn(move || timer.serve(&clock, |alarm| rang.send(alarm).unwrap()))
        };
        let at = |secs| clock.now() + Duration::from_secs(secs);
        timer.arm(at(3), "third");
        timer.arm(at(1), "first");
        let disarmed = timer.arm(at(2), "never");
        assert_eq!(timer.disarm(disarmed), Some("never"));
        assert_eq!(timer.disarm(disarmed), None);
        clock.advance(Duration::from_secs(2));
        assert_eq!(bell.recv(), Ok("first"));
        timer.cell().wait_quiet(&clock);
        assert!(bell.try_recv().is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(bell.recv(), Ok("third"));
        timer.arm(at(9), "left");
        assert_eq!(timer.stop(), ["left"]);
        serving.join().unwrap();
    }

    #[test]
    fn a_million_alarms_armed_and_disarmed_leave_nothing() {
        let timer = Timer::new();
        let start = Instant::now();
        for index in 0..1_000_000_u64 {
            let key = timer.arm(start + Duration::from_nanos(index % 977), index);
            assert_eq!(timer.disarm(key), Some(index));
        }
        assert_eq!(timer.len(), 0);
    }
}

/// The timer's protocol, for the model checker.
#[cfg(all(test, nucleo_model))]
pub(crate) mod model {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Timer;
    use crate::clock::{Clock, ManualClock};
    use crate::sync::{Mutex, thread};

    pub(crate) fn arm_against_ring() {
        let clock = ManualClock::new();
        let timer = Arc::new(Timer::new());
        let rang = Arc::new(Mutex::new(Vec::new()));
        let serving = {
            let (timer, clock, rang) = (Arc::clone(&timer), clock.clone(), Arc::clone(&rang));
            thread::spawn(move || timer.serve(&clock, |alarm| rang.lock().push(alarm)))
        };
        let soon = clock.now() + Duration::from_secs(1);
        let first = timer.arm(soon + Duration::from_secs(1), 1);
        let second = timer.arm(soon, 2);
        let ticking = {
            let clock = clock.clone();
            thread::spawn(move || clock.advance(Duration::from_secs(1)))
        };
        let taken_back = timer.disarm(second).is_some();
        ticking.join().unwrap();
        assert_eq!(timer.disarm(first), Some(1));
        if !taken_back {
            while rang.lock().is_empty() {
                thread::yield_now();
            }
        }
        timer.stop();
        serving.join().unwrap();
        assert_eq!(rang.lock().len(), usize::from(!taken_back));
    }
}
